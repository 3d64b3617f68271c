"""Rows of the bench as text. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from nvshare.bench.compute.rows import Row
from nvshare.report.text import table

_VERDICTS = {True: "ok", False: "FAIL", None: "-"}
_HEADINGS = ("part", "what", "how", "quotas", "expected", "delivered", "error", "of allowed", "", "more")
_SHOWN = {  # figures worth a place in the table, and how to say them
    "spread": "spread {:.1%}",
    "times_solo": "{} x solo",
    "p99_times_solo": "p99 {:.2f} x solo",
    "p99_ms": "p99 {:.1f} ms",
    "neighbour": "neighbour {:.1%}",
    "shown_after_ms": "shown after {} ms",
    "most_above_points": "above by {:+.1f} points",
    "longest_pauses_ms": "pauses {} ms",
    "native_its": "native {:g} steps/s",
    "solo_drift": "drift {:.1%}",
    "step_times_solo": "steps {} x solo",
    "kinds": "taken for {}",
    "host_stood_still_ms": "host stood still for {} ms",
}


def compute_table(rows: Sequence[Row]) -> str:
    """All rows in one plain table."""
    return table([_HEADINGS, *map(_cells, rows)])


def row_line(row: Row) -> str:
    """One row, as soon as it is there."""
    return "  ".join(filter(None, _cells(row)))


def _cells(row: Row) -> tuple[str, ...]:
    error = row.error_points
    return (
        row.part,
        row.what,
        row.how,
        "/".join("none" if quota is None else str(quota) for quota in row.quotas),
        _percent(row.expected),
        _percent(row.delivered),
        "" if error is None else f"{error:.2f}",
        "" if row.of_allowed is None else f"{100 * row.of_allowed:.1f} %",
        _VERDICTS[row.ok],
        _more(row),
    )


def _percent(shares: Sequence[float]) -> str:
    return "/".join(f"{100 * share:.1f}" for share in shares)


def _more(row: Row) -> str:
    figures = [form.format(_plain(row.figures[name])) for name, form in _SHOWN.items() if name in row.figures]
    return ", ".join(filter(None, [row.note, *figures]))


def _plain(value: object) -> object:
    if not isinstance(value, list):
        return value
    return "/".join("-" if each is None else each if isinstance(each, str) else f"{each:g}" for each in value)


def verdict(rows: Sequence[Row]) -> str:
    """What it comes to."""
    judged = [row for row in rows if row.ok is not None]
    failed = [row for row in judged if not row.ok]
    return f"{len(judged) - len(failed)} of {len(judged)} judged rows are as promised"


def simulated_note(source: str) -> str:
    """Said wherever figures are shown that no real card gave."""
    return f"These figures are {source}: speeds are claimed from real cards only."
