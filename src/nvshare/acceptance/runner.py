"""The runner of all acceptance commands: carries checks out in order and makes a finding of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from nvshare.acceptance.finding import Finding, Verdict

Place = TypeVar("Place")  # what checks look at: a node, a scene, evidence


class NotMade(Exception):
    """This check cannot be made here; the text says why."""


@dataclass(frozen=True)
class Check(Generic[Place]):
    """One promise and how it is tested."""

    name: str
    carry_out: Callable[[Place], Verdict]
    expected: str = ""
    title: str = ""

    def judge(self, place: Place) -> Finding:
        """Carry the check out on what is already known."""
        return Finding.of(self.name, self.carry_out(place), self.expected, self.title)


def run(
    checks: Iterable[Check[Place]],
    place: Place,
    begun: Callable[[Check[Place]], None] = lambda check: None,
    attempts: int = 1,
) -> Iterator[Finding]:
    """Carry checks out one after the other; findings come as they are made.

    A check that raises has failed, and the next one goes on. A check that fails is made again, up to ``attempts``
    times: a burst of other work on the host says nothing about nvshare. Ctrl-C ends the run: each check releases what
    it holds. Checks bound their own time.
    """
    for check in checks:
        begun(check)
        began = time.monotonic()
        verdict = _attempt(check, place)
        for number in range(2, attempts + 1):
            if verdict.ok is False:
                verdict = _attempt(check, place)
                verdict = replace(verdict, seen=f"{verdict.seen} (attempt {number})")
        yield Finding.of(check.name, verdict, check.expected, check.title, time.monotonic() - began)


def _attempt(check: Check[Place], place: Place) -> Verdict:
    try:
        return check.carry_out(place)
    except NotMade as reason:
        return Verdict(str(reason), None)
    except Exception as error:  # whatever goes wrong in a check, its promise was not kept
        return Verdict(f"{type(error).__name__}: {error}", ok=False)
