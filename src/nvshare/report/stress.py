"""The report of a stress test as text. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.acceptance.stress.run import Report
from nvshare.acceptance.stress.verdicts import Figures
from nvshare.report.findings import finding_line


def lines(report: Report) -> Iterator[str]:
    """Verdicts, faults, figures, and what it comes to."""
    yield from map(finding_line, report.verdicts)
    yield from (finding_line(fault, "fault, ") for fault in report.faults)
    if report.load is not None:
        yield from _figures(report.load.figures)
    yield "PASSED" if report.passed else "FAILED"


def _figures(figures: Figures) -> Iterator[str]:
    beyond = figures.quota_error_points
    measured = "not measured" if beyond is None else f"{beyond:+.1f} points at most (reported, not judged)"
    wait, worst = figures.lease_wait_p50_s or 0.0, figures.lease_wait_p99_s or 0.0
    yield f"operations per second: {figures.ops_per_second:.1f}"
    yield f"compute quota {figures.quota_percent:.0f} %, beyond it: {measured}"
    yield f"wait for a lease: {wait * 1e3:.1f} ms at the median, {worst * 1e3:.1f} ms at the 99th percentile"
