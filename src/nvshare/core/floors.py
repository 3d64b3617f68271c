"""Floors on the cards: which of them are in force, and what is said of those that are not.

``policy/floors.py`` decides. A group counts on a card while it has a client there, or holds a lease of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from nvshare.core.commands import Level, Log
from nvshare.core.policy.floors import WHOLE, Claim, in_force, room
from nvshare.core.state import GpuState, Group, Node

LEASE = "lease:"


class Floors:
    def __init__(self, node: Node) -> None:
        self.node = node
        self._touched: dict[str, dict[str, Group]] = {}  # by card: groups that came, left or changed there
        self._changed: dict[str, Group] = {}  # whose floors in force changed
        self._freed = False

    def arrive(self, group: Group, gpu: GpuState) -> None:
        """The group is on this card now."""
        gpu.claimants[group.id] = group
        self._touched.setdefault(gpu.uuid, {})[group.id] = group

    def changed(self, group: Group) -> None:
        """The quota of the group changed, or it left a card."""
        for gpu in self.node.gpus.values():
            if group.id in gpu.claimants:
                self._touched.setdefault(gpu.uuid, {})[group.id] = group

    def problem(self, group: Group, floor: int) -> str | None:
        """Why a group cannot be given this floor on the cards where it is, in words for an operator; None: it can."""
        for gpu in self.node.gpus.values():
            left = room(self._in_force(gpu), group.id)
            if group.id in gpu.claimants and floor > left:
                return (
                    f"{floor}% of GPU {gpu.uuid} cannot be guaranteed to {group.title}: {self._holders(gpu, group)}, "
                    f"which leaves {left}% of {WHOLE}%; guarantee less, or lower or end one of these first"
                )
        return None

    def settle(self) -> tuple[list[Group], bool]:
        """Bring into force what has room. Returns the groups whose floors in force changed since the last call, and
        whether a card has more room than before."""
        for uuid in list(self._touched):
            self.settle_card(self.node.gpus[uuid])
        changed, freed = list(self._changed.values()), self._freed
        self._changed.clear()
        self._freed = False
        return changed, freed

    def settle_card(self, gpu: GpuState) -> None:
        """The same of one card, for who needs to know its room at once."""
        touched = self._touched.pop(gpu.uuid, {}).values()
        if not any(_concerns(group, gpu) for group in touched):
            self._forget_absent(touched, gpu)
            return
        before = sum(self._in_force(gpu).values())
        self._forget_absent(touched, gpu)
        claims = [
            Claim(group.id, group.cores.floor, group.floor_on(gpu.uuid))
            for group in gpu.claimants.values()
            if _concerns(group, gpu)
        ]
        floors = in_force(claims)
        for claim in claims:
            if floors[claim.group] != claim.held:
                group = gpu.claimants[claim.group]
                group.floors[gpu.uuid] = floors[claim.group]
                self._changed[group.id] = group
        for claim in claims:
            self._tell(gpu.claimants[claim.group], gpu)
        self._freed |= sum(floors.values()) < before

    def _forget_absent(self, groups: Iterable[Group], gpu: GpuState) -> None:
        for group in groups:
            if not is_on(self.node, group, gpu):
                del gpu.claimants[group.id]
                group.floors.pop(gpu.uuid, None)
                group.missed.pop(gpu.uuid, None)

    def _tell(self, group: Group, gpu: GpuState) -> None:
        """Log a floor that finds no room, once, and that it is in force later."""
        wanted, held = group.cores.floor, group.floor_on(gpu.uuid)
        missed = group.missed.get(gpu.uuid)
        if held == wanted:
            if missed == wanted:
                self._log(Level.INFO, f"{wanted}% of GPU {gpu.uuid} is guaranteed to {group.title} from now on")
            group.missed.pop(gpu.uuid, None)
        elif missed != wanted:
            group.missed[gpu.uuid] = wanted
            self._log(Level.WARN, self._shortage(group, gpu))

    def shortage(self, group: Group) -> str | None:
        """Why the group has not its floor on some card, in words; None: it has it on all."""
        short = (gpu for uuid, gpu in self.node.gpus.items() if uuid in group.missed)
        return next((self._shortage(group, gpu) for gpu in short), None)

    def _shortage(self, group: Group, gpu: GpuState) -> str:
        return (
            f"{group.cores.floor}% of GPU {gpu.uuid} is not guaranteed to {group.title} yet, only "
            f"{group.floor_on(gpu.uuid)}%: {self._holders(gpu, group)}, and floors add up to {WHOLE}% at most; "
            f"it is as soon as there is room: lower or end one of these"
        )

    def _in_force(self, gpu: GpuState) -> dict[str, int]:
        return {name: group.floor_on(gpu.uuid) for name, group in gpu.claimants.items()}

    def _holders(self, gpu: GpuState, but: Group) -> str:
        others = (group for group in gpu.claimants.values() if group is not but and group.floor_on(gpu.uuid))
        return ", ".join(f"{group.title} has {group.floor_on(gpu.uuid)}%" for group in others) or "nobody has a floor"

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))


def _concerns(group: Group, gpu: GpuState) -> bool:
    """Whether the group has, wants or wanted a floor on this card."""
    return bool(group.cores.floor or group.floor_on(gpu.uuid) or gpu.uuid in group.missed)


def is_on(node: Node, group: Group, gpu: GpuState) -> bool:
    """Whether a group has a client on a card, or holds a lease of it."""
    if node.groups.get(group.id) is not group:
        return False
    lease = node.leases.get(group.id.removeprefix(LEASE)) if group.id.startswith(LEASE) else None
    return group.cards[gpu.uuid] > 0 or (lease is not None and lease.held and gpu.uuid in lease.reserved)
