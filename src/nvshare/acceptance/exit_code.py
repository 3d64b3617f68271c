"""The exit code of acceptance commands."""

from __future__ import annotations

from collections.abc import Iterable

from nvshare.acceptance.finding import Finding

PASSED, FAILED, NOTHING_CHECKED = 0, 1, 2


def exit_code(findings: Iterable[Finding]) -> int:
    """0 passed, 1 failed, 2 nothing could be checked. A check that was not made does not count."""
    judged = [finding.ok for finding in findings if finding.ok is not None]
    if not judged:
        return NOTHING_CHECKED
    return PASSED if all(judged) else FAILED


def passed(findings: Iterable[Finding]) -> bool:
    return exit_code(findings) == PASSED
