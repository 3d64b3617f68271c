"""Whose bytes are on the cards: requests for memory, and the targets that clients are told.

``policy/admission.py`` says whether a request may be granted at all, ``policy/residency.py`` how much each client may
have on the card. This module carries both out. A request whose bytes must be on the card at once waits until there is
room. It is looked at again whenever something changes on its card, so it is answered or ends with its client.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from nvshare.core.memory import ledger
from nvshare.core.memory.headroom import MIB, extra, fixed, limit, oversubscribed
from nvshare.core.memory.policy.admission import Crowd, Denial, Holding, admit, keep_check
from nvshare.core.memory.policy.residency import Claim, Stake, plan, steps
from nvshare.core.memory.selection import waiters
from nvshare.core.sleep.lifecycle import State
from nvshare.core.state import Attachment, Client, Denied, GpuState, HeldRequest, Node, Standing

ON_THE_CARD = (Standing.RUNNING, Standing.DRAINING, Standing.STUCK)


class Residency:
    def __init__(self, node: Node) -> None:
        self.node = node

    # --- requests for memory

    def request(self, attachment: Attachment, number: int, size: int, stays: bool = False) -> None:
        gpu = attachment.gpu
        if self._decide(HeldRequest(attachment, number, size, stays), first=not gpu.pending):
            self.node.commands.append(HoldMemory(attachment.client.id, gpu.uuid, number, size))

    def keep(self, attachment: Attachment, number: int, size: int) -> None:
        """Bytes that the client has already are to stay on the card for good."""
        settings, movable = self.node.settings, attachment.client.can_swap
        denial = None
        if oversubscribed(attachment.gpu) and settings.anti_thrash and movable:  # else no client makes room
            denial = keep_check(self._crowd(attachment, 0), size)
        if denial is not None:
            self._deny(attachment, number, size, denial)
            return
        ledger.keep(attachment, size)
        self.node.commands.append(KeepMemory(attachment.client.id, attachment.gpu.uuid, number, size))

    def answer(self, gpu: GpuState) -> None:
        """Look at the requests that wait, in their order: none that needs room is overtaken by another that does."""
        waiting, gpu.pending = gpu.pending, []
        for request in waiting:
            ledger.want(request.attachment, -request.size)
        first = True
        for request in waiting:
            if self._decide(request, first):
                first = False

    def forget(self, attachment: Attachment) -> None:
        """The client is gone, and its requests with it."""
        gpu = attachment.gpu
        gpu.pending = [request for request in gpu.pending if request.attachment is not attachment]
        ledger.want(attachment, -attachment.wanted)

    def _decide(self, request: HeldRequest, first: bool) -> bool:
        """Grant or deny; True when the request has to wait. ``first``: no request before it waits for room."""
        attachment, size = request.attachment, request.size
        gpu, node = attachment.gpu, self.node
        denial = self._denial(attachment, size, request.stays)
        if denial is not None:
            self._deny(attachment, request.number, size, denial)
            return False
        growth = attachment.need_with(size) - attachment.need
        if oversubscribed(gpu, size):
            if attachment.client.can_swap and attachment.standing not in ON_THE_CARD:
                if attachment.target > attachment.allocated:
                    self._retarget(attachment, attachment.allocated)  # the new bytes come with its turn
            elif growth and (not first or limit(gpu) - gpu.held < growth):
                gpu.pending.append(request)
                ledger.want(attachment, size)
                return True
            elif attachment.target < attachment.bound + growth or growth < size:
                self._retarget(attachment, attachment.bound + growth)
        elif attachment.target < attachment.allocated + size and attachment.whole:
            self._retarget(attachment, attachment.allocated + size)
        ledger.grant(attachment, size)
        node.counters.memory_granted += 1
        node.commands.append(GrantMemory(attachment.client.id, gpu.uuid, request.number, size))
        return False

    def _denial(self, attachment: Attachment, size: int, stays: bool) -> Denial | None:
        """Why a request cannot be granted, whoever makes room; None when it can."""
        gpu, group = attachment.gpu, attachment.client.group
        waiting = sum(request.size for request in gpu.pending if request.attachment.client.group is group)
        booked = group.allocated.get(gpu.uuid, 0) + waiting
        crowd = self._crowd(attachment, size) if oversubscribed(gpu, size) else None
        return admit(size, attachment.client.can_swap and not stays, group.mem_limit.effective, booked, crowd)

    def _crowd(self, attachment: Attachment, size: int) -> Crowd:
        """The attachment's card as admission sees it. ``size``: bytes asked for."""
        here, settings = attachment.gpu, self.node.settings
        beyond = sum(
            max(0, gpu.demand + (size if gpu is here else 0) - gpu.capacity) for gpu in self.node.gpus.values()
        )
        others = [_holding(other) for other in here.attachments.values() if other is not attachment]
        leaving = sum(min(one.context_here, _moving_context(one)) for one in here.attachments.values())
        return Crowd(
            max(0, here.capacity - here.overdrawn + leaving),
            _holding(attachment),
            others,
            settings.anti_thrash,
            settings.host_budget,
            beyond,
        )

    def _deny(self, attachment: Attachment, number: int, size: int, denial: Denial) -> None:
        uuid = attachment.gpu.uuid
        self.node.counters.memory_denied += 1
        attachment.denied += 1
        attachment.client.group.denied = Denied(uuid, size, denial.limit, denial.reason)
        self.node.commands.append(DenyMemory(attachment.client.id, uuid, number, size, denial.limit, denial.reason))

    # --- targets

    def move(self, gpu: GpuState) -> list[Attachment]:
        """Tell the clients of a card what they may have there now; the attachments that got a new target."""
        retargeted = []
        attachments: list[Attachment] = []
        stakes: list[Stake] = []
        for attachment, claim in self._order(gpu, *waiters(gpu)):
            attachments.append(attachment)
            stays = fixed(attachment)
            evictable = attachment.client.can_swap and attachment.standing is Standing.IDLE
            want = stays + extra(attachment)
            stakes.append(
                Stake(
                    claim,
                    want,
                    stays,
                    attachment.bound,
                    attachment.held,
                    evictable,
                    lacks=not attachment.whole,
                    silent=attachment.silent or attachment.client.sleep.state is not State.AWAKE,
                )
            )
        most, pressed = limit(gpu), bool(gpu.expecting)
        if gpu.called is not None:
            most, pressed = min(most, gpu.held + ledger.room(gpu, self.node.settings)), True
        for index, target in steps(stakes, plan(stakes, most, pressed), most):
            attachment = attachments[index]
            if target < attachment.bound or not attachment.whole:  # else it is room for what it has asked for
                self._retarget(attachment, min(target, attachment.allocated))
                retargeted.append(attachment)
        return retargeted

    def give_up(self, client: Client) -> None:
        """Tell a client that is to sleep to have nothing on its cards."""
        for attachment in client.gpus.values():
            if attachment.target > 0:
                self._retarget(attachment, 0)

    def reported(self, attachment: Attachment) -> None:
        """The client reported its memory. Either it keeps to its target now, or its time to do so begins anew."""
        if attachment.silent:
            ledger.silence(attachment, False)
        attachment.confirm_by = None
        self.watch(attachment)

    def watch(self, attachment: Attachment) -> None:
        """Begin or end the time in which this client has to keep to its target, while others wait for that."""
        if not owes(attachment):
            attachment.confirm_by = None
        elif attachment.confirm_by is None and not attachment.silent:
            attachment.confirm_by = self.node.now + self.node.settings.drain_deadline

    def is_overdue(self, attachment: Attachment) -> bool:
        return attachment.confirm_by is not None and attachment.confirm_by <= self.node.now

    def confront(self, attachment: Attachment) -> bool:
        """The client's time to keep to its target is over. True: it is silent from now on, and clients that fit beside
        what it has go on.

        A client that gives up all it should, and knows its target, gets the target again. If it lives, it answers, and
        something else fills the card.
        """
        attachment.confirm_by = None
        if not owes(attachment):
            return False
        gives = _too_much(attachment)
        if gives <= 0 and attachment.applied == attachment.number:
            self._retarget(attachment, min(attachment.target, attachment.allocated))
            return False
        client, gpu, deadline = attachment.client, attachment.gpu, self.node.settings.drain_deadline
        brings = attachment.need - attachment.resident
        does = f"give up {gives // MIB} MB" if gives > 0 else f"bring {brings // MIB} MB"
        ledger.silence(attachment, True)
        text = (
            f"Client {client.hex} (pid {client.pid}) does not {does} on GPU {gpu.uuid}: "
            f"no answer within {deadline:g} s; the others go on beside what it has there"
        )
        self.node.commands.append(Log(Level.WARN, text))
        return True

    def prepare(self, gpu: GpuState) -> None:
        """Tell the holders how much of their memory may have to leave the card after them."""
        deficit = gpu.demand - limit(gpu)
        for attachment in gpu.running.values():
            size = min(deficit, extra(attachment))
            if attachment.client.can_swap and size > attachment.prepared:
                attachment.prepared = size
                self.node.commands.append(PrepareSwapOut(attachment.client.id, gpu.uuid, size))

    def _order(
        self, gpu: GpuState, able: list[Attachment], unable: list[Attachment]
    ) -> Iterator[tuple[Attachment, Claim]]:
        """The order in which clients will run. A client that drains stands where it will be afterwards, because it
        gives room up as soon as it can."""
        idle: list[Attachment] = []
        for attachment in gpu.attachments.values():
            if not attachment.client.can_swap or attachment.standing in (Standing.RUNNING, Standing.STUCK):
                yield attachment, Claim.RUNS
            elif not attachment.client.ticket:
                idle.append(attachment)
        for claim, waiting in ((Claim.NEXT, able), (Claim.SPARE, unable)):
            for attachment in waiting:
                if attachment.client.can_swap and attachment.standing is not Standing.STUCK:
                    yield attachment, claim
        idle.sort(key=_latest_first)
        for attachment in idle:
            yield attachment, Claim.SPARE

    def _retarget(self, attachment: Attachment, target: int) -> None:
        number = ledger.retarget(attachment, target)
        self.watch(attachment)
        self.node.commands.append(SetResidency(attachment.client.id, attachment.gpu.uuid, number, target))


