"""Who on the cards is no client: statically linked and setuid programs, other users, desktops.

NVML says which processes have memory on a card. Most of them are clients; of the others a look into ``/proc`` tells
whether they have ``libnvshare.so`` in them. Those that have it are on their way to us (or away from us), and count as
outsiders only if they stay so. The same goes for numbers that mean nothing here: a process that has ended and whose
memory the driver has yet to free, or one of another pid namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from nvshare.core.events import Unmanaged, UnmanagedSeen
from nvshare.daemon import identity
from nvshare.gpu.cards import ProcessMemory

DOUBT = 10.0  # seconds that a process may be in doubt before it counts
WORTH_REPORTING = 1 << 20  # bytes; smaller changes are noise
UNSEEN = "a process that cannot be seen from here"


@dataclass(frozen=True)
class Look:
    """What ``/proc`` says of a process."""

    name: str  # empty: there is no such process, or it is ending
    preloaded: bool  # libnvshare.so is in it
    ancestors: tuple[int, ...]


def look_at(pid: int) -> Look:
    """Its memory map may be closed to us: then it belongs to another user, or is setuid."""
    name = identity.read(f"/proc/{pid}/comm") if pid else None
    if not name or not name.strip():
        return Look("", False, ())
    ancestors = tuple(identity.ancestry(pid))
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as maps:
            first = maps.readline()
            preloaded = any("libnvshare.so" in line for line in maps)
    except OSError:
        return Look(name.strip(), False, ancestors)
    return Look(name.strip() if first else "", preloaded, ancestors)


class Outsiders:
    """Turns samples into ``UnmanagedSeen``. ``looks`` may be made in another thread, the rest happens in one."""

    def __init__(self, look: Callable[[int], Look] = look_at) -> None:
        self._look = look
        self._doubted: dict[int, float] = {}  # process id -> since when
        self._told: dict[str, tuple[Unmanaged, ...]] = {}

    def looks(self, taken: ProcessMemory, clients: Collection[int]) -> dict[int, Look]:
        """A look at each process that is no client. Takes a while."""
        return {pid: self._look(pid) for pid in {pid for _, pid in taken} if pid not in clients}

    def seen(
        self, now: float, taken: ProcessMemory, looks: Mapping[int, Look], clients: Collection[int]
    ) -> Iterator[UnmanagedSeen]:
        """The cards whose outsiders changed. ``clients``: their process ids now, 0 for one that has none here."""
        numbers = {pid for _, pid in taken}
        strangers = {pid: look for pid, look in looks.items() if pid in numbers and pid not in clients}
        doubted = {pid: look for pid, look in strangers.items() if not look.name or look.preloaded}
        self._doubted = {pid: self._doubted.get(pid, now) for pid in doubted}
        # Where NVML's numbers are those of another namespace, clients would pass for strangers.
        numbers_are_ours = 0 not in clients and (not clients or not numbers.isdisjoint(clients))
        counted = {
            pid
            for pid, look in strangers.items()
            if pid not in doubted
            or (self._is_certain(pid, now) and not _is_of(look, clients) and (look.name or numbers_are_ours))
        }
        found: dict[str, list[Unmanaged]] = {gpu: [] for gpu in self._told}
        for (gpu, pid), size in sorted(taken.items()):
            if pid in counted and size != 0:
                found.setdefault(gpu, []).append(Unmanaged(pid, strangers[pid].name or UNSEEN, size))
        for gpu, users in found.items():
            if _differ(self._told.get(gpu, ()), users):
                self._told[gpu] = tuple(users)
                yield UnmanagedSeen(now, gpu, tuple(users))

    def _is_certain(self, pid: int, now: float) -> bool:
        return now - self._doubted[pid] >= DOUBT


def _is_of(look: Look, clients: Collection[int]) -> bool:
    """A client's child that has the library too: had it a context of its own, it would be a client itself."""
    return look.preloaded and not set(look.ancestors).isdisjoint(clients)


def _differ(before: Collection[Unmanaged], after: Collection[Unmanaged]) -> bool:
    if [(user.pid, user.name) for user in before] != [(user.pid, user.name) for user in after]:
        return True
    sizes = ((old.bytes, new.bytes) for old, new in zip(before, after, strict=True))
    return any(
        (old is None) is not (new is None) or abs((old or 0) - (new or 0)) >= WORTH_REPORTING for old, new in sizes
    )
