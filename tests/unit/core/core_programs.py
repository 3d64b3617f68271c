"""Clients of the random world as they see themselves: what they have, and what they have not read yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nvshare.core import commands as c
from nvshare.core.state import NO_TARGET


@dataclass
class Held:
    """What a client believes it has on one card, and what it has not read yet."""

    allocated: int = 0
    released: int = 0
    grant: int = 0
    exclusive: bool = False
    dropped: bool = False
    drain_by: float = 0.0
    resident: int = 0
    pinned: int = 0
    target: int = NO_TARGET
    applied: int = 0
    confirmed: int = 0  # the target it last said it keeps to
    has_target: bool = False  # it was given a target, or brought some of its memory on the host
    inbox: deque[c.SetResidency | c.GrantMemory] = field(default_factory=deque)

    @property
    def promised(self) -> int:
        """Allocated, as the scheduler sees it."""
        return self.allocated + sum(letter.bytes for letter in self.inbox if isinstance(letter, c.GrantMemory))

    def last_target(self) -> int:
        targets = [letter.target for letter in self.inbox if isinstance(letter, c.SetResidency)]
        return targets[-1] if targets else self.target

    def most(self) -> int:
        """The most that can ever be on the card by what was said so far."""
        target, allocated = self.target, self.allocated
        best = max(self.resident, min(target, allocated))
        for letter in self.inbox:
            if isinstance(letter, c.SetResidency):
                target = letter.target
            else:
                allocated += letter.bytes
            best = max(best, min(target, allocated))
        return best

    def read(self) -> None:
        """Take in one message; memory that may be on the card comes into being there."""
        letter = self.inbox.popleft()
        if isinstance(letter, c.SetResidency):
            assert letter.number == self.applied + 1, "targets are numbered one after the other"
            self.target, self.applied = letter.target, letter.number
        else:
            self.allocated += letter.bytes
            if self.resident + letter.bytes <= self.target:
                self.resident += letter.bytes

    def move(self, chunk: int) -> bool:
        """One chunk towards the target."""
        before = self.resident
        if self.resident > self.target:
            self.resident -= max(0, min(chunk, self.resident - max(self.target, self.pinned)))
        else:
            self.resident += min(chunk, min(self.target, self.allocated) - self.resident)
        return self.resident != before


@dataclass
class Program:
    """One client as it sees itself."""

    id: int
    group: str
    gpus: dict[str, Held] = field(default_factory=dict)
    waits: bool = False
    can_swap: bool = True
    oversize: bool = False  # may be larger than a card

    def unmovable(self, uuid: str) -> int:
        held = self.gpus[uuid]
        return min(held.pinned, held.promised) if self.can_swap else held.promised
