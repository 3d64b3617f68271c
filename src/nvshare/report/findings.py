"""Findings as text, and who made progress when. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from nvshare.acceptance.finding import Finding
from nvshare.bench.columns import BAD, GOOD, OPEN
from nvshare.report.bars import bars
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


def timelines(findings: Sequence[Finding], width: int = 80) -> list[str]:
    """Who made progress when, for the checks that watched that."""
    lines = []
    for finding in findings:
        end = max((span.end for spans in finding.timeline.values() for span in spans), default=0.0)
        if end:
            tasks = {task: {_BAR: spans} for task, spans in finding.timeline.items()}
            lines += [f"{finding.name}, {end:.1f} s:", *(f"  {bar}" for bar in bars(tasks, 0.0, end, width, _PAUSE))]
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
