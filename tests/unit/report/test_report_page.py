"""Pages: what is drawn is what the rows say, nothing comes from elsewhere, and nothing that is not ours is drawn."""

from __future__ import annotations

import copy
import json
import math
from html.parser import HTMLParser
from typing import Any

import pytest

from nvshare.report.page import shapes, svg
from nvshare.report.page.kinds import NotAResult, parsed, recognised, stamped
from nvshare.report.page.page import result_page
from nvshare.report.page.shapes import Each, Maybe
from nvshare.report.page.written import as_json


class Marks(HTMLParser):
    """Every element of a page that plots something, and how elements are nested."""

    _VOID = {"meta"}  # noqa: RUF012

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self._VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "data-plot" in given:
            self.found.append(given)

    def values(self, plot: str) -> dict[str, list[float]]:
        """The plotted values of a kind, by row."""
        values: dict[str, list[float]] = {}
        for mark in self.found:
            if mark["data-plot"] == plot:
                values.setdefault(mark["data-row"], []).append(float(mark["data-value"]))
        return values

    def of(self, plot: str) -> list[dict[str, str]]:
        return [mark for mark in self.found if mark["data-plot"] == plot]


def marks(content: dict[str, Any]) -> Marks:
    page = Marks(result_page(recognised(content)))
    assert page.open == []  # every element is closed
    return page


def test_ratios_speeds_and_timelines_of_a_mission_are_those_of_its_rows(mission: dict[str, Any]) -> None:
    page = marks(mission)
    shared = [row for row in mission["rows"] if row["mode"] != "plain"]
    whole = [row for row in shared if not row["has_survivor"]]
    assert page.values("ratio") == {row["name"]: [row["ratio"]] for row in whole}
    assert page.values("serial") == {row["name"]: [row["tasks"] / row["gpus"]] for row in whole}
    assert page.values("speed") == {
        row["name"]: [row["baseline_s"] / task["loop_seconds"] for task in row["details"]] for row in whole
    }
    # AND every turn and every byte of every task is there
    turns = [
        (mark["data-row"], mark["data-gpu"], mark["data-task"], float(mark["data-begin"]), float(mark["data-end"]))
        for mark in page.of("held")
    ]
    lanes = [(row, card, task) for row in shared for card in row["timeline"] for task in card["tasks"]]
    assert turns == [
        (row["name"], card["gpu"], task["task"], *span) for row, card, task in lanes for span in task["held"]
    ]
    assert len(turns) > 20
    for plot, which in (("resident", 1), ("host", 2)):
        drawn = {(mark["data-row"], mark["data-task"]): json.loads(mark["data-points"]) for mark in page.of(plot)}
        assert drawn == {
            (row["name"], task["task"]): [[entry[0], entry[which]] for entry in task["memory"]]
            for row, _, task in lanes
            if any(entry[which] for entry in task["memory"])
        }


def test_places_follow_the_values(mission: dict[str, Any]) -> None:
    bars = marks(mission).of("ratio")
    longest, shortest = (pick(bars, key=lambda bar: float(bar["data-value"])) for pick in (max, min))
    ratio = float(longest["data-value"]) / float(shortest["data-value"])
    assert float(longest["width"]) / float(shortest["width"]) == pytest.approx(ratio, rel=0.01)


COMPUTE = stamped(
    "compute",
    {
        "source": "simulated",
        "machine": {"node": "1 x H200 (simulated)"},
        "rows": [
            {
                "part": "pairs",
                "what": "2 x add",
                "how": "nvshare",
                "quotas": [30, 60],
                "expected": [0.3, 0.6],
                "delivered": [0.2942, 0.5949],
                "of_allowed": 0.9879,
                "error_points": 0.58,
                "ok": True,
                "note": "",
                "figures": {"solo_drift": 0.002},
            },
            {
                "part": "free",
                "what": "2 x add",
                "how": "native",
                "quotas": [],
                "expected": [],
                "delivered": [0.45, 0.46],
                "of_allowed": 0.91,
                "error_points": None,
                "ok": None,
                "note": "",
                "figures": {"spread": 0.02},
            },
            {
                "part": "change",
                "what": "add alone: quota changes",
                "how": "nvshare",
                "quotas": [],
                "expected": [],
                "delivered": [],
                "of_allowed": None,
                "error_points": None,
                "ok": False,
                "note": "",
                "figures": {"shown_after_ms": [120, None], "steps": [[0.3, 0.8], [0.8, 0.2]]},
            },
        ],
    },
)


def test_shares_are_drawn_beside_the_quotas_they_belong_to() -> None:
    page = marks(COMPUTE)
    assert page.values("expected") == {"pairs: 2 x add 30/60": [0.3, 0.6]}
    assert page.values("delivered") == {
        "pairs: 2 x add 30/60": [0.2942, 0.5949],
        "free: 2 x add (native)": [0.45, 0.46],
    }
    assert page.values("shown_after_ms") == {"change: add alone: quota changes": [120.0]}
    assert "1 never" in page.text
    assert "not as promised" in page.text


