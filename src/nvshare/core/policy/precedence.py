"""Precedence of settings: who wins when several parties set the same quota.

Guarantees: an operator's value hides what the group was opened with, and both hide the environment of its processes,
whatever the order in which they arrive. The environment therefore sets a start value and never raises one. Clearing the
operator's value brings back what lies below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Layers(Generic[T]):
    operator: T | None = None
    opened: T | None = None
    environment: T | None = None

    @property
    def effective(self) -> T | None:
        if self.operator is not None:
            return self.operator
        return self.opened if self.opened is not None else self.environment

    @property
    def origin(self) -> str | None:
        """Which layer the value in force is from; None where there is none."""
        layers = (("operator", self.operator), ("run", self.opened), ("environment", self.environment))
        return next((name for name, value in layers if value is not None), None)

    def start_with(self, value: T | None) -> None:
        """A process brings this value from its environment; it counts only where nobody has set one before."""
        if self.effective is None:
            self.environment = value
