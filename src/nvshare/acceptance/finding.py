"""Findings: one promise that was tested, what was expected and what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from nvshare.bench.columns import JUDGED, Column, Compared, Row
from nvshare.bench.spans import Span


@dataclass(frozen=True)
class Verdict:
    """What a check saw.

    ``ok`` is None where the check could not be made; ``seen`` then says why. ``timeline``: when each task made
    progress, in seconds since the check began to watch it.
    """

    seen: str
    ok: bool | None
    timeline: Mapping[str, Sequence[Span]] = field(default_factory=dict)


def _passed(row: Row) -> float | None:
    return None if row["ok"] is None else float(row["ok"])


_KEPT = Compared("passed", 1, "{:.0f}", value=_passed, chance=lambda row: 0.0)


@dataclass(frozen=True)
class Finding:
    """The verdict on one check. ``title`` names the check for people; ``seconds`` is None where nobody measured."""

    check: Annotated[str, Column("check", cell=lambda row: row.get("title") or row["check"])]
    expected: Annotated[str, Column("expected")]
    seen: Annotated[str, Column("seen")]
    ok: Annotated[bool | None, replace(JUDGED, compared=_KEPT)]
    title: str = ""
    seconds: Annotated[float | None, Column("seconds", "{:.1f}")] = None
    timeline: Mapping[str, Sequence[Span]] = field(default_factory=dict)

    @staticmethod
    def of(check: str, verdict: Verdict, expected: str = "", title: str = "", seconds: float | None = None) -> Finding:
        return Finding(check, expected, verdict.seen, verdict.ok, title, seconds, verdict.timeline)

    @property
    def name(self) -> str:
        return self.title or self.check

    def to_dict(self) -> dict[str, Any]:
        """As a row of JSON: without a title or a timeline where there is none."""
        row = {
            "check": self.check,
            "title": self.title,
            "expected": self.expected,
            "seen": self.seen,
            "ok": self.ok,
            "seconds": None if self.seconds is None else round(self.seconds, 2),
            "timeline": {
                task: [[round(span.begin, 3), round(span.end, 3)] for span in spans]
                for task, spans in self.timeline.items()
            },
        }
        return {name: value for name, value in row.items() if value or name not in ("title", "timeline")}
