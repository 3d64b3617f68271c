"""A real scheduler with a deliberately wrong core: broken.py WHAT [options of nvshare-scheduler]."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nvshare.cli import scheduler as command
from nvshare.core import commands, events, leases
from nvshare.core.memory.policy import admission
from nvshare.core.policy.placement import Load
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Cores, Mode, Settings
from nvshare.daemon import serve

Rewrite = Callable[[events.Event], events.Event | None]  # None: the event is lost


class Misled(Scheduler):
    """It never gets to know some of what happens."""

    rewrite: Rewrite = staticmethod(lambda event: event)
    start_mode: Mode | None = None

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings if self.start_mode is None else replace(settings, mode=self.start_mode))

    def handle(self, event: events.Event) -> list[commands.Command]:
        heard = type(self).rewrite(event)
        return [] if heard is None else super().handle(heard)


def _misled(rewrite: Rewrite, start_mode: Mode | None = None) -> None:
    Misled.rewrite = staticmethod(rewrite)
    Misled.start_mode = start_mode
    serve.Scheduler = Misled  # type: ignore[attr-defined, assignment]


def always_parallel() -> None:
    def rewrite(event: events.Event) -> events.Event:
        if isinstance(event, events.GpuAdded):
            return replace(event, declared=event.total)
        return replace(event, mode=Mode.AUTO) if isinstance(event, events.SettingsChanged) else event

    _misled(rewrite)


def never_parallel() -> None:
    _misled(
        lambda event: replace(event, mode=Mode.SERIAL) if isinstance(event, events.SettingsChanged) else event,
        Mode.SERIAL,
    )


def survivor_starved() -> None:
    _misled(lambda event: None if isinstance(event, events.ClientGone) else event)


def memory_quota_ignored() -> None:
    admission.quota_check = lambda quota, booked, size: None


def compute_quota_ignored() -> None:
    _misled(lambda event: replace(event, core_limit=None) if isinstance(event, events.ClientRegistered) else event)


def all_on_one_card() -> None:
    def place(
        loads: Mapping[str, Load], among: Sequence[str], mem: int | None, cores: Cores | None, count: int
    ) -> tuple[str, ...] | None:
        return tuple(sorted(among)[:count])

    leases.place = place  # type: ignore[attr-defined]


def change_ignored() -> None:
    _misled(lambda event: None if isinstance(event, events.LimitsChanged) else event)


BROKEN: dict[str, Callable[[], None]] = {
    "always-parallel": always_parallel,
    "never-parallel": never_parallel,
    "survivor-starved": survivor_starved,
    "memory-quota-ignored": memory_quota_ignored,
    "compute-quota-ignored": compute_quota_ignored,
    "all-on-one-card": all_on_one_card,
    "change-ignored": change_ignored,
}


if __name__ == "__main__":
    BROKEN[sys.argv[1]]()
    command.main(sys.argv[2:])
