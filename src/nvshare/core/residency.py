"""Whose bytes are on the cards: requests for memory, and the targets that clients are told.

``policy/admission.py`` says whether a request may be granted at all, ``policy/residency.py`` who may have how much on
the card; here both are carried out. A request whose bytes must be on the card at once waits until they have room there;
it is looked at again whenever something changed on its card, so it is answered or dies with its client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvshare.core import ledger
from nvshare.core.commands import (
    DenyMemory,
    GrantMemory,
    HoldMemory,
    KeepMemory,
    Level,
    Log,
    PrepareSwapOut,
    SetResidency,
)
from nvshare.core.policy.admission import Denial, admit, keep_check
from nvshare.core.policy.multiprogramming import MIB, extra, fixed, limit, oversubscribed, room
from nvshare.core.policy.residency import Claim, Stake, plan, steps
from nvshare.core.state import Attachment, Client, Denied, GpuState, HeldRequest, Node, Standing

ON_THE_CARD = (Standing.RUNNING, Standing.DRAINING, Standing.STUCK)


class Residency:
    def __init__(self, node: Node) -> None:
        self.node = node

    # --- requests for memory

    def request(self, place: Attachment, number: int, size: int, stays: bool = False) -> None:
        gpu = place.gpu
        if self._decide(HeldRequest(place, number, size, stays), first=not gpu.pending):
            self.node.commands.append(HoldMemory(place.client.id, gpu.uuid, number, size))

    def keep(self, place: Attachment, number: int, size: int) -> None:
        """Bytes that the client has already are to stay on the card for good."""
        denial = keep_check(place, size, self.node.settings)
        if denial is not None:
            self._deny(place, number, size, denial)
            return
        ledger.keep(place, size)
        self.node.commands.append(KeepMemory(place.client.id, place.gpu.uuid, number, size))

    def answer(self, gpu: GpuState) -> None:
        """Look at the requests that wait, in their order; who needs room is not overtaken by others who do."""
        waiting, gpu.pending, gpu.wanted, gpu.room = gpu.pending, [], 0, None
        for request in waiting:
            request.place.wanted = 0
        first = True
        for request in waiting:
            if self._decide(request, first):
                first = False

    def forget(self, place: Attachment) -> None:
        """The client is gone: nobody waits for its answers."""
        gpu = place.gpu
        gpu.pending = [request for request in gpu.pending if request.place is not place]
        gpu.wanted -= place.wanted
        place.wanted = 0
        gpu.room = None

    def _decide(self, request: HeldRequest, first: bool) -> bool:
        """Grant or deny; True when it has to wait. ``first``: nobody before it waits for room."""
        place, size = request.place, request.size
        gpu, node = place.gpu, self.node
        denial = admit(place, size, request.stays, node.gpus.values(), node.settings)
        if denial is not None:
            self._deny(place, request.number, size, denial)
            return False
        growth = place.need_with(size) - place.need
        if gpu.allocated + gpu.wanted + size > gpu.capacity:
            if place.client.can_swap and place.standing not in ON_THE_CARD:
                if place.target > place.allocated:
                    self._tell(place, place.allocated)  # the new bytes come into being when its turn comes
            elif growth and (not first or limit(gpu) - gpu.held < growth):
                gpu.pending.append(request)
                gpu.wanted += size
                place.wanted += size
                gpu.room = None
                return True
            elif place.target < place.bound + growth or growth < size:
                self._tell(place, place.bound + growth)
        elif place.target < place.allocated + size and place.whole:
            self._tell(place, place.allocated + size)
        ledger.grant(place, size)
        node.counters.memory_granted += 1
        node.commands.append(GrantMemory(place.client.id, gpu.uuid, request.number, size))
        return False

    def _deny(self, place: Attachment, number: int, size: int, denial: Denial) -> None:
        uuid = place.gpu.uuid
        self.node.counters.memory_denied += 1
        place.client.group.denied = Denied(uuid, size, denial.limit, denial.reason)
        self.node.commands.append(DenyMemory(place.client.id, uuid, number, size, denial.limit, denial.reason))

    # --- targets

    def move(
        self, gpu: GpuState, waiters: Callable[[GpuState], tuple[list[Attachment], list[Attachment]]]
    ) -> list[Attachment]:
        """Tell the clients of a card what they may have there now; those who were told. ``waiters``: those who wait and
        can run, and those who cannot whoever makes room."""
        told = []
        places: list[Attachment] = []
        stakes: list[Stake] = []
        for place, claim in self._order(gpu, *waiters(gpu)):
            places.append(place)
            stays = fixed(place)
            evictable = place.client.can_swap and place.standing is Standing.IDLE
            want = stays + extra(place)
            stakes.append(
                Stake(claim, want, stays, place.bound, place.held, evictable, lacks=not place.whole, deaf=place.silent)
            )
        most = limit(gpu)
        for index, target in steps(stakes, plan(stakes, most, pressed=bool(gpu.expecting)), most):
            place = places[index]
            if target < place.bound or not place.whole:  # else it is room for what it has asked for
                self._tell(place, min(target, place.allocated))
                told.append(place)
        return told

    def reported(self, place: Attachment) -> None:
        """The client has spoken of its memory: it has done what it should, or has time anew to do so."""
        if place.silent:
            ledger.silence(place, False)
        place.confirm_by = None
        self.watch(place)

    def watch(self, place: Attachment) -> None:
        """Others wait for what this client was told to do with its memory, or no longer do."""
        if not owes(place):
            place.confirm_by = None
        elif place.confirm_by is None and not place.silent:
            place.confirm_by = self.node.now + self.node.settings.drain_deadline

    def is_overdue(self, place: Attachment) -> bool:
        return place.confirm_by is not None and place.confirm_by <= self.node.now

    def confront(self, place: Attachment) -> bool:
        """The time for what it was told is over. True: it says nothing, and whoever fits beside what it has goes on.
        One that knew what to do is asked again: if it lives it says so, and the card is full of something else."""
        place.confirm_by = None
        if not owes(place):
            return False
        gives = _too_much(place)
        if gives <= 0 and place.applied == place.number:
            self._tell(place, min(place.target, place.allocated))
            return False
        does = f"give up {gives // MIB} MB" if gives > 0 else f"bring {(place.need - place.resident) // MIB} MB"
        ledger.silence(place, True)
        deadline = self.node.settings.drain_deadline
        text = (
            f"Client {place.client.hex} (pid {place.client.pid}) does not {does} on GPU {place.gpu.uuid}: no answer "
            f"within {deadline:g} s; the others go on beside what it has there"
        )
        self.node.commands.append(Log(Level.WARN, text))
        return True

    def prepare(self, gpu: GpuState) -> None:
        """Tell those who run, and for whose place others wait, how much may have to leave the card after them."""
        deficit = gpu.allocated + gpu.wanted - limit(gpu)
        for place in gpu.running.values():
            size = min(deficit, extra(place))
            if place.client.can_swap and size > place.prepared:
                place.prepared = size
                self.node.commands.append(PrepareSwapOut(place.client.id, gpu.uuid, size))

    def _order(
        self, gpu: GpuState, able: list[Attachment], unable: list[Attachment]
    ) -> Iterator[tuple[Attachment, Claim]]:
        """The order in which clients will run. Those who drain stand where they will be: they are the ones to give
        room up as soon as they can."""
        idle: list[Attachment] = []
        for place in gpu.attachments.values():
            if not place.client.can_swap or place.standing in (Standing.RUNNING, Standing.STUCK):
                yield place, Claim.RUNS
            elif not place.client.ticket:
                idle.append(place)
        for claim, waiting in ((Claim.NEXT, able), (Claim.SPARE, unable)):
            for place in waiting:
                if place.client.can_swap and place.standing is not Standing.STUCK:
                    yield place, claim
        idle.sort(key=_latest_first)
        for place in idle:
            yield place, Claim.SPARE

    def _tell(self, place: Attachment, target: int) -> None:
        number = ledger.retarget(place, target)
        self.watch(place)
        self.node.commands.append(SetResidency(place.client.id, place.gpu.uuid, number, target))


def owes(place: Attachment) -> bool:
    """It does not run, and was told to give bytes up and has not; or its turn waits for bytes that it was told to
    bring."""
    if place.standing is not Standing.IDLE:
        return False
    return _too_much(place) > 0 or (bool(place.client.ticket) and not place.whole and place.target >= place.need)


def _too_much(place: Attachment) -> int:
    """Bytes it can still have on the card beyond what it may, and could give up."""
    return place.held - max(place.bound, place.lasting)


def can_ever_run(client: Client) -> bool:
    """On each of its cards it is there already, or fits beside what cannot be moved there now."""
    for place in client.gpus.values():
        if place.silent:
            return False
        if place.whole or not oversubscribed(place.gpu):
            continue
        here = room(place.gpu)
        if not here.for_each and extra(place) > here.whole:
            return False
    return True


def _latest_first(place: Attachment) -> tuple[int, int]:
    """Who ran last comes first; of those whose turns ended together, who began first."""
    return -place.client.left, place.client.turn
