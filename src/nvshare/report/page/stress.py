"""Pages of ``nvshare stress``: verdicts, shares against quotas, and the speeds of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvshare.acceptance.stress.verdicts import Figures
from nvshare.bench.columns import Row
from nvshare.report import tables
from nvshare.report.page.charts import Axis, Bar, BarRow, Point, PointRow, bar_chart, point_chart
from nvshare.report.page.parts import Content, Section, Tile, check_figures, checks_section, passed_tile, timelines
from nvshare.report.page.shapes import Maybe, shape_of
from nvshare.report.page.svg import colour
from nvshare.report.page.timeline import card_shape
from nvshare.report.tables import Figure

SHAPE = {
    "source": str,
    "title": str,
    "passed": bool,
    "cards": [str],
    "verdicts": [{"name": str, "passed": Maybe(bool), "detail": str}],
    "faults": [{"name": str, "survived": Maybe(bool), "detail": str, "seconds": float}],
    "workers": [{"worker": int, "ok": bool, "ops": Maybe(float), "seconds": Maybe(float), "uuid": Maybe(str)}],
    "figures": shape_of(Figures),
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
    yield checks_section(_checks(content), "Verdicts")
    quota = content["figures"].get("quota_percent")
    if content["occupied"] and quota is not None:
        yield _shares(content["occupied"], quota)
    speeds = [worker for worker in content["workers"] if worker.get("ops") and worker.get("seconds")]
    if speeds:
        yield _speeds(speeds, content["cards"])
    yield from timelines([{"name": "stress", **content}], lambda row: "all workers")


def _checks(content: Content) -> list[Mapping[str, Any]]:
    """Verdicts and faults as rows of findings."""
    verdicts = [_check(one["name"], one["passed"], one) for one in content["verdicts"]]
    return verdicts + [_check(f"fault: {one['name']}", one["survived"], one) for one in content["faults"]]


def _check(name: str, ok: bool | None, told: Row) -> dict[str, Any]:
    return {"check": name, "expected": "", "seen": told["detail"], "ok": ok, "seconds": told.get("seconds")}


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
    yield from check_figures(_checks(content))
    yield from tables.figures(Figures, [content["figures"]], lambda row: "all workers")
