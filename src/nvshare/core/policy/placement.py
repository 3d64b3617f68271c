"""Least-loaded placement of leases.

Guarantees: a lease goes to the cards with the least (reserved cores, reserved bytes, leases, live clients), to
different ones where it wants several. A lease reserves its floor, without one its cap. Reservations never exceed 100 %
of a card's time or its bytes, and the floor of a lease fits beside all floors in force on its cards. Leases that want
the same card are served there in the order of arrival: a request that must wait keeps later ones from all cards it
could have had. So it waits only for what was held when it came, and for requests before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvshare.core.settings import Cores

WHOLE = 100  # percent of a card's time


@dataclass(frozen=True)
class Load:
    """What leases have reserved of one card, and what else is on it."""

    capacity: int  # bytes that can be reserved
    context: int  # bytes that a further process takes before it allocates anything
    cores: int = 0
    bytes: int = 0
    leases: int = 0
    clients: int = 0
    floors: int = 0  # in force, of leases and all others

    def footprint(self, mem: int | None) -> int:
        """What a lease with this quota reserves; never more than the card, or it would wait for ever."""
        return 0 if mem is None else min(mem + self.context, self.capacity)

    def fits(self, mem: int | None, cores: Cores | None) -> bool:
        """Whether a lease with these quotas can be reserved and its floor comes into force."""
        return self.has_place(mem, cores) and self.floors + floor_of(cores) <= WHOLE

    def has_place(self, mem: int | None, cores: Cores | None) -> bool:
        """Whether a lease with these quotas can be reserved, whatever becomes of its floor."""
        return self.cores + reserved(cores) <= WHOLE and self.bytes + self.footprint(mem) <= self.capacity

    @property
    def rank(self) -> tuple[int, int, int, int]:
        return self.cores, self.bytes, self.leases, self.clients


def reserved(cores: Cores | None) -> int:
    """The percent of a card's time that a lease with this quota reserves."""
    return 0 if cores is None else cores.weight


def floor_of(cores: Cores | None) -> int:
    return 0 if cores is None else cores.floor


def never(loads: Mapping[str, Load], among: Iterable[str], mem: int | None, count: int) -> str | None:
    """Why a lease can never be placed, whoever leaves; None: it can."""
    candidates = list(among)
    if count > len(candidates):
        return f"{count} GPUs are asked for, and there are {len(candidates)} to choose from"
    if mem is not None and sum(load.capacity >= mem for load in map(loads.__getitem__, candidates)) < count:
        largest = max(loads[uuid].capacity for uuid in candidates)
        return f"{mem} bytes are asked for, and the largest GPU to choose from has {largest}"
    return None


def place(
    loads: Mapping[str, Load], among: Sequence[str], mem: int | None, cores: Cores | None, count: int
) -> tuple[str, ...] | None:
    """The cards for a lease, least loaded first; None when there are not enough with room."""
    fitting = [uuid for uuid in among if loads[uuid].fits(mem, cores)]
    if len(fitting) < count:
        return None
    return tuple(sorted(fitting, key=lambda uuid: (loads[uuid].rank, uuid))[:count])
