"""Compute slices: which clients may use a card's engines now, among those that hold its grant (docs/compute.md).

Exclusive slices follow one another. Slices of launch-bound clients and of gangs overlap them, bounded by their caps
alone. ``terms.py`` says which clients take slices at all, ``policy/order.py`` whose slice is next and for how long.
Slices begin and end only below a grant. Memory turns depend on them in one point: a client without compute credit does
not keep memory from clients that have some; the scheduler asks here (``short_of_credit``) and ends its turn.

Like those of ``memory/turns.py`` the public methods leave cards to be looked at again, and ``settle`` does that once
per event.
"""

from __future__ import annotations

from nvshare.core.broken import InvariantBroken
from nvshare.core.commands import EndSlice, GiveSlice, Level, Log
from nvshare.core.compute.account import Account
from nvshare.core.compute.lifecycle import Change, IllegalChange, State, after
from nvshare.core.compute.policy.bill import Usage, bill
from nvshare.core.compute.policy.constants import ENDS_BY, GRAIN, LONG, LONGEST, OFTEN, PAUSE, STUCK
from nvshare.core.compute.policy.order import Claim, goes_on, next_claim
from nvshare.core.compute.state import CardCompute, Slice
from nvshare.core.compute.terms import Terms, open_slices, overlaps
from nvshare.core.events import SliceOver
from nvshare.core.settings import SliceEnd
from nvshare.core.state import Attachment, Client, GpuState, Group, Node, Standing
from nvshare.core.timers import Alarms

TICK = 1e-6  # seconds; what is due within this is due at the next look
SPEAK_BY = 1.5 * STUCK  # seconds after the end of a slice in which its client reports, even that its work is stuck


