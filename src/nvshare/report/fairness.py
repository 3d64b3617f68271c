"""Rows of ``nvshare bench fairness`` as text. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from nvshare.bench.columns import verdict
from nvshare.bench.fairness.rows import Row, Summary, promises, summary, task_text
from nvshare.report.tables import aligned

_WIDE = 80  # letters of a terminal
SHOWN = 5  # sets that are shown without -v: the worst


def summary_text(rows: Sequence[Row], *, on_card: bool = False) -> str:
    """What is promised, and what else stands out."""
    found = [["", "promise", "asked", "seen"]]
    found += [[verdict(each.ok), each.what, each.asked, each.seen] for each in promises(rows, on_card=on_card)]
    return "\n".join([*([aligned(found), ""] if len(found) > 1 else []), *figures(summary(rows))])


def figures(found: Summary) -> Iterator[str]:
    """A line for each figure that is known."""
    yield f"{found.sets} sets; got, of what is attainable:"
    if found.worst_ratio is not None:
        yield (
            f"  worst task of a set: smallest {found.worst_ratio:.3f}, 5th percentile {found.worst_ratio_p5:.3f}, "
            f"median {found.worst_ratio_median:.3f}"
        )
    if found.sum_ratio is not None:
        yield f"  sum of a set: smallest {found.sum_ratio:.3f}, median {found.sum_ratio_median:.3f}"
    if found.above_cap is not None:
        yield f"  largest excess over a cap: {found.above_cap:+.1f} points"
    if found.native_ratio is not None:
        yield f"  smallest share against time-slicing, in sets without quotas: {found.native_ratio:.3f}"


def row_line(row: Row) -> str:
    """One row, as soon as it is there."""
    worst = "not measured" if row.worst_ratio is None else f"worst {row.worst_ratio:.3f}"
    return "  ".join(filter(None, [verdict(row.ok), worst, row.what, row.note]))


def sets_text(rows: Sequence[Row], whole: bool) -> str:
    """A line per task and one per set; without ``whole`` of the worst sets only."""
    chosen = list(enumerate(rows, start=1))
    if not whole and len(rows) > SHOWN:
        chosen = sorted(chosen, key=lambda each: each[1].worst_ratio or 0.0)[:SHOWN]
    ways = [name for name in ("native", "mps", "model") if any(getattr(row, name) for row in rows)]
    lines = [["", "set", "task", "fair", "attainable", "got", *ways, "ratio"]]
    for number, row in chosen:
        lines += _of_set(number, row, ways)
    left = len(rows) - len(chosen)
    notes = [fill(f"set {number}: {row.note}", _WIDE, subsequent_indent="  ") for number, row in chosen if row.note]
    more = [f"{left} other sets are better: -v shows all"] if left else []
    return "\n".join([aligned(lines), *notes, *more])


def _of_set(number: int, row: Row, ways: Sequence[str]) -> Iterator[list[str]]:
    for place, task in enumerate(row.tasks):
        first = place == 0
        yield [
            verdict(row.ok) if first else "",
            str(number) if first else "",
            task_text(task),
            f"{row.fair[place]:.1f}",
            f"{row.attainable[place]:.1f}",
            _share(row.got, place),
            *(_share(getattr(row, way), place) for way in ways),
            _ratio(row, place),
        ]
    sums = [f"{sum(values):.1f}" if values else "" for values in (row.got, *(getattr(row, way) for way in ways))]
    ratio = "" if row.sum_ratio is None else f"{row.sum_ratio:.3f}"
    yield ["", "", "sum", f"{sum(row.fair):.1f}", f"{sum(row.attainable):.1f}", *sums, ratio]


def _share(values: Sequence[float] | None, place: int) -> str:
    return f"{values[place]:.1f}" if values else "-"


def _ratio(row: Row, place: int) -> str:
    return f"{row.got[place] / row.attainable[place]:.3f}" if row.got and row.attainable[place] else ""
