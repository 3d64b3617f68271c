"""Two results side by side: what is better, what is worse, and what may be chance."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from nvshare.report.page.compare import compared, judge
from nvshare.report.page.kinds import NotAResult, recognised, stamped
from nvshare.report.page.page import comparison_page
from nvshare.report.tables import Figure


def figure(value: float, better: int = -1, spread: float | None = None, form: str = "{:g}") -> Figure:
    low, high = (None, None) if spread is None else (value - spread, value + spread)
    return Figure("row", "figure", value, better, form, low, high)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (figure(2.0), figure(2.08), "same"),
        (figure(2.0), figure(2.2), "worse"),
        (figure(2.0), figure(1.8), "better"),
        (figure(2.0, better=1), figure(1.8, better=1), "worse"),
        (figure(2.0, better=0), figure(1.8, better=0), "changed"),
        (figure(0.0), figure(0.0), "same"),
        (figure(0.0), figure(0.1), "worse"),
        # intervals are believed rather than the general noise, in both directions
        (figure(2.0, spread=0.3), figure(2.5, spread=0.3), "same"),
        (figure(2.0, spread=0.001), figure(2.01, spread=0.001), "worse"),
        (figure(2.0, spread=0.0), figure(2.0 + 1e-12, spread=0.0), "same"),
        (figure(2.0, spread=0.0), figure(2.001, spread=0.0), "worse"),
        # what differs by next to nothing is the same, and so is what shows the same digits
        (figure(1.0, spread=0.0), figure(1.0 + 2e-7, spread=0.0), "same"),
        (figure(1.0, spread=0.0), figure(1.0 - 2e-7, spread=0.0), "same"),
        (figure(123.456, spread=0.0), figure(123.457, spread=0.0), "same"),
        (figure(1.0, spread=0.0, form="{:.3f}"), figure(1.0004, spread=0.0, form="{:.3f}"), "same"),
        (figure(1.0, spread=0.0), figure(1.0004, spread=0.0), "worse"),
        (figure(0.0, spread=0.0, form="{:.3f}"), figure(1e-7, spread=0.0, form="{:.3f}"), "same"),
        (figure(0.001, spread=0.0, form="{:.2f}"), figure(0.004, spread=0.0, form="{:.2f}"), "worse"),
        # one interval alone says nothing of the other
        (figure(2.0, spread=0.001), figure(2.08), "same"),
    ],
)
def test_a_difference_counts_beyond_noise(before: Figure, after: Figure, verdict: str) -> None:
    assert judge(before, after, noise=0.05) == verdict


def test_a_mission_against_a_slower_one(mission: dict[str, Any]) -> None:
    slower = copy.deepcopy(mission)
    for row in slower["rows"]:
        if row["name"] == "4":
            row["ratio"] *= 1.2
    slower["rows"] = [row for row in slower["rows"] if row["name"] != "2x4"]
    comparison = compared(recognised(mission), recognised(slower), 0.05, ("a", "b"))
    found = {(row.row, row.name): row for row in comparison.rows}
    assert found["test 4", "ratio"].verdict == "worse"
    assert found["test 4", "ratio"].ratio == pytest.approx(1.2)
    assert found["test 2x4", "ratio"].verdict == "gone"
    assert {row.verdict for key, row in found.items() if key[0] not in ("test 4", "test 2x4")} == {"same"}
    # AND the page has a point for each that both have
    page = comparison_page(comparison)
    assert page.count('data-plot="change"') == sum(row.ratio is not None for row in comparison.rows)
    assert f'data-value="{found["test 4", "ratio"].ratio!r}"' in page
    assert "http" not in page.replace("http-equiv", "")


def test_checks_that_fail_now_are_worse() -> None:
    def result(ok: bool) -> dict[str, Any]:
        row = {"check": "memory quota", "expected": "x", "seen": "y", "ok": ok}
        return stamped("verify", {"source": "simulated", "node": "2 x T4", "rows": [row]})

    (row,) = compared(recognised(result(True)), recognised(result(False)), 0.05).rows
    assert (row.verdict, row.ratio) == ("worse", 0.0)
    (row,) = compared(recognised(result(False)), recognised(result(True)), 0.05).rows
    assert (row.verdict, row.ratio) == ("better", None)


def test_results_of_two_kinds_are_not_compared(mission: dict[str, Any]) -> None:
    other = stamped(
        "verify", {"source": "gpu", "node": "x", "rows": [{"check": "a", "expected": "", "seen": "", "ok": None}]}
    )
    with pytest.raises(NotAResult, match="a is of nvshare bench mission, b of nvshare verify: compare two of a kind"):
        compared(recognised(mission), recognised(other), 0.05, ("a", "b"))
