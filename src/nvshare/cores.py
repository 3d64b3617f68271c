"""A compute quota, in percent of one card: its floor, its cap, and the form in which people write both."""

from __future__ import annotations

import re
from dataclasses import dataclass

LEAST, WHOLE = BOUNDS = (1, 100)  # percent of one card's time
FORMS = f"use 60, 30..60 (30 guaranteed, at most 60) or 30.., in whole percent from {LEAST} to {WHOLE}"
ALLOWED = f"a whole number from {LEAST} to {WHOLE}, 30..60 or 30.. (30 guaranteed)"

_FORM = re.compile(r"(?:0*(\d{1,3})%?)?(?:(\.\.)(?:0*(\d{1,3})%?)?)?", re.ASCII)


@dataclass(frozen=True)
class Cores:
    """What a group is guaranteed of each of its cards, and the most that it gets there."""

    floor: int = 0  # 0: nothing is guaranteed
    cap: int = WHOLE  # WHOLE: all that is left

    @staticmethod
    def parse(text: str) -> Cores:
        """A quota from ``60``, ``30..60``, ``30..`` or ``..60``, each number with or without ``%``. ``ValueError`` says
        what is allowed."""
        match = _FORM.fullmatch(text)
        numbers = [int(number) for number in match.group(1, 3) if number] if match else []
        if match is None or not numbers or not all(LEAST <= number <= WHOLE for number in numbers):
            raise ValueError(f"{text!r} is not a compute quota: {FORMS}")
        if not match[2]:
            return Cores(cap=numbers[0])
        quota = Cores(int(match[1] or 0), int(match[3] or WHOLE))
        if not quota.allowed:
            raise ValueError(f"{text!r} guarantees {quota.floor} and allows only {quota.cap}: {FORMS}")
        return quota

    @staticmethod
    def of(value: Cores | int | str) -> Cores:
        """A quota from a number, which is the cap, or from text. ``ValueError`` says what is allowed."""
        quota = value if isinstance(value, Cores) else Cores.parse(str(value))
        if isinstance(value, bool) or not quota.allowed:
            raise ValueError(f"{str(value)!r} is not a compute quota: {FORMS}")
        return quota

    @property
    def weight(self) -> int:
        """What it counts beside others: its floor, else its cap."""
        return self.floor or self.cap

    @property
    def allowed(self) -> bool:
        return 0 <= self.floor <= self.cap and LEAST <= self.cap <= WHOLE

    @property
    def plain(self) -> int | str:
        """As JSON has it: the cap alone, as it always was, or the text where something is guaranteed."""
        return str(self) if self.floor else self.cap

    def __str__(self) -> str:
        """The form that ``parse`` reads."""
        if not self.floor:
            return str(self.cap)
        return f"{self.floor}.." if self.cap == WHOLE else f"{self.floor}..{self.cap}"
