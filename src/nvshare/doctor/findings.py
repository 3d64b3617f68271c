"""What a check says: a state, what was seen, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum


class State(IntEnum):
    """From best to worst."""

    OK = 0
    NOTE = 1  # good to know; nothing has to be done
    WARNING = 2  # sharing works, but not as well or not for everything
    PROBLEM = 3  # sharing does not work

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Verdict:
    state: State
    seen: str
    remedy: str = ""


Verdicts = Iterator[Verdict]


@dataclass(frozen=True)
class Finding:
    check: str
    state: State
    seen: str
    remedy: str


def ok(seen: str) -> Verdict:
    return Verdict(State.OK, seen)


def note(seen: str, remedy: str = "") -> Verdict:
    return Verdict(State.NOTE, seen, remedy)


def warning(seen: str, remedy: str) -> Verdict:
    return Verdict(State.WARNING, seen, remedy)


def problem(seen: str, remedy: str) -> Verdict:
    return Verdict(State.PROBLEM, seen, remedy)


def worst(findings: Iterable[Finding]) -> State:
    return max((finding.state for finding in findings), default=State.OK)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: nothing to do, 1: warnings, 2: problems."""
    return max(0, worst(findings) - State.NOTE)