VERIFY = stamped(
    "verify",
    {
        "source": "simulated",
        "node": "2 x T4 (simulated)",
        "rows": [
            {
                "check": "parallel",
                "title": "parallel when it fits",
                "expected": "both at once",
                "seen": "both",
                "ok": True,
                "seconds": 2.5,
                "timeline": {"one": [[0.0, 2.0]], "other": [[0.5, 1.0], [1.5, 2.5]]},
            },
            {"check": "memory-quota", "expected": "refused", "seen": "granted", "ok": False},
        ],
        "compare": [COMPUTE["rows"][1]],
    },
)


def test_checks_are_shown_with_what_was_expected_and_seen() -> None:
    page = marks(VERIFY)
    assert {"nvshare verify", "parallel when it fits", "both at once", "granted", "FAIL", "1 of 2"} <= set(page.text)
    spans = [(mark["data-task"], float(mark["data-begin"]), float(mark["data-end"])) for mark in page.of("held")]
    assert spans == [("one", 0.0, 2.0), ("other", 0.5, 1.0), ("other", 1.5, 2.5)]
    assert page.values("delivered") == {"free: 2 x add (native)": [0.45, 0.46]}


def test_pods_are_shown_on_their_cards_with_times_durations_and_speeds(kube: dict[str, Any]) -> None:
    page = marks(kube)
    assert {"2 add-small, auto", "on a Kubernetes cluster", "3 of 4", "node-1", "10.0 s"} <= set(page.text)
    assert "2.00 × that of a whole GPU" in page.text
    assert page.values("speed") == {"nvshare-small-1": [50.0], "nvshare-small-2": [50.0]}
    assert page.values("duration") == {"nvshare-small-1": [10.0], "nvshare-small-2": [10.0]}
    assert page.values("whole") == {"nvshare-small-1": [5.0], "nvshare-small-2": [5.0]}
    # AND every turn and every wait is drawn
    (card,) = kube["timeline"]
    for plot in ("held", "waited"):
        drawn = [
            (mark["data-gpu"], mark["data-task"], float(mark["data-begin"]), float(mark["data-end"]))
            for mark in page.of(plot)
        ]
        assert drawn == [(card["gpu"], task["task"], *span) for task in card["tasks"] for span in task[plot]]
        assert drawn


def test_pods_of_whole_gpus_have_a_page_without_any_timeline(kube: dict[str, Any]) -> None:
    page = marks({**kube, "timeline": [], "baseline_s": None, "measured": None})
    assert not page.of("held")
    assert page.values("speed") == {"nvshare-small-1": [50.0], "nvshare-small-2": [50.0]}


STRESS = {
    "source": "simulated",
    "title": "2 workers on 1 GPU",
    "passed": True,
    "cards": ["GPU-a"],
    "verdicts": [{"name": "success rate", "passed": True, "detail": "2 of 2"}],
    "faults": [{"name": "kill", "survived": None, "detail": "not made", "seconds": 0.0}],
    "workers": [
        {"worker": 1, "ok": True, "ops": 100, "seconds": 2.0, "uuid": "GPU-a"},
        {"worker": 0, "ok": False, "error": "gone"},
    ],
    "figures": {"ops_per_second": 50.0, "quota_percent": 50, "lease_wait_p50_s": 0.1, "lease_wait_p99_s": None},
    "occupied": [49.5],
    "timeline": [],
}


def test_workers_of_a_stress_test_have_their_speeds_and_shares() -> None:
    page = marks(stamped("stress", STRESS))
    assert page.values("speed") == {"1": [50.0]}
    assert page.values("delivered") == {"0": [49.5]}
    assert page.values("expected") == {"0": [50.0]}


def test_names_from_outside_are_text_and_never_markup(mission: dict[str, Any]) -> None:
    evil = "<script>alert(1)</script>\"'&"
    for row in mission["rows"]:
        row["title"] = evil
        for task in [*row["details"], *(task for card in row["timeline"] for task in card["tasks"])]:
            task["name" if "name" in task else "task"] = evil
    mission["findings"] = [evil]
    page = result_page(recognised(mission))
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert evil in Marks(page).text


def test_a_page_needs_nothing_from_elsewhere_and_forbids_it(mission: dict[str, Any]) -> None:
    page = result_page(recognised(mission))
    assert "http:" not in page
    assert "https:" not in page
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page
    assert not any(f"{word}=" in page for word in (" src", " href"))
    assert "url(" not in page
    assert "@import" not in page


def test_where_the_figures_come_from_is_said(mission: dict[str, Any]) -> None:
    assert "modelled: the real scheduler core, cards and time computed" in marks(mission).text
    assert "measured on real cards" in marks({**mission, "source": "gpu"}).text


