"""Compute turns: who may use a card's engines now, among those who hold its grant (decision 6).

Exclusive turns follow one another; turns of launch-bound clients and of gangs overlap them, bounded by their credit
alone. Grants, memory and residency know nothing of this. ``compute_terms.py`` says who takes turns at all, the books
are in ``policy/credit.py``. Like ``turns.py`` the public methods leave cards to be looked at; ``settle`` does that once
per event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvshare.core.commands import EndTurn, GiveTurn, Level, Log
from nvshare.core.compute_terms import Terms, overlaps
from nvshare.core.events import TurnOver
from nvshare.core.policy.credit import Book, evened
from nvshare.core.policy.shares import LONGEST, SHORTEST
from nvshare.core.settings import TurnEnd
from nvshare.core.state import Attachment, Client, GpuState, Group, Node, Standing
from nvshare.core.state_compute import CardCompute, Turn
from nvshare.core.timers import Alarms

if TYPE_CHECKING:
    from nvshare.core.turns import Turns

HANDOVER = 0.002  # seconds of work in flight beside which the next turn begins, so that the card does not idle
MESSAGE = 0.0001  # seconds a message takes: what two sides measure differs by this
NEARLY = 0.2  # of a turn: who is not more ahead than that is level with the others
SLACK = 0.002  # seconds by which a client may say less than it kept others waiting for
RENEW = 0.002  # seconds before the end of a turn in which it is decided whether it goes on
EARLY = 0.01  # the same, while it has its part of the cycle still to come
SPEAK_BY = 1.5  # seconds after the end of a turn; the library gives up a drain after one
ENDS_BY = 10.0  # seconds after it was due; then work in flight is nobody's any more
TICK = 1e-6  # seconds; what is due within this is due at the next look
WARM_UP, WARM_UP_PART = 0.0006, 0.03  # seconds, and of a turn at most
COOLED_AFTER = 0.01  # seconds without a turn
TAIL_MAX, TAIL_WEIGHT = 0.012, 0.25  # seconds, and by how much the latest turn counts
LONG_KERNEL = 0.1  # seconds beyond its turn that are worth a line in the log


class Compute:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.terms = Terms(node)
        self.alarms: Alarms[str] = Alarms()
        self._unsettled: dict[str, GpuState] = {}
        self._last_turn = 0

    # --- what clients do

    def request(self, place: Attachment) -> None:
        state = place.compute
        state.speaks, state.ignorant = True, False
        if not state.told or place.standing is not Standing.RUNNING:
            self._log(Level.DEBUG, f"Ignored REQ_TURN of client {place.client.hex}: it needs no turn, or has no grant")
        elif state.turn is not None and state.turn.closed_at is None:
            if not state.turn.told_to_end:
                self._send(state.turn)  # it asks for what it has; perhaps it did not know
        else:
            self._ask(place)

    def over(self, place: Attachment, event: TurnOver) -> None:
        state = place.compute
        state.speaks = True
        turn = state.overrun if state.turn is None or state.turn.number != event.number else state.turn
        if turn is None or turn.number != event.number:
            self._log(Level.DEBUG, f"TURN_OVER {event.number} of client {place.client.hex}: that turn was over before")
        else:
            self._closed(turn, event)
        shut = state.turn is None or state.turn.closed_at is not None
        if event.wants and shut and place.standing is Standing.RUNNING and state.told:
            self._ask(place)
        self._unsettled[place.gpu.uuid] = place.gpu

    def _closed(self, turn: Turn, event: TurnOver) -> None:
        """Its client submits no more."""
        if turn.closed_at is None:
            turn.closed_at = self.node.now
            turn.place.compute.bursty = event.reason is TurnEnd.IDLE
        if event.pending <= 0.0:
            self._ended(turn, event)
        elif event.reason is TurnEnd.STUCK:
            self._runs_on(turn, event)
        else:
            self._account(turn, event.used, event.pending)
            turn.due = self.node.now + min(event.pending, ENDS_BY)
            turn.deadline = turn.due + ENDS_BY

    def _ended(self, turn: Turn, event: TurnOver) -> None:
        """All of its work has."""
        self._note_overlap(turn, event.used)
        self._account(turn, event.used - self._warm_up(turn, event), 0.0)
        if event.reason is TurnEnd.ENDED:
            self._note_tail(turn, event.used)
        if turn.place.compute.overrun is not turn and self.terms.judge(turn, event.busy, event.used):
            self.look(turn.place.gpu)
        if event.reason is not TurnEnd.STUCK:
            turn.place.compute.backlog_until = 0.0
        turn.place.compute.ended_at = self.node.now
        self._forget(turn)

    @staticmethod
    def _warm_up(turn: Turn, event: TurnOver) -> float:
        """What a turn takes to come into its stride, after a pause that nobody else had any use for: it is not billed,
        or a task alone would miss it from its quota."""
        undisturbed = turn.exclusive and turn.alone and turn.asked_for_since is None and event.reason is TurnEnd.ENDED
        paused = turn.given_at - turn.place.compute.ended_at >= COOLED_AFTER
        return min(WARM_UP, event.used * WARM_UP_PART) if undisturbed and paused else 0.0

    @staticmethod
    def _note_tail(turn: Turn, used: float) -> None:
        state = turn.place.compute
        if turn.length is not None:
            state.tail += (min(max(used - turn.length, 0.0), TAIL_MAX) - state.tail) * TAIL_WEIGHT

    def _part(self, place: Attachment) -> float:
        """How long its turn may go on submitting: with a quota, what is in flight then is part of its turn."""
        book = self._book(place)
        part = book.length if overlaps(place) else evened(book, self._rivals(place.gpu.compute))
        if book.capped:
            part -= place.compute.tail
        elif book.length <= LONGEST:
            part = min(part, LONGEST)
        return max(part, SHORTEST)

    def _rivals(self, card: CardCompute) -> Iterator[Book]:
        """Of those who have the exclusive turn or ask for it."""
        holder = () if card.exclusive is None else (card.exclusive.place,)
        return (self._book(place) for place in (*holder, *card.asking.values()) if not overlaps(place))

    def _runs_on(self, turn: Turn, event: TurnOver) -> None:
        """Its client no longer waits for the rest, and may have another turn: a kernel of seconds, or one that waits
        for what is still to be submitted. It is billed as long as its client says that it runs."""
        card, state, now = turn.place.gpu.compute, turn.place.compute, self.node.now
        self._account(turn, event.used, 0.0)
        turn.deadline = now + ENDS_BY
        if state.overrun is turn:
            return
        if state.overrun is not None:
            self._forget(state.overrun)
        if turn.handed_at is None:
            turn.handed_at = now
        if card.exclusive is turn:
            card.exclusive = None
        card.shared.pop(turn.place.client.id, None)
        card.lingering[turn.number] = turn
        state.turn, state.overrun = None, turn

    def used(self, place: Attachment, occupied: float) -> None:
        """The client reported so many seconds, in all, in which it occupied the card."""
        state, now = place.compute, self.node.now
        if occupied > place.occupied:
            self._touch(place)
            if state.told and not state.speaks and not state.ignorant and self.terms.ignores(state):
                state.ignorant = True
                self._log(Level.INFO, f"Client {place.client.hex} knows no compute turns: it runs freely")
                self.look(place.gpu)
        state.delivered.note(now, occupied)

    def remove(self, client: Client) -> None:
        """The client is gone, or turns are: nothing of it is left on any card."""
        for place in client.gpus.values():
            self._void(place)
        self.cards_changed(client)

    def cards_changed(self, client: Client) -> None:
        """It uses another card, or one less: that says something about all who belong to it."""
        for uuid in {**client.gpus, **client.group.cards}:
            self.look(self.node.gpus[uuid])

    def look(self, gpu: GpuState) -> None:
        """Something changed that says who takes turns here: grants, quotas, settings, what is known of clients."""
        gpu.compute.dirty = True
        self._unsettled[gpu.uuid] = gpu

    def quotas_changed(self, *groups: Group) -> None:
        """Of these groups, or of any."""
        for gpu in self.node.gpus.values():
            if not groups or any(gpu.uuid in group.cards or group.id in gpu.compute.books for group in groups):
                self.look(gpu)

    def group_left(self, group: Group) -> None:
        """By a client, or by its owner: if it is gone, so are its books, also on cards that it used before."""
        if group.id not in self.node.groups:
            self.quotas_changed(group)

    # --- together with memory turns

    def spare_memory(self, turns: Turns) -> bool:
        """Where memory takes turns nobody holds it without credit to use it while somebody waits who has some. True:
        somebody did, or who waits without credit has changed; turns are to be settled."""
        acted = False
        for gpu in self.node.gpus.values():
            card = gpu.compute
            if not (card.throttled or (card.capped and gpu.turns and gpu.queue)):
                continue
            before = card.throttled
            changed = self._note_throttled(gpu)
            if changed or card.throttled != before:
                turns.reconsider(gpu)
                acted = True
            for place in list(gpu.running.values()) if gpu.turns else ():
                if place.contended and place.compute.asks and self._ready_at(place) > self.node.now:
                    turns.cut_short(place.client)
                    acted = True
        return acted

    def _note_throttled(self, gpu: GpuState) -> bool:
        """Who waits for the card's memory without credit; True: somebody else than before."""
        card, changed = gpu.compute, False
        card.throttled = 0
        for place in gpu.attachments.values():
            waits = gpu.turns and place.client.id in gpu.queue
            throttled = waits and self._book(place).capped and self._ready_at(place) > self.node.now
            changed |= throttled is not place.compute.throttled
            place.compute.throttled = throttled
            card.throttled += throttled
        if card.throttled:
            self._unsettled[gpu.uuid] = gpu
        return changed

    # --- settling

    def settle(self) -> None:
        node = self.node
        for place in node.shifted:
            if self.terms.concerns(place):
                self.look(place.gpu)
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
            for place in gpu.attachments.values():
                if not place.compute.told or place.standing is not Standing.RUNNING:
                    self._void(place)
            self._unsettle_gangs(gpu)
        self._end_overdue(card)
        self._hand_over(card)
        ready, next_ready = self._ready(card)
        contenders = []
        for place in ready:
            if overlaps(place):
                self._give(place, exclusive=False, awaited=False)
            else:
                contenders.append(place)
        if card.exclusive is None and contenders:
            first = self._first(card, contenders)
            contenders.remove(first)
            self._give(first, exclusive=True, awaited=bool(contenders))
        elif card.exclusive is None:
            self._give_early(card)
        for turn in self._open_ended(card):
            self._adjust(card, turn, contenders if turn.exclusive else [])
        self.alarms.set(gpu.uuid, self._next_look(gpu, next_ready))

    def _unsettle_gangs(self, gpu: GpuState) -> None:
        """Books changed here: gangs that ask elsewhere may have credit earlier than their cards expect."""
        for client in gpu.gangs:
            for other in gpu.attachments[client].client.gpus.values():
                if other.compute.asks and other.gpu is not gpu:
                    self._unsettled[other.gpu.uuid] = other.gpu

    def _end_overdue(self, card: CardCompute) -> None:
        """Those who say nothing: others go on beside them. Time in which nobody listened is not theirs."""
        now = self.node.now
        for turn in self._turns(card):
            end = turn.end
            if turn.deadline is None and end is not None and end <= now:
                turn.deadline = now + SPEAK_BY
            if turn.deadline is not None and turn.deadline <= now:
                self._abandon(turn)

    def _abandon(self, turn: Turn) -> None:
        client = turn.place.client
        said = "its work did not end in time" if turn.closed_at is not None else "it does not answer"
        self._log(
            Level.WARN,
            f"Client {client.hex} (pid {client.pid}) did not end its compute turn on GPU {turn.place.gpu.uuid}: "
            f"{said}; others go on beside it, and it is billed for the time",
        )
        self._account(turn, self.node.now - turn.given_at, 0.0)
        self._forget(turn)

    def _hand_over(self, card: CardCompute) -> None:
        """The next one may begin when what is left of the turn before is short."""
        turn = card.exclusive
        if turn is not None and turn.due is not None and turn.due - HANDOVER <= self.node.now:
            turn.handed_at = self.node.now
            card.exclusive = None
            card.lingering[turn.number] = turn

    def _ready(self, card: CardCompute) -> tuple[list[Attachment], float | None]:
        """Those who ask and may have a turn as far as their credit goes, and when the next of the others may."""
        now, ready = self.node.now, []
        soonest: float | None = None
        for place in card.asking.values():
            state = place.compute
            if state.turn is not None:
                continue  # the last of its work is still in flight
            at = self._ready_at(place)
            if at <= now:
                ready.append(place)
                if state.ready_since is None:
                    state.ready_since = now
                continue
            state.ready_since = None
            self.terms.tell_throttling(place)
            soonest = at if soonest is None else min(soonest, at)
        return ready, soonest

    def _ready_at(self, place: Attachment) -> float:
        """When its group has credit for a turn; a gang's turns begin together."""
        now, group = self.node.now, place.client.group
        at = self._book(place).ready_at(now)
        for uuid in group.cards if group.spans_cards else ():
            book = self.node.gpus[uuid].compute.books.get(group.id)
            at = at if book is None else max(at, book.ready_at(now))
        return at

    def _first(self, card: CardCompute, ready: list[Attachment]) -> Attachment:
        """The lowest virtual time, but high priority first while it is not ahead of its share. Those who are hardly
        ahead of the lowest go by who has waited longest: equal tasks go round, whatever their turns differ by."""
        floor = min(self._book(place).virtual for place in ready)

        def order(place: Attachment) -> tuple[bool, float, float]:
            book = self._book(place)
            ahead = book.virtual - floor
            level = ahead * book.share < NEARLY * book.length
            return not self._urgent(place, floor), 0.0 if level else ahead, place.compute.asked_at

        return min(ready, key=order)

    def _give_early(self, card: CardCompute) -> None:
        """The card idles, for the host of one hesitates and others wait for credit. What they use now they leave to it
        later: otherwise it is lost, where the quotas leave no time to make it good."""
        now = self.node.now
        if not card.full or card.shared or not any(book.hesitates(now) for book in card.books.values()):
            return
        waiting = [place for place in card.asking.values() if place.compute.turn is None and not overlaps(place)]
        able = [place for place in waiting if self._early(place) >= SHORTEST]
        if able:
            first = self._first(card, able)
            self._give(first, exclusive=True, awaited=False, most=self._early(first))

    def _early(self, place: Attachment) -> float:
        return self._book(place).early(self.node.now) - place.compute.tail

    def _urgent(self, place: Attachment, floor: float) -> bool:
        if not place.compute.urgent:
            return False
        book = self._book(place)
        return book.virtual <= floor + LONGEST / book.share

    @staticmethod
    def _open_ended(card: CardCompute) -> list[Turn]:
        """Whose length may still change. A gang's turns end together, each of them as it was given."""
        turns = [turn for turn in card.shared.values() if not turn.place.client.group.spans_cards]
        if card.exclusive is not None:
            turns.insert(0, card.exclusive)
        return [turn for turn in turns if turn.closed_at is None]

    def _adjust(self, card: CardCompute, turn: Turn, contenders: list[Attachment]) -> None:
        """Does its length still fit to who else is there, and to its credit? Nobody contends for an overlapping one."""
        now, book = self.node.now, self._book(turn.place)
        if card.asking and turn.asked_for_since is None:
            turn.asked_for_since = now
        if turn.told_to_end:
            return
        if contenders and turn.waited_for_since is None:
            turn.waited_for_since = now
        if contenders and self._preempted(turn, contenders):
            self._end(turn)
        elif turn.length is None:
            if contenders or book.capped:
                self._prolong(turn, contenders, now - turn.given_at)
        elif not turn.decided and self._renewal_at(turn) <= now:
            self._prolong(turn, contenders, turn.length)

    def _renewal_at(self, turn: Turn) -> float:
        """When it is decided whether a turn with a length goes on."""
        assert turn.length is not None
        within = self._part(turn.place) - turn.length >= SHORTEST
        return turn.given_at + turn.length - (EARLY if within else RENEW)

    def _prolong(self, turn: Turn, contenders: list[Attachment], so_far: float) -> None:
        """A turn that was to last ``so_far``: for the rest of its part of the cycle, or because it would be next."""
        now, book = self.node.now, self._book(turn.place)
        if not contenders and not book.capped:
            self._set_length(turn, None)
            return
        rest = self._part(turn.place) - so_far
        within = rest >= SHORTEST
        more = min(book.step, rest if within else book.step)
        unbilled = now - turn.since + turn.place.compute.tail
        more = min(more, book.left(now, unbilled) - (turn.given_at + so_far - now))
        if more >= SHORTEST and (within or self._stays_first(turn, contenders, more)):
            self._set_length(turn, so_far + more)
        elif turn.length is None:
            self._set_length(turn, so_far)
        else:
            turn.decided = True

    def _preempted(self, turn: Turn, contenders: list[Attachment]) -> bool:
        if turn.place.compute.urgent:
            return False
        floor = self._book(turn.place).virtual
        return any(self._urgent(place, floor) for place in contenders)

    def _stays_first(self, turn: Turn, contenders: list[Attachment], length: float) -> bool:
        book = self._book(turn.place)
        used = turn.weighs(self.node.now - turn.since, self.node.now) - turn.weighed
        after = book.virtual + (used + length) / book.share
        return all(self._book(place) is not book and self._book(place).virtual >= after for place in contenders)

    def _next_look(self, gpu: GpuState, next_ready: float | None) -> float | None:
        card = gpu.compute
        times = [at for at in (card.look_at, next_ready) if at is not None]
        if card.throttled:
            times += [self._ready_at(place) for place in gpu.queue.values() if place.compute.throttled]
        for turn in self._turns(card):
            if turn.deadline is not None:
                times.append(turn.deadline)
            elif turn.end is not None:
                times.append(turn.end)
        if card.exclusive is not None and card.exclusive.due is not None:
            times.append(card.exclusive.due - HANDOVER)
        for turn in self._open_ended(card):
            if turn.end is not None and not turn.decided and not turn.told_to_end:
                times.append(self._renewal_at(turn))
        return max(min(times), self.node.now + TICK) if times else None

    @staticmethod
    def _turns(card: CardCompute) -> list[Turn]:
        exclusive = [] if card.exclusive is None else [card.exclusive]
        return [*exclusive, *card.shared.values(), *card.lingering.values()]

    # --- turns begin and end

    def _ask(self, place: Attachment) -> None:
        state, card, now = place.compute, place.gpu.compute, self.node.now
        if state.asks:
            return
        self._book(place).arrive(now, card.clock)
        state.asks, state.asked_at, state.ready_since = True, now, None
        card.asking[place.client.id] = place
        self._touch(place)
        for uuid in place.client.group.cards:
            self._unsettled[uuid] = self.node.gpus[uuid]

    def _give(self, place: Attachment, exclusive: bool, awaited: bool, most: float = LONGEST) -> None:
        state, card, now = place.compute, place.gpu.compute, self.node.now
        self._stop_asking(place)
        book = self._book(place)
        length: float | None = min(most, LONGEST, self._part(place))
        if exclusive and not awaited and not book.capped:
            length = LONGEST if state.bursty else None
        self._last_turn += 1
        others = card.free_runners or card.shared or (not exclusive and card.exclusive is not None)
        others = others or any(other is other.place.compute.overrun for other in card.lingering.values())
        turn = Turn(place, self._last_turn, now, now, length, exclusive, alone=not others)
        state.turn = turn
        book.engaged += 1
        if exclusive:
            card.exclusive = turn
            card.clock = max(card.clock, book.virtual)
        else:
            for other in self._turns(card):
                other.alone = False
            card.shared[place.client.id] = turn
        self._touch(place)
        self._send(turn)

    def _stop_asking(self, place: Attachment) -> None:
        state = place.compute
        if state.asks:
            self._book(place).leave(self.node.now)
            state.waited += self.node.now - state.asked_at
            state.asks, state.ready_since = False, None
            del place.gpu.compute.asking[place.client.id]

    def _set_length(self, turn: Turn, length: float | None) -> None:
        if length is not None and length <= self.node.now - turn.given_at:
            self._end(turn)
        else:
            turn.length, turn.decided, turn.deadline = length, False, None
            self._send(turn)

    def _end(self, turn: Turn) -> None:
        turn.told_to_end = True
        turn.deadline = self.node.now + SPEAK_BY
        self.node.commands.append(EndTurn(turn.place.client.id, turn.place.gpu.uuid, turn.number))

    def _send(self, turn: Turn) -> None:
        place = turn.place
        self.node.commands.append(GiveTurn(place.client.id, place.gpu.uuid, turn.number, turn.length, turn.alone))

    def _void(self, place: Attachment) -> None:
        """No grant, or no need: it has no turn any more and asks for none."""
        state, now = place.compute, self.node.now
        if state.turn is not None:
            length = LONGEST if state.turn.length is None else state.turn.length
            self._account(state.turn, min(now - state.turn.given_at, length), 0.0)
            self._forget(state.turn)
        if state.overrun is not None:
            self._account(state.overrun, now - state.overrun.given_at, 0.0)
            self._forget(state.overrun)
        self._stop_asking(place)

    def _forget(self, turn: Turn) -> None:
        card, state = turn.place.gpu.compute, turn.place.compute
        if state.turn is turn:
            state.turn = None
        else:
            state.overrun = None
        self._book(turn.place).leave(self.node.now)
        if card.exclusive is turn:
            card.exclusive = None
        if card.shared.get(turn.place.client.id) is turn:
            del card.shared[turn.place.client.id]
        card.lingering.pop(turn.number, None)
        self._unsettled[turn.place.gpu.uuid] = turn.place.gpu

    # --- the bill

    def _account(self, turn: Turn, said: float, pending: float) -> None:
        """Bill what the client says it used and will use, within what can be true."""
        now, place = self.node.now, turn.place
        elapsed = now - turn.since
        used = max(min(max(said, 0.0), elapsed), turn.lasted(turn.waited_for_since, now) - SLACK)
        if used > 0.0:
            self._touch(place)
        total = used + min(pending, ENDS_BY) - min(used, turn.overlapped) / 2
        weighed = turn.weighs(total, now)
        book = self._book(place)
        book.bill(total - turn.billed, weighed - turn.weighed, now)
        turn.billed, turn.weighed = total, weighed
        if turn.overlapped > LONG_KERNEL:
            self._log(
                Level.DEBUG,
                f"Weighted billing: client {place.client.hex} used {used * 1e3:.0f} ms, "
                f"{turn.overlapped * 1e3:.0f} of them beside others, billed {total * 1e3:.0f} ms",
            )
        if turn.length is not None and book.capped and total > turn.length + LONG_KERNEL:
            self.terms.tell_debt(place, total - turn.length)

    def _note_overlap(self, turn: Turn, used: float) -> None:
        """It ended: exclusive turns that were under way beside it, handed on or handed to, had half of the card."""
        card, now = turn.place.gpu.compute, self.node.now
        for other in (card.exclusive, *card.lingering.values()) if turn.exclusive else ():
            if other is None or not other.exclusive or self._book(other.place) is self._book(turn.place):
                continue
            together = now - max(turn.given_at, other.given_at) - 2 * MESSAGE
            overlap = max(0.0, min(together, used))
            turn.overlapped += overlap
            other.overlapped += overlap

    def _touch(self, place: Attachment) -> None:
        """The client uses the card."""
        if self.terms.touch(place):
            self.look(place.gpu)

    def _book(self, place: Attachment) -> Book:
        return self.terms.book(place)

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))
