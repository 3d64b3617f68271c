"""Leases: reservations on cards, each with a group of quotas for the processes of whoever holds it.

A lease is asked for, waits, is held, and ends when its holder does. Should something of it still be on the card then,
its place is quarantined, with the reason, until that is gone. ``policy/placement.py`` says where a lease goes and who
is served first.
"""

from __future__ import annotations

from dataclasses import replace

from nvshare.core import events
from nvshare.core.commands import GroupAppeared, LeaseGranted, LeaseRefused, LeasesAwaitedNoMore, Level, Log
from nvshare.core.floors import Floors
from nvshare.core.limits import Limits
from nvshare.core.members import Members
from nvshare.core.policy.placement import Load, never, place, reserved
from nvshare.core.settings import SIZE_MAX
from nvshare.core.state import GpuState, Lease, Node, Reserved

MAX_WAITING = 4096
GRACE = 1.0  # seconds after a restart in which those who held a lease come back before others are served


class Leases:
    def __init__(self, node: Node, limits: Limits, members: Members, floors: Floors) -> None:
        self.node = node
        self.floors = floors
        self.limits = limits
        self.members = members

    def await_holders(self, event: events.LeasesAwaited) -> None:
        self.node.leases_awaited = self.node.now + GRACE

    def wait_no_longer(self) -> None:
        """Serve others when the holders of an earlier scheduler had their time."""
        until = self.node.leases_awaited
        if until is not None and until <= self.node.now:
            self.node.leases_awaited = None
            self.node.commands.append(LeasesAwaitedNoMore())
            self.serve()

    def request(self, event: events.LeaseRequested) -> None:
        """Grant, refuse, or let it wait."""
        problem = self._problem(event)
        if problem is not None:
            self._refuse(event.lease, problem)
            return
        among = tuple(self.node.gpus) if event.among is None else tuple(sorted(event.among))
        lease = Lease(event.lease, event.label, event.holder, event.mem, event.cores, event.count, among)
        if event.held:
            self._resume(lease, event.held)
            return
        loads = {uuid: self._load(self.node.gpus[uuid]) for uuid in among}
        problem = never(loads, among, lease.mem, lease.count)
        if problem is None and len(self.node.lease_queue) >= MAX_WAITING:
            problem = f"{MAX_WAITING} others wait for a lease already; try again later"
        if problem is not None:
            self._refuse(lease.id, problem)
            return
        self.node.leases[lease.id] = lease
        self.node.lease_queue[lease.id] = lease
        self.serve()

    def release(self, event: events.LeaseReleased) -> None:
        lease = self.node.leases.get(event.lease)
        if lease is None:
            self._log(Level.DEBUG, f"Ignored the end of unknown lease {event.lease}")
            return
        if self.node.lease_queue.pop(lease.id, None) is not None:
            del self.node.leases[lease.id]
        elif event.left:
            self._close(lease)
            if lease.quarantine != event.left:
                self._log(Level.INFO, f"Lease {lease.id} ended, its place is kept: {event.left}")
            lease.quarantine = event.left
            return
        else:
            self._close(lease)
            for uuid, taken in lease.reserved.items():
                _book(self.node.gpus[uuid].reserved, taken, -1)
            del self.node.leases[lease.id]
            self._log(Level.DEBUG, f"Released lease {lease.id}")
        self.serve()

    def _close(self, lease: Lease) -> None:
        """Its holder is gone."""
        if lease.held:
            self.members.close_lease(lease)
            self.limits.close(lease.group)

    def _problem(self, event: events.LeaseRequested) -> str | None:
        node = self.node
        if event.lease in node.leases:
            return f"lease {event.lease} is held or waited for already"
        if event.mem is not None and not 0 < event.mem <= SIZE_MAX:
            return f"{event.mem} bytes are not a memory quota: between 1 and {SIZE_MAX}"
        if event.cores is not None and not event.cores.allowed:
            return f"{event.cores}% is not a compute quota: between 1% and 100%, the floor at most the cap"
        if event.count < 1:
            return f"{event.count} GPUs are asked for: at least 1"
        named = (*(event.among or ()), *event.held)
        unknown = [uuid for uuid in named if uuid not in node.gpus]
        if unknown:
            return f"unknown GPU {unknown[0]}; this scheduler has {', '.join(node.gpus) or 'none'}"
        for uuids in (event.among or (), event.held):
            if len(set(uuids)) < len(uuids):
                return "a GPU is named twice"
        if event.held and len(event.held) != event.count:
            return f"{len(event.held)} GPUs were held, {event.count} are asked for"
        return None

    def _resume(self, lease: Lease, held: tuple[str, ...]) -> None:
        """What was held under an earlier scheduler is held on, if nobody else has got it meanwhile."""
        in_line = () if self.node.leases_awaited is not None else self.node.lease_queue.values()
        overtaken = any(set(held) & set(waiting.among) for waiting in in_line)
        fits = all(self._load(self.node.gpus[uuid]).has_place(lease.mem, lease.cores) for uuid in held)
        if overtaken or not fits:
            self._refuse(lease.id, f"lease {lease.id} is lost: its place on {', '.join(held)} was given to others")
            return
        # It is older than those that wait already, and is shown before them.
        newcomers = {name: self.node.leases.pop(name) for name in self.node.lease_queue}
        self.node.leases |= {lease.id: lease, **newcomers}
        self._grant(lease, held)

    def serve(self) -> None:
        """Grant what can be granted, in the order of arrival; who must wait is not overtaken on any of its cards."""
        node = self.node
        if not node.lease_queue or node.leases_awaited is not None:
            return
        loads = {uuid: self._load(gpu) for uuid, gpu in node.gpus.items()}
        blocked: set[str] = set()
        for lease in list(node.lease_queue.values()):
            if len(blocked) == len(loads):
                return
            open_to_it = [uuid for uuid in lease.among if uuid not in blocked]
            cards = place(loads, open_to_it, lease.mem, lease.cores, lease.count)
            if cards is None:
                blocked.update(lease.among)
                continue
            del node.lease_queue[lease.id]
            self._grant(lease, cards)
            for uuid in cards:
                loads[uuid] = self._load(node.gpus[uuid])

    def _grant(self, lease: Lease, cards: tuple[str, ...]) -> None:
        for uuid in cards:
            gpu = self.node.gpus[uuid]
            taken = Reserved(reserved(lease.cores), self._load(gpu).footprint(lease.mem), 1)
            lease.reserved[uuid] = taken
            _book(gpu.reserved, taken, 1)
        self.limits.open(lease.group, lease.label, lease.mem, lease.cores, None)
        self.members.open_lease(lease)
        inside = self.members.instead_of_lease(lease)
        if inside is None:
            self._claim(lease)
        self.node.commands.append(LeaseGranted(lease.id, cards, lease.group, inside))
        self.node.commands.append(GroupAppeared(lease.group, lease.pid))
        self.members.gather(lease.pid)
        self._log(Level.DEBUG, f"Granted lease {lease.id} on {', '.join(cards)}")

    def _claim(self, lease: Lease) -> None:
        """Its floor counts from now on, before a process of it is there."""
        for uuid in lease.reserved:
            self.floors.arrive(self.node.groups[lease.group], self.node.gpus[uuid])
            self.floors.settle_card(self.node.gpus[uuid])

    def _load(self, gpu: GpuState) -> Load:
        load = Load(capacity=reservable(self.node, gpu), context=gpu.largest_context if gpu.declared is None else 0)
        booked, floors = gpu.reserved, sum(group.floor_on(gpu.uuid) for group in gpu.claimants.values())
        return replace(
            load,
            cores=booked.cores,
            bytes=booked.bytes,
            leases=booked.leases,
            clients=len(gpu.attachments),
            floors=floors,
        )

    def _refuse(self, lease: str, reason: str) -> None:
        self.node.commands.append(LeaseRefused(lease, reason))

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))


def reservable(node: Node, gpu: GpuState) -> int:
    """Bytes of a card that leases may reserve. Unlike its capacity it does not change with the contexts on it."""
    if gpu.declared is not None:
        return gpu.declared
    return gpu.total * (100 - node.settings.reserve_percent) // 100


def _book(sums: Reserved, taken: Reserved, sign: int) -> None:
    sums.cores += sign * taken.cores
    sums.bytes += sign * taken.bytes
    sums.leases += sign
