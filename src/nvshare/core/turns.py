"""Turns on the cards: who holds a grant, who waits, who drains, and when a turn is over.

Gang scheduling: a client's cards are granted all or none and dropped together, because work on one may wait for work
on another. Clients wait in one order of arrival (their ticket) that every card's queue keeps, and a card whose first
waiter is not ready on its other cards is kept for it; so no two clients wait for each other, and nobody is overtaken.

The public methods may leave cards to be looked at again; ``settle`` does that once per event, so that a release and the
grant it makes possible are one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from nvshare.core.commands import Drop, Grant, Level, Log, WakeAt
from nvshare.core.policy.multiprogramming import MIB, card_share, free_share, reason, takes_turns, turn_share
from nvshare.core.policy.quantum import longest_turn, quantum, smoothed
from nvshare.core.policy.queue import fitting_set
from nvshare.core.settings import Mode
from nvshare.core.state import Attachment, Client, GpuState, Node, Standing
from nvshare.core.timers import Alarms

IDLE, RUNNING, DRAINING, STUCK = Standing.IDLE, Standing.RUNNING, Standing.DRAINING, Standing.STUCK


class Turns:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.alarms = Alarms()
        self.late = 0.0  # seconds by which alarms were answered too late, in all: no fault of the queue
        self._last_grant = 0
        self._last_ticket = 0
        self._unsettled: dict[str, GpuState] = {}
        self._arrivals: list[Client] = []
        self._wake: float | None = None

    # --- what clients do

    def request(self, place: Attachment, need: int) -> None:
        """The client has work. It is granted all of its cards now, or waits for all of them."""
        client = place.client
        place.need = need
        if client.ticket:
            client.asked = True
            self._unsettled[place.gpu.uuid] = place.gpu  # it may need less than before
            return
        held_before = place.standing is RUNNING
        if self._holds_some(client) and self._complete(client):
            if held_before:
                self._send_terms(place)  # it asks for what it has; perhaps it did not know
            return
        self._drop(client)
        self._enqueue(client, asked=True)

    def release(self, place: Attachment, number: int, stuck: bool, drain: float) -> None:
        """The client gave a grant back, or says that it cannot."""
        client, gpu = place.client, place.gpu
        if number != place.grant or place.standing is IDLE:
            held = place.grant or "none"
            self._log(Level.DEBUG, f"Ignored LOCK_RELEASED of grant {number} by client {client.hex}: it holds {held}")
            return
        if isfinite(drain) and (drain > 0.0 or place.standing is DRAINING):
            gpu.stall = smoothed(gpu.stall, min(max(drain, 0.0), self.node.settings.max_runtime))
        if stuck:
            if place.standing is not STUCK:
                self._strand(place)
            self._bring_back(client)
            return
        self._vacate(place)
        if client.ticket and not client.asked and all(other.standing is not STUCK for other in client.gpus.values()):
            self._dequeue(client)

    def adopt(self, place: Attachment, number: int) -> None:
        """A client came back with a grant of an earlier scheduler: it counts as held."""
        taken = number <= self._last_grant and any(
            other.grant == number for client in self.node.clients.values() for other in client.gpus.values()
        )
        self._last_grant = max(self._last_grant, number)
        self._start(place, self._next_grant() if taken else number)
        self._begin_turn(place.client, fresh=[place])
        if place.gpu.turns:
            self._apply_policy([place.gpu])
        self.rebound()

    def attached(self, client: Client) -> None:
        """The client has further cards: they join its gang, wherever it stands."""
        if client.ticket:
            for place in client.gpus.values():
                self._insert_by_ticket(place)
            self.rebound()
        elif self._holds_some(client) and not self._complete(client):
            self._drop(client)

    def remove(self, client: Client) -> None:
        if client.ticket:
            self._dequeue(client)
        for place in client.gpus.values():
            if place.standing is not IDLE:
                self._vacate(place)
        self.alarms.set(client.id, None)

    # --- what operators do

    def suspend(self) -> None:
        """Anti-thrash is off: no grants, no queues; everybody runs."""
        for client in self.node.clients.values():
            self.remove(client)

    def reconsider(self, gpu: GpuState) -> None:
        """Memory or capacity changed: does this card still run the way it should?"""
        if takes_turns(self.node.settings, gpu) is not gpu.turns:
            self._apply_policy([gpu])
            self.rebound()
        elif gpu.queue:
            self._unsettled[gpu.uuid] = gpu  # the next may fit now

    def settings_changed(self) -> None:
        self._apply_policy(list(self.node.gpus.values()))
        self.rebound()

    # --- settling

    def settle(self) -> None:
        """Grant what can be granted, end what is over, until nothing changes; then say when to look again."""
        now = self.node.now
        due = self.alarms.next()
        if due is not None and now > due:
            self.late += now - due
        while True:
            touched: dict[str, GpuState] = {}
            while self._unsettled:
                gpu = self._unsettled.pop(next(iter(self._unsettled)))
                touched[gpu.uuid] = gpu
                if gpu.queue:
                    self._dispatch(gpu)
            for gpu in touched.values():
                self._refresh_terms(gpu)
            overdue = self.alarms.pop_due(now)
            if overdue is not None:
                self._alarm(self.node.clients[overdue])
            elif not self._unsettled:
                break
        self._log_parked()
        self._set_wake()

    def timer_fired(self) -> None:
        """The shell's timer is spent, whatever it was set to."""
        self._wake = None

    def rebound(self) -> None:
        """Something changed that no queue could foresee: compute anew by when each waiter's turn begins."""
        waiting = [client for client in self.node.clients.values() if client.ticket]
        waiting.sort(key=lambda client: client.ticket)
        tails: dict[str, float] = {}
        for client in waiting:
            self._bound(client, tails)

    def _dispatch(self, gpu: GpuState) -> None:
        if not gpu.turns:
            for place in list(gpu.queue.values()):
                if self._ready(place.client):
                    self._grant(place.client)
            return
        settings = self.node.settings
        chosen = fitting_set(gpu.queue.values(), lambda place: turn_share(settings, place), free_share(settings, gpu))
        for place in chosen:
            if not self._ready(place.client):
                break
            self._grant(place.client)

    def _ready(self, client: Client) -> bool:
        """All or none: on every card the client has a place in the set that may run."""
        return all(self._has_room(place) for place in client.gpus.values())

    def _has_room(self, place: Attachment) -> bool:
        if place.standing is DRAINING:
            return False
        gpu = place.gpu
        if not gpu.turns:
            return True
        settings = self.node.settings
        room = free_share(settings, gpu)
        first = next(iter(gpu.queue.values()), place)
        if first is place:
            return turn_share(settings, place) <= room
        return place in fitting_set(gpu.queue.values(), lambda one: turn_share(settings, one), room)

    def _holds_some(self, client: Client) -> bool:
        return any(place.standing is RUNNING for place in client.gpus.values())

    def _complete(self, client: Client) -> bool:
        """Give a client that holds some of its cards the others too, where nobody runs or waits."""
        missing = [place for place in client.gpus.values() if place.standing is not RUNNING]
        if not all(map(self._has_room, missing)):
            return False
        if missing:
            self._grant(client)
        return True

    def _bring_back(self, client: Client) -> None:
        """A stuck client lives: give it a proper grant again, now where nobody is in its way, else in its turn."""
        if client.ticket or (self._holds_some(client) and self._complete(client)):
            return
        self._drop(client)
        self._enqueue(client, asked=False)

    def _refresh_terms(self, gpu: GpuState) -> None:
        """Tell the holders when others begin or cease to wait; a turn that is over ends at once."""
        if not gpu.turns:
            return
        contended = bool(gpu.queue)
        now = self.node.now
        for place in list(gpu.running.values()):
            if place.contended is contended or place.standing is not RUNNING:
                continue
            client = place.client
            if contended and client.turn_end is not None and client.turn_end <= now:
                self._drop(client)
                continue
            place.contended = contended
            self._send_terms(place)
            self._set_alarm(client)

    def _alarm(self, client: Client) -> None:
        if client.drain_by is None:
            self._drop(client)
            return
        for place in client.gpus.values():
            if place.standing is DRAINING:
                self._strand(place)

    # --- changes of standing

    def _grant(self, client: Client) -> None:
        """Every card the client does not hold yet, in UUID order."""
        promoted = client.parked
        if client.ticket:
            self._dequeue(client)
        places = [place for place in client.gpus.values() if place.standing is not RUNNING]
        beside = [place.gpu.allocated_running for place in places]
        for place in places:
            self._start(place, self._next_grant())
        self._begin_turn(client, fresh=places, anew=len(places) == len(client.gpus))
        for place, others in zip(places, beside, strict=True):
            self._log_grant(place, others, Level.INFO if promoted or not client.seen else Level.DEBUG)
        if promoted:
            self._log(Level.INFO, f"Client {client.hex} promoted from wait queue")
        client.seen = True

    def _start(self, place: Attachment, number: int) -> None:
        gpu, client = place.gpu, place.client
        if place.standing is STUCK:
            del gpu.stuck[client.id]
        place.standing = RUNNING
        place.grant = number
        gpu.running[client.id] = place
        gpu.allocated_running += place.allocated
        counters = self.node.counters
        counters.grants += 1
        if gpu.turns and gpu.last_holder != client.id:
            counters.switches += bool(gpu.last_holder)
            gpu.last_holder = client.id
        self._unsettled[gpu.uuid] = gpu

    def _begin_turn(self, client: Client, fresh: Sequence[Attachment] = (), anew: bool = True) -> None:
        """Set the terms of what the client holds: one quantum for all of its cards, counted from the turn's begin.
        It is told of ``fresh`` grants, and of terms that changed."""
        settings = self.node.settings
        held = [place for place in client.gpus.values() if place.standing is RUNNING]
        lengths = [quantum(settings, place.gpu.stall) for place in held if place.gpu.turns]
        length = max(lengths) if lengths else None
        if anew:
            client.turn_start = self.node.now
        client.turn_end = None if length is None else client.turn_start + length
        for place in held:
            before = (place.exclusive, place.contended, place.quantum)
            turns = place.gpu.turns
            place.exclusive = turns and settings.mode is Mode.SERIAL
            place.contended = turns and bool(place.gpu.queue)
            place.quantum = length if turns else None
            if place in fresh or (place.exclusive, place.contended, place.quantum) != before:
                self._send_terms(place)
        self._set_alarm(client)

    def _drop(self, client: Client) -> None:
        """The turn is over on all of the client's cards that it holds."""
        settings, node = self.node.settings, self.node
        for place in client.gpus.values():
            if place.standing is RUNNING:
                self._stop(place)
                place.standing = DRAINING
                place.gpu.draining[client.id] = place
                client.drain_by = node.now + settings.drain_deadline
                node.counters.drops += 1
                node.commands.append(Drop(client.id, place.gpu.uuid, place.grant, settings.drain_deadline))
        self._set_alarm(client)

    def _strand(self, place: Attachment) -> None:
        """The client could not stop in time: others go on beside it."""
        client, gpu = place.client, place.gpu
        self._leave(place)
        place.standing = STUCK
        gpu.stuck[client.id] = place
        self._set_alarm(client)
        self._log(
            Level.WARN,
            f"Client {client.hex} is stuck: it did not drain within {self.node.settings.drain_deadline:g} s on GPU "
            f"{gpu.uuid}; it runs on beside the others until it releases",
        )

    def _vacate(self, place: Attachment) -> None:
        self._leave(place)
        place.standing = IDLE
        place.grant = 0
        self._set_alarm(place.client)

    def _leave(self, place: Attachment) -> None:
        gpu, client = place.gpu, place.client
        if place.standing is RUNNING:
            self._stop(place)
        elif place.standing is DRAINING:
            del gpu.draining[client.id]
        else:
            del gpu.stuck[client.id]
        self._unsettled[gpu.uuid] = gpu

    def _stop(self, place: Attachment) -> None:
        gpu = place.gpu
        del gpu.running[place.client.id]
        gpu.allocated_running -= place.allocated
        place.exclusive = place.contended = False
        place.quantum = None
        self._unsettled[gpu.uuid] = gpu

    def _set_alarm(self, client: Client) -> None:
        draining = contended = False
        for place in client.gpus.values():
            draining |= place.standing is DRAINING
            contended |= place.contended
        if not draining:
            client.drain_by = None
        self.alarms.set(client.id, client.drain_by if draining else client.turn_end if contended else None)

    def _apply_policy(self, gpus: Sequence[GpuState]) -> None:
        """Make cards run as their policy says: in turns the first holders keep theirs, surplus ones are dropped."""
        settings = self.node.settings
        began = set()
        for gpu in gpus:
            self._unsettled[gpu.uuid] = gpu
            took_turns, gpu.turns = gpu.turns, takes_turns(settings, gpu)
            if gpu.turns and not took_turns:
                began.add(gpu.uuid)
        for gpu in gpus:
            if gpu.turns:
                holders = list(gpu.running.values())
                kept = fitting_set(holders, lambda place: turn_share(settings, place), card_share(settings, gpu))
                for place in holders[len(kept) :]:
                    self._drop(place.client)
        for client in {place.client.id: place.client for gpu in gpus for place in gpu.running.values()}.values():
            self._begin_turn(client, anew=not began.isdisjoint(client.gpus))

    # --- the queue

    def _enqueue(self, client: Client, asked: bool) -> None:
        if not any(place.gpu.turns or place.standing is DRAINING for place in client.gpus.values()):
            self._grant(client)
            return
        self._last_ticket += 1
        client.ticket = self._last_ticket
        client.asked = asked
        tails: dict[str, float] = {}
        for place in client.gpus.values():
            last = next(reversed(place.gpu.queue.values()), None)
            if last is not None:
                tails[place.gpu.uuid] = last.client.start_by + self.late - last.client.start_by_late
        self._bound(client, tails)
        for place in client.gpus.values():
            place.gpu.queue[client.id] = place
            self._unsettled[place.gpu.uuid] = place.gpu
        self._arrivals.append(client)

    def _dequeue(self, client: Client) -> None:
        client.ticket = 0
        client.asked = client.parked = False
        for place in client.gpus.values():
            del place.gpu.queue[client.id]
            self._unsettled[place.gpu.uuid] = place.gpu

    def _insert_by_ticket(self, place: Attachment) -> None:
        gpu = place.gpu
        queue = {**gpu.queue, place.client.id: place}
        gpu.queue = dict(sorted(queue.items(), key=lambda item: item[1].client.ticket))
        self._unsettled[gpu.uuid] = gpu

    def _bound(self, client: Client, tails: dict[str, float]) -> None:
        """The waiter's guarantee: one longest turn after the waiter before it begins; if it is the first, from now.
        ``tails`` holds, per card, the guarantee of the waiter before it, and is moved on to this one."""
        now = self.node.now
        turn = longest_turn(self.node.settings)
        begins = [now]
        for uuid, place in client.gpus.items():
            if uuid in tails:
                begins.append(tails[uuid] + turn)
            elif place.gpu.running or place.gpu.draining:
                begins.append(now + turn)
        client.start_by = max(begins)
        client.start_by_late = self.late
        for uuid in client.gpus:
            tails[uuid] = client.start_by

    # --- what is said

    def _next_grant(self) -> int:
        self._last_grant += 1
        return self._last_grant

    def _send_terms(self, place: Attachment) -> None:
        gpu, running = place.gpu, len(place.gpu.running)
        self.node.commands.append(
            Grant(place.client.id, gpu.uuid, place.grant, place.exclusive, place.contended, place.quantum, running)
        )

    def _set_wake(self) -> None:
        at = self.alarms.next()
        if at != self._wake:
            self._wake = at
            self.node.commands.append(WakeAt(at))

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))

    def _log_grant(self, place: Attachment, others: int, level: Level) -> None:
        gpu, client = place.gpu, place.client
        own = place.allocated // MIB
        if self.node.settings.mode is Mode.AUTO and len(gpu.running) > 1 and not gpu.turns:
            self._log(
                level,
                f"Auto mode: memory fits ({others // MIB} + {own} <= {gpu.capacity // MIB} MB), allowing concurrent",
            )
        self._log(
            level, f"Scheduled client {client.hex} (mem: {own} MB, total running: {gpu.allocated_running // MIB} MB)"
        )

    def _log_parked(self) -> None:
        for client in self._arrivals:
            if client.ticket and not client.parked:
                client.parked = True
                why = next((place.gpu for place in client.gpus.values() if place.gpu.turns), None)
                text = reason(self.node.settings, why) if why is not None else "it is still draining"
                self._log(Level.INFO, f"Client {client.hex} moved to wait queue ({text})")
        self._arrivals.clear()