def test_a_task_that_never_ran_leaves_a_gap_and_not_an_error(mission: dict[str, Any]) -> None:
    row = next(row for row in mission["rows"] if row["name"] == "4")
    row["details"][0] |= {"loop_seconds": 0.0, "its": 0.0, "status": "FAIL"}
    row |= {"passed": False, "timeline": []}
    page = marks(mission)
    assert len(page.values("speed")["4"]) == len(row["details"]) - 1
    assert "1 not as promised" in page.text


# --- what is not ours


def broken(content: dict[str, Any], path: str, value: object = None) -> str:
    """The content with one place changed, or, without a value, taken away."""
    changed = copy.deepcopy(content)
    place: Any = changed
    *way, last = (int(step) if step.isdecimal() else step for step in path.split("."))
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(changed)


def test_what_is_not_a_result_is_named_in_one_line(mission: dict[str, Any]) -> None:
    whole = json.dumps(mission)
    cases = {
        "": "it is empty",
        "  \n": "it is empty",
        whole[: len(whole) // 2]: "it is not JSON, or was cut off (",
        "[1, 2]": "it is not a result of nvshare: it does not say of which kind it is",
        '"text"': "it is not a result of nvshare",
        "[" * 100_000: "it is not ",
        broken(mission, "kind"): "it does not say of which kind it is",
        broken(mission, "kind", 7): "it does not say of which kind it is",
        broken(mission, "kind", "weather"): "'weather' is no kind of result: known are mission, demo, swap",
        broken(mission, "version"): "it has version None of nvshare bench mission, this nvshare reads version 1",
        broken(mission, "version", 2): "it has version 2 of nvshare bench mission, this nvshare reads version 1",
        broken(mission, "rows"): "it is no result of nvshare bench mission: rows is missing",
        broken(mission, "rows", []): "it has no rows",
        broken(mission, "rows", {"a": 1}): "rows is not a list",
        broken(mission, "rows.0", 1): "rows[0] is not an object",
        broken(mission, "rows.0.ratio", "2"): "rows[0].ratio is not a number",
        broken(mission, "rows.0.ratio", math.nan): "rows[0].ratio is not a number",
        broken(mission, "rows.0.passed", 1): "rows[0].passed is not true or false",
        broken(mission, "rows.3.timeline.0.tasks.0.held.0", [1.0]): "tasks[0].held[0] is not a list of 2",
    }
    for text, explanation in cases.items():
        with pytest.raises(NotAResult) as caught:
            parsed(text)
        assert explanation in str(caught.value), text[:40]
        assert "\n" not in str(caught.value)


def test_shapes_allow_what_may_be_missing_and_tell_numbers_from_truths() -> None:
    shape = {"a": Maybe(float), "b": [(str, int)]}
    assert shapes.problem({"b": []}, shape) is None
    assert shapes.problem({"a": None, "b": [["x", 1]], "more": {}}, shape) is None
    assert shapes.problem({"a": True, "b": []}, shape) == "a is not a number"
    assert shapes.problem({"a": 10**400, "b": []}, shape) == "a is not a number"
    assert shapes.problem({"b": [["x", True]]}, shape) == "b[0][1] is not a whole number"
    assert shapes.problem(1, bool, "c") == "c is not true or false"
    assert shapes.problem({"x": 1, "y": "z"}, Each(int), "d") == "d.y is not a whole number"
    assert shapes.problem({"b": [["x", 1], ["x", 1.5]]}, shape) == "b[1][1] is not a whole number"


# --- drawing and writing


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 316, [0, 100, 200, 300]),
        (0.88, 1.12, [0.9, 0.95, 1.0, 1.05, 1.1]),
        (0, 4.2e10, [0, 1e10, 2e10, 3e10, 4e10]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_and_within_the_range(low: float, high: float, expected: list[float]) -> None:
    assert svg.ticks(low, high) == pytest.approx(expected)


def test_an_axis_ends_at_a_round_value_beyond_the_largest() -> None:
    assert [svg.ceiling(value) for value in (0, 0.97, 4.086, 103.0)] == [1.0, 1.0, 5.0, 120.0]


def test_what_is_out_of_sight_is_drawn_at_the_edge() -> None:
    scale = svg.Scale(0.5, 1.5, 100, 200)
    assert [scale.inside(value) for value in (-3, 1.0, 9)] == [100, 150, 200]


def test_json_is_the_same_value_in_fewer_lines() -> None:
    value = {"a": [1, 2.5, None], "b": [[1, 2]] * 40, "c": [{"d": ()}], "e": {}, "f": 'quo"te', "g": [], "ü": True}
    text = as_json(value)
    assert json.loads(text) == json.loads(json.dumps(value))
    assert '"a": [1, 2.5, null],' in text
    assert text.count("[1, 2]") == 40
