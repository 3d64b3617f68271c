"""Precedence of settings: who wins when several parties set the same quota.

Guarantees: the annotation of a pod hides what an operator set, that hides what the group was opened with, and all of
them hide the environment of its processes, whatever the order in which they arrive. The environment therefore sets a
start value and never raises one. Removing a value brings back what lies below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Layers(Generic[T]):
    """From the highest to the lowest."""

    annotation: T | None = None
    operator: T | None = None
    opened: T | None = None
    environment: T | None = None

    @property
    def effective(self) -> T | None:
        if self.annotation is not None:
            return self.annotation
        if self.operator is not None:
            return self.operator
        return self.opened if self.opened is not None else self.environment

    @property
    def origin(self) -> str | None:
        """Which layer the value in force is from; None where there is none."""
        names = ("annotation", "operator", "opened", "environment")
        return next((name for name in names if getattr(self, name) is not None), None)

    def start_with(self, value: T | None) -> None:
        """A process brings this value from its environment; the first one that a group is brought counts."""
        if self.environment is None:
            self.environment = value
