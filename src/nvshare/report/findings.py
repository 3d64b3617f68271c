"""Findings as text, and who made progress when. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from nvshare.acceptance.verify.finding import Finding
from nvshare.bench.spans import Span, covered

_WORDS = {True: "PASS", False: "FAIL", None: "-"}
_COLORS = {True: "green", False: "bold red", None: "dim"}
_BAR, _PAUSE = "█", "·"


def findings_table(findings: Sequence[Finding]) -> Table:
    table = Table(show_lines=True)
    for heading in ("check", "expected", "seen", "", "seconds"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    for finding in findings:
        word = f"[{_COLORS[finding.ok]}]{_WORDS[finding.ok]}[/]"
        table.add_row(finding.title, finding.expected, finding.verdict.seen, word, f"{finding.seconds:.1f}")
    return table


def finding_line(finding: Finding) -> str:
    """One finding, as soon as it is there."""
    return f"[{_WORDS[finding.ok]}] {finding.title}: {finding.verdict.seen} ({finding.seconds:.1f} s)"


def bars(tasks: Mapping[str, Sequence[Span]], end: float, width: int, begin: float = 0.0) -> list[str]:
    """A line per task from one moment to another: where a bar is, it was at it for most of that time."""
    label = max(map(len, tasks), default=0)
    cell = (end - begin) / width
    return [f"{task:<{label}}  {_bar(spans, begin, cell, width)}" for task, spans in tasks.items()]


def _bar(spans: Sequence[Span], begin: float, cell: float, width: int) -> str:
    line = ""
    for number in range(width):
        left, right = begin + number * cell, begin + (number + 1) * cell
        line += _BAR if covered(spans, left, right) * 2 > cell else _PAUSE
    return line


def timelines(findings: Sequence[Finding], width: int = 80) -> list[str]:
    """Who made progress when, for the checks that watched that."""
    lines = []
    for finding in findings:
        tasks = finding.verdict.timeline
        end = max((span.end for spans in tasks.values() for span in spans), default=0.0)
        if end:
            lines += [f"{finding.title}, {end:.1f} s:", *(f"  {bar}" for bar in bars(tasks, end, width))]
    return lines


def summary(findings: Sequence[Finding]) -> str:
    """What it comes to, naming what failed."""
    failed = [finding.title for finding in findings if finding.ok is False]
    judged = [finding for finding in findings if finding.ok is not None]
    if failed:
        return f"FAILED: {', '.join(failed)} ({len(failed)} of {len(judged)} checks)"
    left_out = len(findings) - len(judged)
    if not judged:
        return f"NOTHING CHECKED: {left_out} not made here"
    return f"PASSED: {len(judged)} checks" + (f", {left_out} not made here" if left_out else "")
