"""Findings as text, and who made progress when. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from nvshare.acceptance.finding import Finding
from nvshare.bench.columns import BAD, GOOD, OPEN
from nvshare.bench.spans import Span, covered
from nvshare.report.tables import cells

_WORDS = {True: "PASS", False: "FAIL", None: "SKIP"}
_COLORED = {GOOD: Text("PASS", "green"), BAD: Text("FAIL", "bold red"), OPEN: Text("-", "dim")}
_BAR, _PAUSE = "█", "·"


def finding_line(finding: Finding, kind: str = "") -> str:
    """One finding. ``kind`` is said before its name."""
    took = "" if finding.seconds is None else f" ({finding.seconds:.1f} s)"
    return f"[{_WORDS[finding.ok]}] {kind}{finding.name}: {finding.seen}{took}"


def findings_table(findings: Sequence[Finding]) -> Table:
    table = Table(show_lines=True)
    columns = cells(Finding)
    for heading, _ in columns:
        table.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    for finding in findings:
        texts = [cell(finding.to_dict()) for _, cell in columns]
        table.add_row(*(_COLORED.get(text, Text(text)) for text in texts))
    return table


def bars(tasks: Mapping[str, Sequence[Span]], end: float, width: int, begin: float = 0.0) -> list[str]:
    """A line per task from one moment to another: where a bar is, it was at it for most of that time."""
    label = max(map(len, tasks), default=0)
    cell = (end - begin) / width
    return [f"{task:<{label}}  {_bar(spans, begin, cell, width)}" for task, spans in tasks.items()]


def _bar(spans: Sequence[Span], begin: float, cell: float, width: int) -> str:
    edges = [begin + number * cell for number in range(width + 1)]
    return "".join(_BAR if covered(spans, left, right) * 2 > cell else _PAUSE for left, right in pairwise(edges))


def timelines(findings: Sequence[Finding], width: int = 80) -> list[str]:
    """Who made progress when, for the checks that watched that."""
    lines = []
    for finding in findings:
        end = max((span.end for spans in finding.timeline.values() for span in spans), default=0.0)
        if end:
            lines += [f"{finding.name}, {end:.1f} s:", *(f"  {bar}" for bar in bars(finding.timeline, end, width))]
    return lines


def summary(findings: Sequence[Finding]) -> str:
    """What it comes to, naming what failed."""
    failed = [finding.name for finding in findings if finding.ok is False]
    judged = [finding for finding in findings if finding.ok is not None]
    if failed:
        return f"FAILED: {', '.join(failed)} ({len(failed)} of {len(judged)} checks)"
    left_out = len(findings) - len(judged)
    if not judged:
        return f"NOTHING CHECKED: {left_out} not made here"
    return f"PASSED: {len(judged)} checks" + (f", {left_out} not made here" if left_out else "")
