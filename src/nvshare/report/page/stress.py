"""Pages of ``nvshare stress``: verdicts, shares against quotas, and the speeds of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvshare.report.page.charts import Axis, Bar, BarRow, Point, PointRow, bar_chart, point_chart
from nvshare.report.page.parts import (
    Content,
    Figure,
    Row,
    Section,
    Table,
    Tile,
    passed_figure,
    passed_tile,
    timelines,
    verdict,
)
from nvshare.report.page.shapes import Maybe
from nvshare.report.page.svg import colour
from nvshare.report.page.timeline import card_shape

SHAPE = {
    "source": str,
    "title": str,
    "passed": bool,
    "cards": [str],
    "verdicts": [{"name": str, "passed": Maybe(bool), "detail": str}],
    "faults": [{"name": str, "survived": Maybe(bool), "detail": str, "seconds": float}],
    "workers": [{"worker": int, "ok": bool, "ops": Maybe(float), "seconds": Maybe(float), "uuid": Maybe(str)}],
    "figures": dict.fromkeys(("ops_per_second", "quota_percent", "lease_wait_p50_s", "lease_wait_p99_s"), Maybe(float)),
    "occupied": [float],
    "timeline": [card_shape()],
}


def title(content: Content) -> str:
    return str(content["title"])


def tiles(content: Content) -> list[Tile]:
    verdicts = [entry["passed"] for entry in content["verdicts"]]
    found = [
        passed_tile("verdicts", verdicts),
        passed_tile("workers right", [worker["ok"] for worker in content["workers"]]),
    ]
    if content["faults"]:
        found.append(passed_tile("faults survived", [fault["survived"] for fault in content["faults"]]))
    operations = content["figures"].get("ops_per_second")
    if operations is not None:
        found.append(Tile("operations", f"{operations:.0f} /s", "all workers together"))
    return found


def sections(content: Content) -> Iterator[Section]:
    yield _verdicts(content["verdicts"], content["faults"])
    quota = content["figures"].get("quota_percent")
    if content["occupied"] and quota is not None:
        yield _shares(content["occupied"], quota)
    speeds = [worker for worker in content["workers"] if worker.get("ops") and worker.get("seconds")]
    if speeds:
        yield _speeds(speeds, content["cards"])
    yield from timelines([{"name": "stress", **content}], lambda row: "all workers")


def _verdicts(verdicts: Sequence[Row], faults: Sequence[Row]) -> Section:
    lines = [
        *([entry["name"], entry["detail"], verdict(entry["passed"])] for entry in verdicts),
        *([f"fault: {fault['name']}", fault["detail"], verdict(fault["survived"])] for fault in faults),
    ]
    return Section("Verdicts", table=Table(("check", "seen", ""), lines))


def _shares(occupied: list[float], quota: float) -> Section:
    rows = [
        PointRow(
            str(place),
            f"client {place}",
            [
                Point(float(quota), f"at most {quota:g} %", "expected", place, hollow=True),
                Point(share, f"{share:.1f} % of its card", "delivered", place),
            ],
            f"{share - quota:+.1f}",
        )
        for place, share in enumerate(occupied)
    ]
    lead = "Part of the card's time that each had; its quota is a cap. On the right, points beyond it."
    chart = point_chart(rows, "Share of each client against its quota", Axis(" %"))
    return Section("Delivered against quota", lead, chart, [("ring", "quota"), ("s0", "had")])


def _speeds(workers: list[Row], cards: list[str]) -> Section:
    rows = []
    for worker in sorted(workers, key=lambda worker: int(worker["worker"])):
        speed = worker["ops"] / worker["seconds"]
        card = cards.index(worker["uuid"]) if worker.get("uuid") in cards else 0
        bar = Bar(speed, f"worker {worker['worker']} on card {card}: {speed:.1f} operations/s", "speed", card)
        rows.append(BarRow(str(worker["worker"]), f"worker {worker['worker']}", [bar], f"{speed:.1f}"))
    legend = [(colour(place), f"card {place}") for place in range(len(cards))]
    return Section("Speeds", "Operations per second of each worker.", bar_chart(rows, "Speed of each worker"), legend)


def figures(content: Content) -> Iterator[Figure]:
    for entry in content["verdicts"]:
        if entry["passed"] is not None:
            yield passed_figure(entry["name"], entry["passed"])
    for fault in content["faults"]:
        if fault["survived"] is not None:
            yield passed_figure(f"fault: {fault['name']}", fault["survived"])
    for name, words, better in (
        ("ops_per_second", "operations/s", 1),
        ("lease_wait_p50_s", "wait for a lease, median, s", -1),
        ("lease_wait_p99_s", "wait for a lease, 99th percentile, s", -1),
    ):
        value = content["figures"].get(name)
        if value is not None:
            yield Figure("all workers", words, value, better)
