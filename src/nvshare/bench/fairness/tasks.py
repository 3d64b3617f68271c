"""Tasks that compute and think, how they are written, and sets of them: given, fixed, or drawn by a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from nvshare.bench.workloads.spec import seeded

KERNEL_MS = 0.19  # of given sets and of the table
GPU_BOUNDS = (0.05, 10_000.0)  # milliseconds of one burst
HOST_BOUNDS = (0.0, 10_000.0)
KERNEL_BOUNDS = (0.01, 1_000.0)
PERCENT_BOUNDS = (1, 100)
MOST_TASKS = 16  # of a given set
GRAMMAR = "GPUms+HOSTms[@[floor]..[cap]]"

RANDOM, SMALL, LONG = "random", "small", "long"


@dataclass(frozen=True)
class Task:
    """Repeats: a burst of ``gpu_ms`` on the card in kernels of about ``kernel_ms``, a wait for its end, and ``host_ms``
    without the card. ``floor`` and ``cap`` are percent of the card's time."""

    gpu_ms: float
    host_ms: float = 0.0
    floor: int | None = None
    cap: int | None = None
    kernel_ms: float = KERNEL_MS

    @property
    def kernels(self) -> int:
        """Of one burst."""
        return max(1, round(self.gpu_ms / self.kernel_ms))

    @property
    def kernel_seconds(self) -> float:
        """The kernels of a burst are equally long, so that they add up to it."""
        return self.gpu_ms / self.kernels / 1000

    @property
    def want(self) -> float:
        """Percent of the card that it would use alone, without a quota."""
        return 100 * self.gpu_ms / (self.gpu_ms + self.host_ms)

    @property
    def has_quota(self) -> bool:
        return self.floor is not None or self.cap is not None

    def free(self) -> Task:
        """The same without a quota."""
        return replace(self, floor=None, cap=None)


Tasks = tuple[Task, ...]


def parse_task(written: str, kernel_ms: float = KERNEL_MS) -> Task:
    """``20+10``, ``20+0@..30``, ``5+15@20..60``; else ``ValueError``."""
    body, at, quota = written.partition("@")
    gpu, plus, host = body.partition("+")
    if not plus or (at and not quota):
        raise ValueError(f"{written!r} is not a task: {GRAMMAR}, e.g. 5+15@20..60")
    floor, cap = _quota(written, quota) if at else (None, None)
    gpu_ms = _number(written, "GPU time", gpu, GPU_BOUNDS)
    return Task(gpu_ms, _number(written, "host time", host, HOST_BOUNDS), floor, cap, kernel_ms)


def _number(written: str, what: str, digits: str, bounds: tuple[float, float]) -> float:
    low, high = bounds
    try:
        value = float(digits)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ValueError(f"{written!r}: the {what} {digits!r} is not a number from {low:g} to {high:g} (milliseconds)")
    return value


def _quota(written: str, quota: str) -> tuple[int | None, int | None]:
    floor_text, dots, cap_text = quota.partition("..")
    if not dots:
        floor_text, cap_text = "", quota
    if not floor_text and not cap_text:
        raise ValueError(f"{written!r}: the quota names neither a floor nor a cap, e.g. @30.. or @..60")
    floor = _percent(written, "floor", floor_text) if floor_text else None
    cap = _percent(written, "cap", cap_text) if cap_text else None
    if floor is not None and cap is not None and floor > cap:
        raise ValueError(
            f"{written!r}: the floor {floor} % is above the cap {cap} %: give a floor from {PERCENT_BOUNDS[0]} to {cap}"
        )
    return floor, cap


def _percent(written: str, what: str, digits: str) -> int:
    low, high = PERCENT_BOUNDS
    if not (digits.isascii() and digits.isdecimal() and low <= int(digits[:9]) <= high):
        raise ValueError(f"{written!r}: the {what} {digits!r} is not a whole number from {low} to {high} (percent)")
    return int(digits)


def parse_set(written: str, kernel_ms: float = KERNEL_MS) -> Tasks:
    """Tasks with blanks or commas between them; else ``ValueError``. Their floors add up to 100 at most."""
    tasks = tuple(parse_task(word, kernel_ms) for word in written.replace(",", " ").split())
    if not 1 <= len(tasks) <= MOST_TASKS:
        raise ValueError(f"{written!r} has {len(tasks)} tasks: give 1 to {MOST_TASKS}, as {GRAMMAR}")
    floors = sum(task.floor or 0 for task in tasks)
    if floors > PERCENT_BOUNDS[1]:
        raise ValueError(f"{written!r}: the floors add up to {floors} %: a card has {PERCENT_BOUNDS[1]} %")
    return tasks


TABLE = (
    "5+5 40+10",
    "20+10 20+0",
    "5+15 20+0",
    "5+15 5+15 20+0",
    "20+10@..60 20+0@..30",
    "5+15 20+0@..50",
    "5+15@..20 5+15@..20 20+0@..50",
    "5+15@20..60 20+0",
    "20+0@30.. 20+0",
)


def table(kernel_ms: float = KERNEL_MS) -> list[Tasks]:
    """The fixed sets."""
    return [parse_set(written, kernel_ms) for written in TABLE]


# --- drawn by a seed

_TASKS = (2, 5)
_BURST = {RANDOM: (3.0, 60.0), SMALL: (0.5, 3.0), LONG: (3.0, 60.0)}  # milliseconds
_KERNEL = {RANDOM: (0.05, 1.0), SMALL: (0.05, 1.0), LONG: (3.0, 50.0)}
_HOST = (2.0, 40.0)
_NEVER_THINKS = 0.3  # of the tasks
_WITH_QUOTAS = 0.4  # of the sets; none of small bursts, whose measure is time-slicing, which knows no quotas
_CAPPED = 0.5  # of the tasks of such a set; as many have a floor, some both
_CAP = (10, 90)
_FLOOR = (5, 60)


def drawn(seed: int, count: int, kind: str = RANDOM) -> list[Tasks]:
    """So many sets. The same seed gives the same sets; a longer list begins with the shorter one."""
    source = seeded(f"{kind} {seed}")
    return [_drawn_set(source, kind) for _ in range(count)]


def _drawn_set(source: Random, kind: str) -> Tasks:
    tasks = [_drawn_task(source, kind) for _ in range(source.randint(*_TASKS))]
    if kind == SMALL or source.random() >= _WITH_QUOTAS:
        return tuple(tasks)
    return tuple(_with_quotas(source, tasks))


def _drawn_task(source: Random, kind: str) -> Task:
    gpu_ms = round(source.uniform(*_BURST[kind]), 1)
    host_ms = 0.0 if source.random() < _NEVER_THINKS else round(source.uniform(*_HOST), 1)
    return Task(gpu_ms, host_ms, kernel_ms=round(source.uniform(*_KERNEL[kind]), 3))


def _with_quotas(source: Random, tasks: list[Task]) -> Iterator[Task]:
    """At least one task has a quota. Floors add up to 100 at most."""
    certain, left = source.randrange(len(tasks)), PERCENT_BOUNDS[1]
    for place, task in enumerate(tasks):
        cap = source.randint(*_CAP) if place == certain or source.random() < _CAPPED else None
        most = min(_FLOOR[1], left, cap or PERCENT_BOUNDS[1])
        floor = source.randint(_FLOOR[0], most) if source.random() < _CAPPED and most >= _FLOOR[0] else None
        left -= floor or 0
        yield replace(task, floor=floor, cap=cap)
