"""Compute slices: which clients may use a card's engines now, among those that hold its grant (decision 6).

Exclusive slices follow one another. Slices of launch-bound clients and of gangs overlap them, bounded by their credit
alone. ``terms.py`` says which clients take slices at all, ``books.py`` keeps credit and virtual time. Slices begin and
end only below a grant. Memory turns depend on them in one point: a client without compute credit does not keep memory
from clients that have some; the scheduler asks here (``short_of_credit``) and ends its turn.

Like those of ``memory/turns.py`` the public methods leave cards to be looked at again, and ``settle`` does that once
per event.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.core.commands import EndSlice, GiveSlice, Level, Log
from nvshare.core.compute.books import Book, evened
from nvshare.core.compute.policy.shares import LONGEST, SHORTEST
from nvshare.core.compute.state import CardCompute, Slice
from nvshare.core.compute.terms import Terms, overlaps
from nvshare.core.events import SliceOver
from nvshare.core.settings import SliceEnd
from nvshare.core.state import Attachment, Client, GpuState, Group, Node, Standing
from nvshare.core.timers import Alarms

HANDOVER = 0.002  # seconds of work in flight beside which the next slice begins, so that the card does not idle
MESSAGE = 0.0001  # seconds a message takes: what two sides measure differs by this
NEARLY = 0.2  # of a slice: a client that is ahead by no more counts as level with the others
SLACK = 0.002  # seconds by which a client may report less than it kept others waiting for
RENEW = 0.002  # seconds before the end of a slice in which it is decided whether it goes on
EARLY = 0.01  # the same, while it has its part of the cycle still to come
SPEAK_BY = 1.5  # seconds after the end of a slice; the library gives up a drain after one
ENDS_BY = 10.0  # seconds after it was due; then work in flight is no longer waited for
TICK = 1e-6  # seconds; what is due within this is due at the next look
WARM_UP, WARM_UP_PART = 0.0006, 0.03  # seconds, and of a slice at most
COOLED_AFTER = 0.01  # seconds without a slice
TAIL_MAX, TAIL_WEIGHT = 0.012, 0.25  # seconds, and by how much the latest slice counts
LONG_KERNEL = 0.1  # seconds beyond its slice that are worth a line in the log


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
        elif state.slice is not None and state.slice.closed_at is None:
            if not state.slice.told_to_end:
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
            self._closed(slice, event)
        shut = state.slice is None or state.slice.closed_at is not None
        if event.wants and shut and attachment.standing is Standing.RUNNING and state.in_slices:
            self._ask(attachment)
        self._unsettled[attachment.gpu.uuid] = attachment.gpu

    def _closed(self, slice: Slice, event: SliceOver) -> None:
        """The slice's client submits no more."""
        if slice.closed_at is None:
            slice.closed_at = self.node.now
            slice.attachment.compute.bursty = event.reason is SliceEnd.IDLE
        if event.pending <= 0.0:
            self._ended(slice, event)
        elif event.reason is SliceEnd.OVERRUN:
            self._runs_on(slice, event)
        else:
            self._account(slice, event.used, event.pending)
            slice.due = self.node.now + min(event.pending, ENDS_BY)
            slice.deadline = slice.due + ENDS_BY

    def _ended(self, slice: Slice, event: SliceOver) -> None:
        """All work of the slice has ended."""
        self._note_overlap(slice, event.used)
        self._account(slice, event.used - self._warm_up(slice, event), 0.0)
        if event.reason is SliceEnd.ENDED:
            self._note_tail(slice, event.used)
        if slice.attachment.compute.overrun is not slice and self.terms.judge(slice, event.busy, event.used):
            self.look(slice.attachment.gpu)
        if event.reason is not SliceEnd.OVERRUN:
            slice.attachment.compute.backlog_until = 0.0
        slice.attachment.compute.ended_at = self.node.now
        self._forget(slice)

    @staticmethod
    def _warm_up(slice: Slice, event: SliceOver) -> float:
        """Seconds that a slice is not billed for: the card warms up after a pause that no other client used. Else a
        task alone would miss them from its quota."""
        undisturbed = (
            slice.exclusive and slice.alone and slice.asked_for_since is None and event.reason is SliceEnd.ENDED
        )
        paused = slice.given_at - slice.attachment.compute.ended_at >= COOLED_AFTER
        return min(WARM_UP, event.used * WARM_UP_PART) if undisturbed and paused else 0.0

    @staticmethod
    def _note_tail(slice: Slice, used: float) -> None:
        state = slice.attachment.compute
        if slice.length is not None:
            state.tail += (min(max(used - slice.length, 0.0), TAIL_MAX) - state.tail) * TAIL_WEIGHT

    def _part(self, attachment: Attachment) -> float:
        """Seconds for which its slice may submit. With a quota, the work in flight at the end is part of the slice."""
        book = self._book(attachment)
        part = book.length if overlaps(attachment) else evened(book, self._rivals(attachment.gpu.compute))
        if book.capped:
            part -= attachment.compute.tail
        elif book.length <= LONGEST:
            part = min(part, LONGEST)
        return max(part, SHORTEST)

    def _rivals(self, card: CardCompute) -> Iterator[Book]:
        """The books of clients that have the exclusive slice or ask for it."""
        holder = () if card.exclusive is None else (card.exclusive.attachment,)
        return (self._book(attachment) for attachment in (*holder, *card.asking.values()) if not overlaps(attachment))

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
            self._forget(state.overrun)
        if slice.handed_at is None:
            slice.handed_at = now
        if card.exclusive is slice:
            card.exclusive = None
        card.shared.pop(slice.attachment.client.id, None)
        card.lingering[slice.number] = slice
        state.slice, state.overrun = None, slice

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
            if not groups or any(gpu.uuid in group.cards or group.id in gpu.compute.books for group in groups):
                self.look(gpu)

    def group_left(self, group: Group) -> None:
        """A client or the owner left the group. If the group is gone, its books go too, on all cards it ever used."""
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
            throttled = waits and self._book(attachment).capped and self._ready_at(attachment) > self.node.now
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
        self._end_overdue(card)
        self._hand_over(card)
        ready, next_ready = self._ready(card)
        contenders = []
        for attachment in ready:
            if overlaps(attachment):
                self._give(attachment, exclusive=False, awaited=False)
            else:
                contenders.append(attachment)
        if card.exclusive is None and contenders:
            first = self._first(card, contenders)
            contenders.remove(first)
            self._give(first, exclusive=True, awaited=bool(contenders))
        elif card.exclusive is None:
            self._give_early(card)
        for slice in self._open_ended(card):
            self._adjust(card, slice, contenders if slice.exclusive else [])
        self.alarms.set(gpu.uuid, self._next_look(gpu, next_ready))

    def _unsettle_gangs(self, gpu: GpuState) -> None:
        """Books changed here. Gangs that ask on other cards may have credit earlier than those cards expect."""
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
        self._account(slice, self.node.now - slice.given_at, 0.0)
        self._forget(slice)

    def _hand_over(self, card: CardCompute) -> None:
        """Let the next slice begin when little work of the slice before is left."""
        slice = card.exclusive
        if slice is not None and slice.due is not None and slice.due - HANDOVER <= self.node.now:
            slice.handed_at = self.node.now
            card.exclusive = None
            card.lingering[slice.number] = slice

    def _ready(self, card: CardCompute) -> tuple[list[Attachment], float | None]:
        """Clients that ask and have credit for a slice, and when the next of the others will have it."""
        now, ready = self.node.now, []
        soonest: float | None = None
        for attachment in card.asking.values():
            state = attachment.compute
            if state.slice is not None:
                continue  # the last of its work is still in flight
            at = self._ready_at(attachment)
            if at <= now:
                ready.append(attachment)
                if state.ready_since is None:
                    state.ready_since = now
                continue
            state.ready_since = None
            self.terms.log_throttling(attachment)
            soonest = at if soonest is None else min(soonest, at)
        return ready, soonest

    def _ready_at(self, attachment: Attachment) -> float:
        """When the client's group has credit for a slice, on all of its cards: a gang's slices begin together. Brings
        the group's books up to date."""
        now, group = self.node.now, attachment.client.group
        at = self._earned(self._book(attachment)).ready_at(now)
        for uuid in group.cards if group.spans_cards else ():
            book = self.node.gpus[uuid].compute.books.get(group.id)
            at = at if book is None else max(at, self._earned(book).ready_at(now))
        return at

    def _first(self, card: CardCompute, ready: list[Attachment]) -> Attachment:
        """The client whose slice is next: the one with the lowest virtual time, but one of high priority first while it
        is not ahead of its share. Among those that are hardly ahead of the lowest, the one that asked first: equal
        tasks go round, whatever their slices differ by."""
        floor = min(self._book(attachment).virtual for attachment in ready)

        def order(attachment: Attachment) -> tuple[bool, float, float]:
            book = self._book(attachment)
            ahead = book.virtual - floor
            level = ahead * book.share < NEARLY * book.length
            return not self._urgent(attachment, floor), 0.0 if level else ahead, attachment.compute.asked_at

        return min(ready, key=order)

    def _give_early(self, card: CardCompute) -> None:
        """Give a slice before there is credit for it while the card idles, because the host of one client hesitates and
        the others wait for credit. The time that they use now they leave to it later. Otherwise it would be lost, where
        the quotas leave no time to make it good."""
        now = self.node.now
        if not card.full or card.shared or not any(book.hesitates(now) for book in card.books.values()):
            return
        waiting = [
            attachment
            for attachment in card.asking.values()
            if attachment.compute.slice is None and not overlaps(attachment)
        ]
        able = [attachment for attachment in waiting if self._early(attachment) >= SHORTEST]
        if able:
            first = self._first(card, able)
            self._give(first, exclusive=True, awaited=False, most=self._early(first))

    def _early(self, attachment: Attachment) -> float:
        return self._earned(self._book(attachment)).early_length(self.node.now) - attachment.compute.tail

    def _urgent(self, attachment: Attachment, floor: float) -> bool:
        if not attachment.compute.urgent:
            return False
        book = self._book(attachment)
        return book.virtual <= floor + LONGEST / book.share

    @staticmethod
    def _open_ended(card: CardCompute) -> list[Slice]:
        """Slices whose length may still change. A gang's slices end together, each of them as it was given."""
        found = [slice for slice in card.shared.values() if not slice.attachment.client.group.spans_cards]
        if card.exclusive is not None:
            found.insert(0, card.exclusive)
        return [slice for slice in found if slice.closed_at is None]

    def _adjust(self, card: CardCompute, slice: Slice, contenders: list[Attachment]) -> None:
        """Change or end a slice whose length no longer fits its contenders or its credit. An overlapping slice has no
        contenders."""
        now, book = self.node.now, self._book(slice.attachment)
        if card.asking and slice.asked_for_since is None:
            slice.asked_for_since = now
        if slice.told_to_end:
            return
        if contenders and slice.waited_for_since is None:
            slice.waited_for_since = now
        if contenders and self._preempted(slice, contenders):
            self._end(slice)
        elif slice.length is None:
            if contenders or book.capped:
                self._prolong(slice, contenders, now - slice.given_at)
        elif not slice.decided and self._renewal_at(slice) <= now:
            self._prolong(slice, contenders, slice.length)

    def _renewal_at(self, slice: Slice) -> float:
        """When it is decided whether a slice with a length goes on."""
        assert slice.length is not None
        within = self._part(slice.attachment) - slice.length >= SHORTEST
        return slice.given_at + slice.length - (EARLY if within else RENEW)

    def _prolong(self, slice: Slice, contenders: list[Attachment], so_far: float) -> None:
        """Prolong a slice that was to last ``so_far``: for the rest of its part of the cycle, or because its client
        would be next anyway."""
        now, book = self.node.now, self._book(slice.attachment)
        if not contenders and not book.capped:
            self._set_length(slice, None)
            return
        rest = self._part(slice.attachment) - so_far
        within = rest >= SHORTEST
        more = min(book.step, rest if within else book.step)
        unbilled = now - slice.since + slice.attachment.compute.tail
        more = min(more, self._earned(book).length_left(now, unbilled) - (slice.given_at + so_far - now))
        if more >= SHORTEST and (within or self._stays_first(slice, contenders, more)):
            self._set_length(slice, so_far + more)
        elif slice.length is None:
            self._set_length(slice, so_far)
        else:
            slice.decided = True

    def _preempted(self, slice: Slice, contenders: list[Attachment]) -> bool:
        if slice.attachment.compute.urgent:
            return False
        floor = self._book(slice.attachment).virtual
        return any(self._urgent(attachment, floor) for attachment in contenders)

    def _stays_first(self, slice: Slice, contenders: list[Attachment], length: float) -> bool:
        book = self._book(slice.attachment)
        used = slice.weighs(self.node.now - slice.since, self.node.now) - slice.weighed
        after = book.virtual + (used + length) / book.share
        return all(
            self._book(attachment) is not book and self._book(attachment).virtual >= after for attachment in contenders
        )

    def _next_look(self, gpu: GpuState, next_ready: float | None) -> float | None:
        card = gpu.compute
        times = [at for at in (card.look_at, next_ready) if at is not None]
        if card.throttled:
            times += [self._ready_at(attachment) for attachment in gpu.queue.values() if attachment.compute.throttled]
        for slice in self._slices(card):
            if slice.deadline is not None:
                times.append(slice.deadline)
            elif slice.end is not None:
                times.append(slice.end)
        if card.exclusive is not None and card.exclusive.due is not None:
            times.append(card.exclusive.due - HANDOVER)
        for slice in self._open_ended(card):
            if slice.end is not None and not slice.decided and not slice.told_to_end:
                times.append(self._renewal_at(slice))
        return max(min(times), self.node.now + TICK) if times else None

    @staticmethod
    def _slices(card: CardCompute) -> list[Slice]:
        exclusive = [] if card.exclusive is None else [card.exclusive]
        return [*exclusive, *card.shared.values(), *card.lingering.values()]

    # --- slices begin and end

    def _ask(self, attachment: Attachment) -> None:
        state, card, now = attachment.compute, attachment.gpu.compute, self.node.now
        if state.asks:
            return
        self._book(attachment).arrive(now, card.clock)
        state.asks, state.asked_at, state.ready_since = True, now, None
        card.asking[attachment.client.id] = attachment
        self._touch(attachment)
        for uuid in attachment.client.group.cards:
            self._unsettled[uuid] = self.node.gpus[uuid]

    def _give(self, attachment: Attachment, exclusive: bool, awaited: bool, most: float = LONGEST) -> None:
        state, card, now = attachment.compute, attachment.gpu.compute, self.node.now
        self._stop_asking(attachment)
        book = self._book(attachment)
        length: float | None = min(most, LONGEST, self._part(attachment))
        if exclusive and not awaited and not book.capped:
            length = LONGEST if state.bursty else None
        self._last_slice += 1
        others = card.free_runners or card.shared or (not exclusive and card.exclusive is not None)
        others = others or any(other is other.attachment.compute.overrun for other in card.lingering.values())
        slice = Slice(attachment, self._last_slice, now, now, length, exclusive, alone=not others)
        state.slice = slice
        book.engaged += 1
        if exclusive:
            card.exclusive = slice
            card.clock = max(card.clock, book.virtual)
        else:
            for other in self._slices(card):
                other.alone = False
            card.shared[attachment.client.id] = slice
        self._touch(attachment)
        self._send(slice)

    def _stop_asking(self, attachment: Attachment) -> None:
        state = attachment.compute
        if state.asks:
            self._book(attachment).leave(self.node.now)
            state.waited += self.node.now - state.asked_at
            state.asks, state.ready_since = False, None
            del attachment.gpu.compute.asking[attachment.client.id]

    def _set_length(self, slice: Slice, length: float | None) -> None:
        if length is not None and length <= self.node.now - slice.given_at:
            self._end(slice)
        else:
            slice.length, slice.decided, slice.deadline = length, False, None
            self._send(slice)

    def _end(self, slice: Slice) -> None:
        slice.told_to_end = True
        slice.deadline = self.node.now + SPEAK_BY
        self.node.commands.append(EndSlice(slice.attachment.client.id, slice.attachment.gpu.uuid, slice.number))

    def _send(self, slice: Slice) -> None:
        attachment = slice.attachment
        self.node.commands.append(GiveSlice(attachment.client.id, attachment.gpu.uuid, slice.number, slice.length))

    def _void(self, attachment: Attachment) -> None:
        """The client lost its grant, or takes no slices any more: end and bill its slices, and its request."""
        state, now = attachment.compute, self.node.now
        if state.slice is not None:
            length = LONGEST if state.slice.length is None else state.slice.length
            self._account(state.slice, min(now - state.slice.given_at, length), 0.0)
            self._forget(state.slice)
        if state.overrun is not None:
            self._account(state.overrun, now - state.overrun.given_at, 0.0)
            self._forget(state.overrun)
        self._stop_asking(attachment)

    def _forget(self, slice: Slice) -> None:
        card, state = slice.attachment.gpu.compute, slice.attachment.compute
        if state.slice is slice:
            state.slice = None
        else:
            state.overrun = None
        self._book(slice.attachment).leave(self.node.now)
        if card.exclusive is slice:
            card.exclusive = None
        if card.shared.get(slice.attachment.client.id) is slice:
            del card.shared[slice.attachment.client.id]
        card.lingering.pop(slice.number, None)
        self._unsettled[slice.attachment.gpu.uuid] = slice.attachment.gpu

    # --- the bill

    def _account(self, slice: Slice, said: float, pending: float) -> None:
        """Bill what the client reports it used and will use, within what can be true."""
        now, attachment = self.node.now, slice.attachment
        elapsed = now - slice.since
        used = max(min(max(said, 0.0), elapsed), slice.lasted(slice.waited_for_since, now) - SLACK)
        if used > 0.0:
            self._touch(attachment)
        total = used + min(pending, ENDS_BY) - min(used, slice.overlapped) / 2
        weighed = slice.weighs(total, now)
        book = self._book(attachment)
        book.bill(total - slice.billed, weighed - slice.weighed, now)
        slice.billed, slice.weighed = total, weighed
        if slice.overlapped > LONG_KERNEL:
            self._log(
                Level.DEBUG,
                f"Weighted billing: client {attachment.client.hex} used {used * 1e3:.0f} ms, "
                f"{slice.overlapped * 1e3:.0f} of them beside others, billed {total * 1e3:.0f} ms",
            )
        if slice.length is not None and book.capped and total > slice.length + LONG_KERNEL:
            self.terms.log_debt(attachment, total - slice.length)

    def _note_overlap(self, slice: Slice, used: float) -> None:
        """A slice ended. Beside exclusive slices before or after it, each had half of the card: note for how long."""
        card, now = slice.attachment.gpu.compute, self.node.now
        for other in (card.exclusive, *card.lingering.values()) if slice.exclusive else ():
            if other is None or not other.exclusive or self._book(other.attachment) is self._book(slice.attachment):
                continue
            together = now - max(slice.given_at, other.given_at) - 2 * MESSAGE
            overlap = max(0.0, min(together, used))
            slice.overlapped += overlap
            other.overlapped += overlap

    def _touch(self, attachment: Attachment) -> None:
        """The client uses the card."""
        if self.terms.touch(attachment):
            self.look(attachment.gpu)

    def _book(self, attachment: Attachment) -> Book:
        return self.terms.book(attachment)

    def _earned(self, book: Book) -> Book:
        """Bring a book up to date, with credit as far as it reaches now: the reach may change later."""
        if book.capped:
            book.accrue(self.node.now)
        return book

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))
