"""What a check found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvshare.bench.spans import Span


@dataclass(frozen=True)
class Verdict:
    """``ok`` is None where the check could not be made, and ``seen`` says why. ``timeline``: when each task made
    progress, in seconds since it was watched."""

    seen: str
    ok: bool | None
    timeline: Mapping[str, Sequence[Span]] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    check: str
    title: str
    expected: str
    verdict: Verdict
    seconds: float

    @property
    def ok(self) -> bool | None:
        return self.verdict.ok

    def to_dict(self) -> dict[str, Any]:
        row = {
            "check": self.check,
            "title": self.title,
            "expected": self.expected,
            "seen": self.verdict.seen,
            "ok": self.ok,
            "seconds": round(self.seconds, 2),
        }
        timeline = {
            task: [[round(span.begin, 3), round(span.end, 3)] for span in spans]
            for task, spans in self.verdict.timeline.items()
        }
        return {**row, "timeline": timeline} if timeline else row