def owes(attachment: Attachment) -> bool:
    """The client does not run, and has more on the card than its target allows; or its turn waits for bytes that its
    target allows."""
    if attachment.standing is not Standing.IDLE:
        return False
    client = attachment.client
    comes = client.sleep.is_here and not attachment.whole and attachment.target >= attachment.need
    return _too_much(attachment) > 0 or (bool(client.ticket) and comes)


def _too_much(attachment: Attachment) -> int:
    """Bytes that the client can still have on the card beyond its target, and could give up."""
    return attachment.held - max(attachment.bound, attachment.lasting)


def _holding(attachment: Attachment) -> Holding:
    """Unlike ``fixed``: bytes of a stuck client will move one day."""
    client = attachment.client
    lasting = min(attachment.pinned, attachment.allocated) if client.can_swap else fixed(attachment)
    return Holding(attachment.allocated + attachment.wanted + _moving_context(attachment), lasting, client.oversize)


def _moving_context(attachment: Attachment) -> int:
    """Unlike ``movable_context``: a client that is stuck or does not answer will be able to sleep one day."""
    client = attachment.client
    will_sleep = attachment.gpu.holds_contexts and client.sleep.allowed and client.may_sleep
    return attachment.context if will_sleep else attachment.movable_context


def _latest_first(attachment: Attachment) -> tuple[int, int]:
    """The client that ran last comes first; of clients whose turns ended together, the one that began first."""
    return -attachment.client.left, attachment.client.turn