class Slices:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.terms = Terms(node)
        self.alarms: Alarms[str] = Alarms()
        self._unsettled: dict[str, GpuState] = {}
        self._last_slice = 0

    # --- what clients do

    def request(self, attachment: Attachment) -> None:
        """The client has work and no slice."""
        state = attachment.compute
        state.speaks, state.ignorant = True, False
        if not state.in_slices or attachment.standing is not Standing.RUNNING:
            self._log(
                Level.DEBUG, f"Ignored REQ_TURN of client {attachment.client.hex}: it needs no turn, or has no grant"
            )
        elif state.state is State.HELD:
            if state.slice is not None and not state.slice.told_to_end:
                self._send(state.slice)  # it asks for what it has; perhaps it did not know
        else:
            self._ask(attachment)

    def over(self, attachment: Attachment, event: SliceOver) -> None:
        """The client reports the end of a slice, or of work that ran on after one."""
        state = attachment.compute
        state.speaks = True
        slice = state.overrun if state.slice is None or state.slice.number != event.number else state.slice
        if slice is None or slice.number != event.number:
            self._log(
                Level.DEBUG, f"TURN_OVER {event.number} of client {attachment.client.hex}: that turn was over before"
            )
        else:
            self._reported(slice, event)
        entitled = attachment.standing is Standing.RUNNING and state.in_slices
        if event.wants and entitled and state.state is not State.HELD:
            self._ask(attachment)
        self._unsettled[attachment.gpu.uuid] = attachment.gpu

    def _reported(self, slice: Slice, event: SliceOver) -> None:
        """The slice's client submits no more."""
        attachment, now = slice.attachment, self.node.now
        state = attachment.compute
        if slice.closed_at is None:
            slice.closed_at = now
            self._change(attachment, Change.CLOSE)
        if event.pending <= 0.0:
            self._ended(slice, event)
        elif event.reason is SliceEnd.OVERRUN:
            self._runs_on(slice, event)
        else:
            self._account(slice, event.used, event.pending)
            slice.due = now + min(event.pending, SPEAK_BY)
            slice.deadline = slice.due + ENDS_BY
            state.again = state.again or event.wants

    def _ended(self, slice: Slice, event: SliceOver) -> None:
        """All work of the slice has ended."""
        attachment, state = slice.attachment, slice.attachment.compute
        self._note_overlap(slice, event.used)
        self._account(slice, event.used, 0.0)
        if event.reason is not SliceEnd.OVERRUN and state.overrun is not slice:
            idle = slice.patience if event.reason is SliceEnd.IDLE else 0.0
            if not (event.wants or state.again):
                state.rhythm.ended(max(slice.given_at, self.node.now - idle))
            if self.terms.judge(slice, event.busy, event.used):
                self.look(attachment.gpu)
        again = state.again and state.slice is slice
        self._forget(slice, Change.END)
        if again:
            self._ask_again(attachment)

    def _runs_on(self, slice: Slice, event: SliceOver) -> None:
        """The slice's client no longer waits for its work, and may have another slice. The work is a kernel of seconds,
        or one that waits for what is still to be submitted. It is billed for as long as the client says that it runs.
        """
        card, state, now = slice.attachment.gpu.compute, slice.attachment.compute, self.node.now
        self._account(slice, event.used, 0.0)
        slice.deadline = now + ENDS_BY
        if state.overrun is slice:
            return
        if state.overrun is not None:
            self._forget(state.overrun, Change.STICK)
        if slice.handed_at is None:
            slice.handed_at = now
        if card.exclusive is slice:
            card.exclusive = None
        card.shared.pop(slice.attachment.client.id, None)
        card.lingering[slice.number] = slice
        self._change(slice.attachment, Change.STICK)
        again, state.again = state.again, False
        state.slice, state.overrun = None, slice
        if again:
            self._ask_again(slice.attachment)

    def used(self, attachment: Attachment, occupied: float) -> None:
        """The client reported the seconds, in all, in which it occupied the card."""
        state, now = attachment.compute, self.node.now
        if occupied > attachment.occupied:
            self._touch(attachment)
            if state.in_slices and not state.speaks and not state.ignorant and self.terms.ignores(state):
                state.ignorant = True
                self._log(Level.INFO, f"Client {attachment.client.hex} knows no compute turns: it runs freely")
                self.look(attachment.gpu)
        state.delivered.note(now, occupied)

    def remove(self, client: Client) -> None:
        """The client is gone: forget its slices on all cards."""
        for attachment in client.gpus.values():
            self._void(attachment)
        self.cards_changed(client)

    def cards_changed(self, client: Client) -> None:
        """The client uses another card, or one less. That may change the terms of its whole group."""
        for uuid in {**client.gpus, **client.group.cards}:
            self.look(self.node.gpus[uuid])

    def look(self, gpu: GpuState) -> None:
        """Have the terms on this card reviewed: grants, quotas, settings or the kind of a client changed."""
        gpu.compute.dirty = True
        self._unsettled[gpu.uuid] = gpu

    def quotas_changed(self, *groups: Group) -> None:
        """The quotas of these groups may have changed; without an argument, those of any group."""
        for gpu in self.node.gpus.values():
            if not groups or any(gpu.uuid in group.cards or group.id in gpu.compute.accounts for group in groups):
                self.look(gpu)

    def group_left(self, group: Group) -> None:
        """A client or the owner left the group. If the group is gone, so are its accounts, on all cards it used."""
        if group.id not in self.node.groups:
            self.quotas_changed(group)

    # --- credit and memory turns

    def short_of_credit(self) -> list[GpuState]:
        """The oversubscribed cards on which compute credit may decide who has the memory."""
        return [
            gpu
            for gpu in self.node.gpus.values()
            if (gpu.turns and gpu.queue and gpu.compute.capped) or gpu.compute.throttled
        ]

    def note_throttled(self, gpu: GpuState) -> bool:
        """Note which waiters for the card's memory have no compute credit; whether these are others than before."""
        card = gpu.compute
        before, changed = card.throttled, False
        card.throttled = 0
        for attachment in gpu.attachments.values():
            waits = gpu.turns and attachment.client.id in gpu.queue
            throttled = waits and self._of(attachment).capped and self._ready_at(attachment) > self.node.now
            changed |= throttled is not attachment.compute.throttled
            attachment.compute.throttled = throttled
            card.throttled += throttled
        if card.throttled:
            self._unsettled[gpu.uuid] = gpu
        return changed or card.throttled != before

    def idle_holders(self, gpu: GpuState) -> list[Client]:
        """The clients that hold the card's memory while others wait for it, and have no compute credit to use it."""
        return [
            attachment.client
            for attachment in (gpu.running.values() if gpu.turns else ())
            if attachment.contended and attachment.compute.asks and self._ready_at(attachment) > self.node.now
        ]

    # --- settling

    def settle(self) -> None:
        """Review terms, end and give slices, until nothing changes."""
        node = self.node
        for attachment in node.shifted:
            if self.terms.concerns(attachment):
                self.look(attachment.gpu)
        node.shifted.clear()
        due = self.alarms.pop_due(node.now)
        while due is not None:
            self._unsettled[due] = node.gpus[due]
            due = self.alarms.pop_due(node.now)
        while self._unsettled:
            self._settle_card(self._unsettled.pop(next(iter(self._unsettled))))

    def _settle_card(self, gpu: GpuState) -> None:
        card, now = gpu.compute, self.node.now
        if card.dirty or (card.look_at is not None and card.look_at <= now):
            self.terms.review(gpu)
            for attachment in gpu.attachments.values():
                if not attachment.compute.in_slices or attachment.standing is not Standing.RUNNING:
                    self._void(attachment)
            self._unsettle_gangs(gpu)
        elif card.wants_changed:
            self.terms.rhythm_changed(gpu)
        self._end_overdue(card)
        self._hand_over(card)
        self._charge_running(card)
        ready, next_ready = self._ready(card)
        rivals = []
        for attachment in ready:
            if overlaps(attachment):
                self._give(attachment, None)
            else:
                rivals.append(attachment)
        if card.exclusive is None and rivals:
            first = self._first(card, rivals)
            rivals.remove(first)
            self._give(first, rivals)
        for slice in self._open_ended(card):
            self._set_end(card, slice, rivals if slice.exclusive else [])
        self.alarms.set(gpu.uuid, self._next_look(gpu, next_ready))

    def _unsettle_gangs(self, gpu: GpuState) -> None:
        """Accounts changed here. Gangs that ask on other cards may have credit earlier than those cards expect."""
        for client in gpu.gangs:
            for other in gpu.attachments[client].client.gpus.values():
                if other.compute.asks and other.gpu is not gpu:
                    self._unsettled[other.gpu.uuid] = other.gpu

    def _end_overdue(self, card: CardCompute) -> None:
        """Give up on slices whose clients do not report in time: others go on beside them. The time to report begins
        when the scheduler sees that a slice is over, so time in which it stood still counts against no client."""
        now = self.node.now
        for slice in self._slices(card):
            end = slice.end
            if slice.deadline is None and end is not None and end <= now:
                slice.deadline = now + SPEAK_BY
            if slice.deadline is not None and slice.deadline <= now:
                self._abandon(slice)

    def _abandon(self, slice: Slice) -> None:
        client = slice.attachment.client
        said = "its work did not end in time" if slice.closed_at is not None else "it does not answer"
        self._log(
            Level.WARN,
            f"Client {client.hex} (pid {client.pid}) did not end its compute turn on GPU {slice.attachment.gpu.uuid}: "
            f"{said}; others go on beside it, and it is billed for the time",
        )
        self._of(slice.attachment).repay(slice.kept_waiting(self.node.now), self.node.now)
        self._account(slice, self.node.now - slice.given_at, 0.0)
        state = slice.attachment.compute
        again = state.again and state.slice is slice
        self._forget(slice, Change.STICK)
        if again:
            self._ask_again(slice.attachment)

    def _hand_over(self, card: CardCompute) -> None:
        """Let the next slice begin when little work of the slice before is left."""
        slice = card.exclusive
        if slice is not None and slice.due is not None and slice.due - GRAIN <= self.node.now:
            slice.handed_at = self.node.now
            card.exclusive = None
            card.lingering[slice.number] = slice

    def _charge_running(self, card: CardCompute) -> None:
        """Charge slices that are under way for the time so far: a bucket must not overflow beside its own use."""
        now = self.node.now
        for slice in open_slices(card):
            if slice.length is not None and slice.closed_at is None:
                self._of(slice.attachment).charge(now - slice.since - slice.billed, now)
                slice.billed = now - slice.since

    def _ready(self, card: CardCompute) -> tuple[list[Attachment], float | None]:
        """Clients that ask and have credit for a slice, and when the next of the others will have it."""
        now, ready = self.node.now, []
        soonest: float | None = None
        for attachment in card.asking.values():
            state = attachment.compute
            at = self._ready_at(attachment)
            if at <= now:
                ready.append(attachment)
                state.set_ready(True, now)
                continue
            state.set_ready(False, now)
            if self._of(attachment).capped:
                self.terms.log_throttling(attachment)
            soonest = at if soonest is None else min(soonest, at)
        return ready, soonest

    def _ready_at(self, attachment: Attachment) -> float:
        """When the client's group has credit for a slice, on all of its cards: a gang's slices begin together."""
        now, group = self.node.now, attachment.client.group
        at = self._credit_at(self._of(attachment), attachment)
        for uuid in group.cards if group.spans_cards else ():
            account = self.node.gpus[uuid].compute.accounts.get(group.id)
            at = at if account is None else max(at, self._credit_at(account, attachment))
        return max(at, now)

    def _credit_at(self, account: Account, attachment: Attachment) -> float:
        """When there is credit for what is left of the client's burst, or for a part of it."""
        if not account.capped:
            return account.waits_until
        wanted = min(max(attachment.compute.rhythm.left, GRAIN), account.piece)
        return max(account.waits_until, account.bucket.ready_at(wanted, self.node.now))

    def _claim(self, attachment: Attachment) -> Claim:
        """The client's claim as of now: a slice that is under way counts as if it were billed."""
        account, state = self._of(attachment), attachment.compute
        virtual, left, slice = account.virtual, state.rhythm.left, state.slice
        if slice is not None:
            elapsed = self.node.now - slice.since
            virtual += (elapsed - slice.billed) / account.share
            left = max(0.0, left - (elapsed - slice.counted))
        return Claim(virtual, account.share, left, state.woke, state.urgent, account.number)

    def _first(self, card: CardCompute, ready: list[Attachment]) -> Attachment:
        time = self.terms.virtual_time(card)
        return ready[next_claim([self._claim(attachment) for attachment in ready], time or 0.0, card.longest)]

    @staticmethod
    def _open_ended(card: CardCompute) -> list[Slice]:
        """Slices whose length may still change. A gang's slices end together, each of them as it was given."""
        found = [slice for slice in card.shared.values() if not slice.attachment.client.group.spans_cards]
        if card.exclusive is not None:
            found.insert(0, card.exclusive)
        return [slice for slice in found if slice.closed_at is None]

    def _set_end(self, card: CardCompute, slice: Slice, rivals: list[Attachment]) -> None:
        """Change or end a slice whose length no longer fits its rivals or its credit."""
        if slice.told_to_end:
            return
        now = self.node.now
        if rivals and slice.waited_for_since is None:
            slice.waited_for_since = now
        length = self._length(card, slice, rivals)
        if length is None:
            if slice.length is not None:
                self._set_length(slice, None)
        elif length - (now - slice.given_at) <= TICK:
            if slice.end is None or slice.end > now + OFTEN:  # else its client ends it by itself
                self._end(slice)
        elif self._differs(slice, length):
            self._set_length(slice, length)

    def _differs(self, slice: Slice, length: float) -> bool:
        """A slice is made shorter at once, and longer only when its end is near: most of that changes again."""
        if slice.length is None or length < slice.length - OFTEN:
            return True
        return length > slice.length + OFTEN and self._renewal_at(slice) <= self.node.now

    def _length(self, card: CardCompute, slice: Slice, rivals: list[Attachment]) -> float | None:
        """Seconds that the slice is to last, from its beginning; None: until a rival comes."""
        now, account = self.node.now, self._of(slice.attachment)
        so_far = now - slice.given_at
        more = account.bucket.lasts(now, now - slice.since - slice.billed)
        if not slice.exclusive:
            return so_far + min(more, max(0.0, LONGEST - so_far))
        if rivals:
            others = [self._claim(attachment) for attachment in rivals]
            more = min(more, goes_on(self._claim(slice.attachment), so_far, others, card.longest))
        if more == float("inf") and len(card.live) < 2:
            return None
        return so_far + min(more, LONGEST)

    @staticmethod
    def _renewal_at(slice: Slice) -> float:
        """When it is decided whether a slice with a length goes on."""
        assert slice.length is not None
        return slice.given_at + slice.length - GRAIN

    def _next_look(self, gpu: GpuState, next_ready: float | None) -> float | None:
        card, now = gpu.compute, self.node.now
        times = [at for at in (card.look_at, next_ready) if at is not None]
        if card.throttled:
            times += [self._ready_at(attachment) for attachment in gpu.queue.values() if attachment.compute.throttled]
        for slice in self._slices(card):
            if slice.deadline is not None:
                times.append(slice.deadline)
            elif slice.end is not None:
                times.append(slice.end)
        if card.exclusive is not None and card.exclusive.due is not None:
            times.append(card.exclusive.due - GRAIN)
        for slice in self._open_ended(card):
            if slice.end is not None and not slice.told_to_end and self._renewal_at(slice) > now:
                times.append(self._renewal_at(slice))
        return max(min(times), now + TICK) if times else None

    @staticmethod
    def _slices(card: CardCompute) -> list[Slice]:
        return [*open_slices(card), *card.lingering.values()]

    # --- slices begin and end

    def _change(self, attachment: Attachment, change: Change) -> None:
        """The one place where the state of a client's slice changes."""
        state = attachment.compute
        try:
            state.state = after(state.state, change)
        except IllegalChange as fault:
            raise InvariantBroken("legal changes", f"{attachment.client.hex}: {fault}", self.node) from None

    def _ask(self, attachment: Attachment) -> None:
        state, card, now = attachment.compute, attachment.gpu.compute, self.node.now
        if state.state is State.CLOSING:
            state.again = True
            return
        if state.asks:
            return
        self._change(attachment, Change.ASK)
        account = self._of(attachment)
        if state.rhythm.resumed(now):
            state.woke = state.urgent or state.rhythm.burst < LONG  # not a busy task that hesitated
            card.wants_changed = True
            self.terms.wake_up(attachment)
        elif not account.engaged and now - account.left_at >= PAUSE:
            state.woke = state.urgent  # it is new here, lost its grant in its slice, or stood still
            self.terms.wake_up(attachment)
        account.engaged += 1
        state.asked_at, state.ready_since = now, None
        card.asking[attachment.client.id] = attachment
        self._touch(attachment)
        for uuid in attachment.client.group.cards:
            self._unsettled[uuid] = self.node.gpus[uuid]

    def _ask_again(self, attachment: Attachment) -> None:
        """The client said while its slice closed that it wants another."""
        if attachment.standing is Standing.RUNNING and attachment.compute.in_slices:
            self._ask(attachment)

    def _give(self, attachment: Attachment, rivals: list[Attachment] | None) -> None:
        """Give an exclusive slice that these rivals wait for; None: one that overlaps others."""
        state, card, now = attachment.compute, attachment.gpu.compute, self.node.now
        self._stop_asking(attachment, Change.GIVE)
        self._last_slice += 1
        exclusive = rivals is not None
        others = card.free_runners or card.shared or (not exclusive and card.exclusive is not None)
        others = others or any(other is other.attachment.compute.overrun for other in card.lingering.values())
        slice = Slice(attachment, self._last_slice, now, now, None, exclusive, not others, state.rhythm.patience)
        state.slice, state.again, state.woke = slice, False, False
        account = self._of(attachment)
        account.engaged += 1
        account.bucket.fill(now)
        if exclusive:
            card.exclusive = slice
        else:
            for other in self._slices(card):
                other.alone = False
            card.shared[attachment.client.id] = slice
        self._touch(attachment)
        length = self._length(card, slice, rivals or [])
        slice.length = None if length is None else max(length, GRAIN)
        self._send(slice)

    def _stop_asking(self, attachment: Attachment, change: Change) -> None:
        """A request was answered, or is void."""
        state = attachment.compute
        if state.asks:
            self._disengage(attachment)
            state.waited += self.node.now - state.asked_at
            state.set_ready(False, self.node.now)
            del attachment.gpu.compute.asking[attachment.client.id]
        self._change(attachment, change)

    def _set_length(self, slice: Slice, length: float | None) -> None:
        slice.length, slice.deadline = length, None
        self._send(slice)

    def _end(self, slice: Slice) -> None:
        slice.told_to_end = True
        slice.deadline = self.node.now + SPEAK_BY
        self.node.commands.append(EndSlice(slice.attachment.client.id, slice.attachment.gpu.uuid, slice.number))

    def _send(self, slice: Slice) -> None:
        client, gpu = slice.attachment.client.id, slice.attachment.gpu.uuid
        self.node.commands.append(GiveSlice(client, gpu, slice.number, slice.length, slice.patience))

    def _void(self, attachment: Attachment) -> None:
        """The client lost its grant, or takes no slices any more: end and bill its slices, and its request."""
        state, now = attachment.compute, self.node.now
        if state.slice is not None:
            length = LONGEST if state.slice.length is None else state.slice.length
            self._account(state.slice, min(now - state.slice.given_at, length), 0.0)
            self._forget(state.slice, Change.VOID)
        if state.overrun is not None:
            self._account(state.overrun, now - state.overrun.given_at, 0.0)
            self._forget(state.overrun, Change.VOID)
        if state.asks:
            self._stop_asking(attachment, Change.VOID)

    def _forget(self, slice: Slice, change: Change) -> None:
        card, state = slice.attachment.gpu.compute, slice.attachment.compute
        if state.slice is slice:
            state.slice, state.again = None, False
            self._change(slice.attachment, change)
        else:
            state.overrun = None
        self._disengage(slice.attachment)
        if card.exclusive is slice:
            card.exclusive = None
        if card.shared.get(slice.attachment.client.id) is slice:
            del card.shared[slice.attachment.client.id]
        card.lingering.pop(slice.number, None)
        self._unsettled[slice.attachment.gpu.uuid] = slice.attachment.gpu

    def _disengage(self, attachment: Attachment) -> None:
        """A request or a slice of the client's group is over."""
        account = self._of(attachment)
        account.engaged -= 1
        account.left_at = self.node.now

    # --- the bill

    def _account(self, slice: Slice, said: float, pending: float) -> None:
        """Bill what the client reports it used and will use."""
        now, attachment = self.node.now, slice.attachment
        usage = Usage(said, now - slice.since, pending, slice.kept_waiting(now), slice.overlapped)
        total = bill(usage)
        if total > 0.0:
            self._touch(attachment)
        account = self._of(attachment)
        account.charge(total - slice.billed, now)
        self.terms.bound_lag(attachment.gpu.compute, account, LONG)  # much of it nobody else may have wanted
        rhythm = attachment.compute.rhythm
        thought = rhythm.thinks
        rhythm.used(total - slice.counted)
        attachment.gpu.compute.wants_changed |= rhythm.thinks is not thought
        slice.billed = slice.counted = total
        if slice.overlapped > LONG:
            self._log(
                Level.DEBUG,
                f"Weighted billing: client {attachment.client.hex} used {said * 1e3:.0f} ms, "
                f"{slice.overlapped * 1e3:.0f} of them beside others, billed {total * 1e3:.0f} ms",
            )
        if slice.length is not None and account.capped and total > slice.length + LONG:
            self.terms.log_debt(attachment, total - slice.length)

    def _note_overlap(self, slice: Slice, used: float) -> None:
        """A slice ended. Beside exclusive slices before or after it, each had half of the card: note for how long."""
        card, now = slice.attachment.gpu.compute, self.node.now
        for other in (card.exclusive, *card.lingering.values()) if slice.exclusive else ():
            if other is None or not other.exclusive or self._of(other.attachment) is self._of(slice.attachment):
                continue
            together = now - max(slice.given_at, other.given_at) - 2 * OFTEN
            overlap = max(0.0, min(together, used))
            slice.overlapped += overlap
            other.overlapped += overlap

    def _touch(self, attachment: Attachment) -> None:
        """The client uses the card."""
        if self.terms.touch(attachment):
            self.look(attachment.gpu)

    def _of(self, attachment: Attachment) -> Account:
        return self.terms.account(attachment)

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))
