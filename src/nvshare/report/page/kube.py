"""Pages of ``nvshare kube-test``: which pod ran on which GPU, who had it when, how long it took and how fast it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from nvshare.acceptance.kube_test.plan import Request
from nvshare.bench import spans
from nvshare.bench.columns import Row, verdict
from nvshare.bench.outcome import TaskResult
from nvshare.bench.spans import Span
from nvshare.report import tables
from nvshare.report.page.charts import Bar, BarRow, bar_chart, shortened
from nvshare.report.page.parts import (
    CHECK,
    NODE,
    Content,
    Section,
    Tile,
    check_figures,
    checks_section,
    node_title,
    passed_tile,
)
from nvshare.report.page.shapes import Maybe, shape_of
from nvshare.report.page.timeline import card_shape, series_of, timeline_chart
from nvshare.report.tables import Cells, Figure, Table, cells

_LETTERS = 14  # of a GPU's name, as in the timeline
SHAPE = {
    **NODE,
    "request": shape_of(Request),
    "passed": bool,
    "rows": [CHECK],
    "tasks": [{**shape_of(TaskResult), "node": Maybe(str)}],
    "findings": [str],
    "messages": [str],
    "measured": Maybe({"duration_s": float, "its": float, "switches": int}),
    "baseline_s": Maybe(float),
    "timeline": [card_shape()],
}


title = node_title


def tiles(content: Content) -> list[Tile]:
    tasks, measured, alone = content["tasks"], content.get("measured"), content.get("baseline_s")
    found = [
        passed_tile("verdicts", [row["ok"] for row in content["rows"]]),
        passed_tile("pods as expected", [_as_expected(task) for task in tasks]),
    ]
    pods = [len(card["tasks"]) for card in content["timeline"]]
    if pods:
        each = f"{min(pods)}" if min(pods) == max(pods) else f"{min(pods)} to {max(pods)}"
        found.append(Tile("GPUs", str(len(pods)), f"with {each} pods each"))
    if measured is not None:
        beside = f"{measured['duration_s'] / alone:.2f} × that of a whole GPU" if alone else "of its loop"
        found.append(Tile("a pod takes", _seconds(measured["duration_s"]), beside))
        found.append(Tile("all together", f"{measured['its']:.1f} it/s", f"{measured['switches']} switches"))
    return found


def sections(content: Content) -> Iterator[Section]:
    yield checks_section(content["rows"])
    cards = [card for card in content["timeline"] if card["seconds"] > 0]
    if cards:
        lead = "Who might use which card when, from the log of its scheduler, with the part of the time."
        legend = [("host-note", "pale: waited for the card")] if _waits(cards) else []
        yield Section("Timeline", lead, timeline_chart("timeline", cards), legend)
    yield from _bars(content)
    if cards:
        yield Section(
            "GPUs",
            "Seconds of the scheduler's clock; waiting is the mean over a card's pods.",
            table=_gpus(cards, content),
        )
    yield Section("Pods", table=_pods(content["tasks"]))
    if content["messages"]:
        yield Section("What failed pods said", lines=content["messages"])


def figures(content: Content) -> Iterator[Figure]:
    yield from check_figures(content["rows"])
    measured = content.get("measured")
    if measured is not None:
        yield Figure("all pods", "duration, s", measured["duration_s"], -1, "{:.2f}")
        yield Figure("all pods", "it/s", measured["its"], 1, "{:.2f}")
    yield from tables.figures(TaskResult, content["tasks"], lambda task: str(task["name"]))


def _as_expected(task: Row) -> bool:
    return bool(task["status"] == task["expected"])


def _waits(cards: Sequence[Row]) -> bool:
    return any(task.get("waited") for card in cards for task in card["tasks"])


def _bars(content: Content) -> Iterator[Section]:
    """Durations and speeds with their statistics. Pods stand below their GPU, in the colour of their lane."""
    alone = content.get("baseline_s")
    marks = [("whole", alone, f"on a whole GPU: {_seconds(alone)}")] if alone else []
    speed = content["request"]["speed"]
    clock = "" if speed == 1 else f" Seconds are those of simulated cards, {speed:g} times as fast as life."
    for heading, field, lead, form, unit in (
        ("Durations", "loop_seconds", f"Of each pod's own loop.{clock}", "{:.1f} s", " s"),
        ("Speeds", "its", f"Iterations per second of each pod.{clock}", "{:.1f} it/s", ""),
    ):
        tasks = [task for task in content["tasks"] if task[field] > 0]
        if not tasks:
            continue
        against = marks if field == "loop_seconds" else []
        rows = list(_rows(tasks, field, form, against, series_of(content["timeline"])))
        legend = [("whole", "one pod on a whole GPU")] if against else []
        chart = bar_chart(rows, f"{heading} of the pods", unit)
        yield Section(heading, lead, chart, legend, _statistics([task[field] for task in tasks], form))


def _rows(
    tasks: Sequence[Row], field: str, form: str, marks: Sequence[tuple[str, float, str]], series: Mapping[str, int]
) -> Iterator[BarRow]:
    plot = "speed" if field == "its" else "duration"
    in_lanes = sorted(tasks, key=lambda task: series.get(task["name"], len(series)))
    for gpu in dict.fromkeys(task["gpu"] for task in in_lanes):
        heading = shortened(gpu, _LETTERS)
        for place, task in enumerate(task for task in in_lanes if task["gpu"] == gpu):
            text = form.format(task[field])
            bar = Bar(task[field], f"{task['name']} on {gpu}: {text}", plot, series.get(task["name"], place))
            yield BarRow(task["name"], task["name"], [bar], text, marks, heading)
            heading = ""


def _statistics(values: Sequence[float], form: str) -> Table:
    most_of_least = f"{max(values) / min(values):.2f}"
    cells = [form.format(value) for value in (fmean(values), median(values), min(values), max(values))]
    return Table(
        ("pods", "mean", "median", "least", "most", "most / least"), [[str(len(values)), *cells, most_of_least]]
    )


def _gpus(cards: Sequence[Row], content: Content) -> Table:
    speeds = {task["name"]: task["its"] for task in content["tasks"]}

    def held(card: Row) -> list[list[Span]]:
        return [[Span(*span) for span in task["held"]] for task in card["tasks"]]

    def used(card: Row) -> str:
        return _seconds(spans.length(spans.merged(span for each in held(card) for span in each)))

    def waited(card: Row) -> str:
        each = [spans.length(Span(*span) for span in task.get("waited") or ()) for task in card["tasks"]]
        return _seconds(fmean(each)) if each else ""

    columns: Cells = (
        ("GPU", lambda card: card["gpu"]),
        ("node", lambda card: card.get("node") or ""),
        ("pods", lambda card: str(len(card["tasks"]))),
        ("in use", used),
        ("two or more at once", lambda card: _seconds(spans.length(spans.at_once(held(card))))),
        ("waited", waited),
        ("it/s", lambda card: f"{sum(speeds.get(task['task'], 0.0) for task in card['tasks']):.1f}"),
    )
    return Table.of(cards, columns)


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _pods(tasks: Sequence[Row]) -> Table:
    placed: Cells = (("node", lambda task: task.get("node") or ""), ("", lambda task: verdict(_as_expected(task))))
    return Table.of(tasks, [*cells(TaskResult), *placed])
