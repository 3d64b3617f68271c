"""Turns on the cards: which clients hold a grant, wait or drain, and when a turn is over.

Gang scheduling: a client's cards are granted all or none and dropped together, because work on one may wait for work
on another. Clients wait in one order of arrival (their ticket) that every card's queue keeps. Room on a card is kept
for a waiter that is not ready on its other cards. So no two clients wait for each other, and no client is overtaken by
one that stands in its way.

A client runs only while all of its memory is on its cards. ``selection.py`` says whose turn it is, ``residency.py``
then brings the memory, and the grant follows when that has arrived.

The public methods may leave cards to be looked at again. ``settle`` does that once per event, so that a release and the
grant it makes possible are one answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvshare.core.commands import Drop, Grant, Level, Log
from nvshare.core.memory.headroom import MIB
from nvshare.core.memory.policy.quantum import longest_turn, quantum, typical
from nvshare.core.memory.residency import Residency
from nvshare.core.memory.selection import (
    can_ever_run,
    chosen,
    is_contended,
    may_begin,
    reason,
    surplus,
    takes_turns,
    waiters,
)
from nvshare.core.settings import Mode
from nvshare.core.state import Attachment, Client, GpuState, Node, Standing, Switch
from nvshare.core.timers import Alarms

IDLE, RUNNING, DRAINING, STUCK = Standing.IDLE, Standing.RUNNING, Standing.DRAINING, Standing.STUCK


class Turns:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.memory = Residency(node)
        self.alarms: Alarms[int] = Alarms()
        self.late = 0.0  # seconds in all in which alarms were late or memory was on its way: not the queue's fault
        self._last_grant = 0
        self._last_ticket = 0
        self._unsettled: dict[str, GpuState] = {}
        self._arrivals: list[Client] = []
        self._awaited: dict[str, GpuState] = {}  # cards on which the next one waits for memory
        self._settled_at = 0.0
        self._unbound = False
        self._events = 0
        self._last_turn = 0

    # --- what clients do

    def request(self, attachment: Attachment) -> None:
        """The client has work. It is granted all of its cards now, or waits for all of them."""
        client = attachment.client
        for other in client.gpus.values():
            if other.silent:
                self.memory_reported(other, foreseen=False)  # it lives
        if client.ticket:
            client.asked = True
            return
        held_before = attachment.standing is RUNNING
        if self._holds_some(client) and self._complete(client):
            if held_before:
                self._send_terms(attachment)  # it asks for what it has; perhaps it did not know
            return
        self._drop(client)
        self._enqueue(client, asked=True)

    def request_context(self, client: Client) -> None:
        """The client sleeps and wants its contexts: they come with its turn, or as soon as there is room."""
        if not client.ticket:
            self._enqueue(client, asked=True)

    def withdraw(self, client: Client) -> None:
        """The client cannot run, and waits no longer."""
        if client.ticket:
            self._dequeue(client)

    def release(self, attachment: Attachment, number: int, stuck: bool) -> None:
        """The client gave a grant back, or says that it cannot."""
        client = attachment.client
        if number != attachment.grant or attachment.standing is IDLE:
            held = attachment.grant or "none"
            self._log(Level.DEBUG, f"Ignored LOCK_RELEASED of grant {number} by client {client.hex}: it holds {held}")
            return
        if stuck:
            if attachment.standing is not STUCK:
                self._mark_stuck(attachment)
            self._bring_back(client)
            return
        self._vacate(attachment)
        if client.ticket and not client.asked and all(other.standing is not STUCK for other in client.gpus.values()):
            self._dequeue(client)

    def memory_reported(self, attachment: Attachment, foreseen: bool) -> None:
        """The client said what it has on the card. ``foreseen``: as the queue's guarantees expect."""
        was_silent = attachment.silent
        self.memory.reported(attachment)
        self._set_alarm(attachment.client)
        foreseen = foreseen and not was_silent
        for other in attachment.client.gpus.values():  # on all of them: it may be able to sleep now, or no longer
            if other is attachment or not foreseen:
                self.reconsider(other.gpu, foreseen)

    def demand_changed(self, attachment: Attachment, demand: float) -> None:
        """The client's demand for compute was measured: others may run beside it now, or no longer."""
        gpu = attachment.gpu
        before = chosen(self.node.settings, gpu) if gpu.turns and gpu.queue else []
        attachment.demand = demand
        if gpu.turns and gpu.queue:
            self.reconsider(gpu, foreseen=before == chosen(self.node.settings, gpu))

    def adopt(self, attachment: Attachment, number: int) -> None:
        """A client came back with a grant of an earlier scheduler. It holds that on."""
        taken = number <= self._last_grant and any(
            other.grant == number for client in self.node.clients.values() for other in client.gpus.values()
        )
        self._last_grant = max(self._last_grant, number)
        self._start(attachment, self._next_grant() if taken else number)
        self._begin_turn(attachment.client, fresh=[attachment])
        if attachment.gpu.turns:
            self._apply_policy([attachment.gpu])
        self.rebound()

    def disown(self, attachment: Attachment, number: int) -> None:
        """A client came back with a grant but without its memory: it cannot run, and must not believe that it can."""
        client, deadline = attachment.client, self.node.settings.drain_deadline
        self._last_grant = max(self._last_grant, number)
        self.node.commands.append(Drop(client.id, attachment.gpu.uuid, number, deadline))
        self._log(Level.INFO, f"Client {client.hex} has to ask again: its memory is not on GPU {attachment.gpu.uuid}")

    def attached(self, client: Client) -> None:
        """The client has further cards: they join its gang, wherever it stands."""
        if client.ticket:
            for attachment in client.gpus.values():
                self._insert_by_ticket(attachment)
            self.rebound()
        elif self._holds_some(client) and not self._complete(client):
            self._drop(client)

    def remove(self, client: Client) -> None:
        if client.ticket:
            self._dequeue(client)
        for attachment in client.gpus.values():
            if attachment.standing is not IDLE:
                self._vacate(attachment)
            self.memory.forget(attachment)
        self.alarms.set(client.id, None)

    def cut_short(self, client: Client) -> None:
        """End the turn of a client that cannot use the memory it holds, while others could."""
        self._drop(client)

    def empty(self, client: Client) -> None:
        """Have the client's memory leave its cards."""
        self.memory.give_up(client)
        self._set_alarm(client)

    # --- what operators do

    def suspend(self) -> None:
        """Anti-thrash is off: no grants and no queues, all clients run."""
        for client in self.node.clients.values():
            self.remove(client)

    def reconsider(self, gpu: GpuState, foreseen: bool = False) -> None:
        """Memory or capacity changed: have the card looked at again. ``foreseen``: the queue's guarantees hold as
        before."""
        open_questions = (
            gpu.queue or gpu.lacking or gpu.pending or gpu.expecting or gpu.called or gpu.uuid in self._awaited
        )
        if open_questions or takes_turns(self.node.settings, gpu) is not gpu.turns:
            self._look_again(gpu)
            if gpu.queue and not foreseen:
                self.rebound()

    def settings_changed(self) -> None:
        self._apply_policy(list(self.node.gpus.values()))
        self.rebound()

    # --- settling

    def settle(self) -> None:
        """Grant what can be granted, end what is over, until nothing changes."""
        now = self.node.now
        self._account_for_delays(now)
        while True:
            overdue = self.alarms.pop_due(now)
            if overdue is not None:
                self._alarm(self.node.clients[overdue])
                continue
            if not self._unsettled:
                break
            touched: dict[str, GpuState] = {}
            while self._unsettled:
                gpu = self._unsettled.pop(next(iter(self._unsettled)))
                touched[gpu.uuid] = gpu
                self._settle_card(gpu)
            for gpu in touched.values():
                self._refresh_terms(gpu)
        if self._unbound:
            self._rebound()
        if self._arrivals:
            self._log_parked()

    def _account_for_delays(self, now: float) -> None:
        due = self.alarms.next()
        if self._awaited:
            self.late += now - self._settled_at
        elif due is not None and now > due:
            self.late += now - due
        self._settled_at = now
        self._events += 1

    def rebound(self) -> None:
        """Something changed that no queue could foresee: its guarantees begin anew, from the state after this event."""
        self._unbound = True

    def _rebound(self) -> None:
        """Compute anew by when each waiter's turn begins."""
        self._unbound = False
        waiting = [client for client in self.node.clients.values() if client.ticket]
        waiting.sort(key=lambda client: client.ticket)
        tails: dict[str, float] = {}
        for client in waiting:
            self._bound(client, tails)

    def _settle_card(self, gpu: GpuState) -> None:
        gangs = [(client, can_ever_run(client)) for client in self._waiting_gangs(gpu)]
        self._settle_memory(gpu)
        for client, before in gangs:
            if can_ever_run(client) is not before:  # its other cards wait for it, or need no longer
                for attachment in client.gpus.values():
                    self._unsettled[attachment.gpu.uuid] = attachment.gpu
        if gpu.queue:
            self._dispatch(gpu)

    def _settle_memory(self, gpu: GpuState) -> None:
        if gpu.pending:
            self.memory.answer(gpu)
        if takes_turns(self.node.settings, gpu) is not gpu.turns:
            self._apply_policy([gpu])
            self.rebound()
        elif gpu.pending and gpu.turns:
            self._drop_surplus(gpu)
        if gpu.lacking or gpu.pending or gpu.called or (gpu.expecting and self.node.settings.anti_thrash):
            for attachment in self.memory.move(gpu):
                self._set_alarm(attachment.client)

    def _look_again(self, gpu: GpuState) -> None:
        """Have this card looked at again, and all cards of gangs that wait here. What cannot leave this card may have
        changed, and so which of them can run."""
        self._unsettled[gpu.uuid] = gpu
        for client in self._waiting_gangs(gpu):
            for attachment in client.gpus.values():
                self._unsettled[attachment.gpu.uuid] = attachment.gpu

    def _waiting_gangs(self, gpu: GpuState) -> list[Client]:
        return [gpu.queue[client].client for client in gpu.gangs if client in gpu.queue]

    def _dispatch(self, gpu: GpuState) -> None:
        for attachment in chosen(self.node.settings, gpu):
            if self._ready(attachment.client, but=gpu):
                self._grant(attachment.client)

    def _ready(self, client: Client, but: GpuState | None = None) -> bool:
        """All or none: on every card the client's turn has come, and its memory is there. ``but``: the card on which
        its turn is known to have come."""
        return all(
            attachment.whole
            and attachment.standing is not DRAINING
            and (attachment.gpu is but or may_begin(self.node.settings, attachment))
            for attachment in client.gpus.values()
        )

    def _holds_some(self, client: Client) -> bool:
        return any(attachment.standing is RUNNING for attachment in client.gpus.values())

    def _complete(self, client: Client) -> bool:
        """Give a client that holds some of its cards the others too, where its turn would have come at once."""
        missing = [attachment for attachment in client.gpus.values() if attachment.standing is not RUNNING]
        if not all(attachment.whole for attachment in client.gpus.values()) or not all(
            may_begin(self.node.settings, attachment) for attachment in missing
        ):
            return False
        if missing:
            self._grant(client)
        return True

    def _bring_back(self, client: Client) -> None:
        """A stuck client lives. Give it a grant again: now where no other is in its way, else in its turn."""
        if client.ticket or (self._holds_some(client) and self._complete(client)):
            return
        self._drop(client)
        self._enqueue(client, asked=False)

    def _refresh_terms(self, gpu: GpuState) -> None:
        """Tell the holders when others begin or cease to wait for their cards. A turn that is over ends at once."""
        self._note_awaited(gpu)
        if not gpu.turns:
            return
        contended = is_contended(self.node.settings, gpu)
        now = self.node.now
        for attachment in list(gpu.running.values()):
            if attachment.contended is contended or attachment.standing is not RUNNING:
                continue
            client = attachment.client
            if contended and client.turn_end is not None and client.turn_end <= now:
                self._drop(client)
                continue
            attachment.contended = contended
            self._send_terms(attachment)
            self._set_alarm(client)
        if contended and gpu.demand > gpu.capacity:
            self.memory.prepare(gpu)

    def _note_awaited(self, gpu: GpuState) -> None:
        """Note whether a client here waits for memory or for its quota: that time is not the queue's fault."""
        awaited = bool(gpu.pending or gpu.compute.throttled)
        if gpu.queue and (gpu.stuck or gpu.lacking or gpu.silent):
            for attachment in chosen(self.node.settings, gpu):
                if not attachment.whole:
                    awaited = True
                    self.memory.watch(attachment)
                    self._set_alarm(attachment.client)
            if waiters(gpu)[1]:  # others overtake them
                awaited = self._unbound = True
        if awaited:
            self._awaited[gpu.uuid] = gpu
        else:
            self._awaited.pop(gpu.uuid, None)

    def _alarm(self, client: Client) -> None:
        late = [attachment for attachment in client.gpus.values() if self.memory.is_overdue(attachment)]
        if late:
            for attachment in late:
                if self.memory.confront(attachment):
                    for other in client.gpus.values():
                        self._look_again(other.gpu)
                    self.rebound()
            self._set_alarm(client)
            return
        ends = client.turn_end if client.drain_by is None else client.drain_by
        if ends is None or ends > self.node.now:
            self._set_alarm(client)  # what it was set for is over
            return
        if client.drain_by is None:
            self._drop(client)
            return
        for attachment in client.gpus.values():
            if attachment.standing is DRAINING:
                self._mark_stuck(attachment)

    # --- changes of standing

    def _grant(self, client: Client) -> None:
        """Grant every card that the client does not hold yet, in UUID order."""
        promoted = client.parked
        if client.ticket:
            self._dequeue(client)
        attachments = [attachment for attachment in client.gpus.values() if attachment.standing is not RUNNING]
        beside = [attachment.gpu.allocated_running for attachment in attachments]
        for attachment in attachments:
            self._start(attachment, self._next_grant())
        self._begin_turn(client, fresh=attachments, anew=len(attachments) == len(client.gpus))
        for attachment, others in zip(attachments, beside, strict=True):
            self._log_grant(attachment, others, Level.INFO if promoted or not client.seen else Level.DEBUG)
        if promoted:
            self._log(Level.INFO, f"Client {client.hex} promoted from wait queue")
        client.seen = True

    def _start(self, attachment: Attachment, number: int) -> None:
        gpu, client = attachment.gpu, attachment.client
        vacant = not gpu.running and not gpu.draining
        attachment.grant = number
        self._stand(attachment, RUNNING)
        self.node.counters.grants += 1
        if gpu.turns and gpu.last_holder not in (0, client.id):
            attachment.switches += 1
            self._book_switch(gpu, client, vacant)
        gpu.last_holder = client.id

    def _book_switch(self, gpu: GpuState, client: Client, vacant: bool) -> None:
        """Book that the card passed to another client. The stall counts from the moment that client wanted the card."""
        now = self.node.now
        stall = max(0.0, now - max(gpu.vacant_since, client.asked_at)) if vacant else 0.0
        took = max(stall, now - max(gpu.ended_at, client.asked_at))
        gpu.last_switch = Switch(gpu.moved_out, gpu.moved_in, took, stall)
        gpu.stalls.append(min(stall, self.node.settings.max_runtime))
        gpu.stall = typical(gpu.stalls)
        self.node.counters.switches += 1
        self._log(
            Level.INFO,
            f"Switched GPU {gpu.uuid} from client {gpu.last_holder:016x} to client {client.hex}: "
            f"{gpu.moved_out // MIB} MB out, {gpu.moved_in // MIB} MB in, {stall:.3f} s of stall",
        )
        gpu.moved_out = gpu.moved_in = 0

    def _begin_turn(self, client: Client, fresh: Sequence[Attachment] = (), anew: bool = True) -> None:
        """Set the terms of what the client holds: one quantum for all of its cards, counted from the turn's begin.
        Sends ``fresh`` grants, and terms that changed."""
        settings = self.node.settings
        held = [attachment for attachment in client.gpus.values() if attachment.standing is RUNNING]
        lengths = [quantum(settings, attachment.gpu.stall) for attachment in held if attachment.gpu.turns]
        length = max(lengths) if lengths else None
        if anew:
            client.turn_start = self.node.now
            self._last_turn += 1
            client.turn = self._last_turn
        client.turn_end = None if length is None else client.turn_start + length
        for attachment in held:
            before = (attachment.exclusive, attachment.contended, attachment.quantum)
            turns = attachment.gpu.turns
            attachment.exclusive = turns
            attachment.contended = turns and is_contended(self.node.settings, attachment.gpu)
            attachment.quantum = length if turns else None
            if attachment in fresh or (attachment.exclusive, attachment.contended, attachment.quantum) != before:
                self._send_terms(attachment)
        self._set_alarm(client)

    def _drop(self, client: Client) -> None:
        """End the turn on all cards that the client holds."""
        settings, node = self.node.settings, self.node
        for attachment in client.gpus.values():
            if attachment.standing is RUNNING:
                self._stand(attachment, DRAINING)
                client.drain_by = node.now + settings.drain_deadline
                node.counters.drops += 1
                node.commands.append(Drop(client.id, attachment.gpu.uuid, attachment.grant, settings.drain_deadline))
        self._set_alarm(client)

    def _mark_stuck(self, attachment: Attachment) -> None:
        """The client did not drain in time: others go on beside it."""
        client, gpu = attachment.client, attachment.gpu
        self._stand(attachment, STUCK)
        attachment.drain_timeouts += 1
        self._set_alarm(client)
        self._log(
            Level.WARN,
            f"Client {client.hex} (pid {client.pid}) is stuck: it did not drain within "
            f"{self.node.settings.drain_deadline:g} s on GPU {gpu.uuid}; it stays there beside the others until it "
            "releases",
        )

    def _vacate(self, attachment: Attachment) -> None:
        self._stand(attachment, IDLE)
        attachment.grant = 0
        self._set_alarm(attachment.client)

    def _stand(self, attachment: Attachment, standing: Standing) -> None:
        """Change a client's standing on one card, and all that follows from standings there."""
        gpu, client, before = attachment.gpu, attachment.client, attachment.standing
        if before is RUNNING:
            del gpu.running[client.id]
            gpu.allocated_running -= attachment.allocated
            gpu.ended_at, client.left = self.node.now, self._events
            attachment.exclusive = attachment.contended = False
            attachment.quantum = None
            self.node.shifted.append(attachment)
        elif before is DRAINING:
            del gpu.draining[client.id]
        elif before is STUCK:
            del gpu.stuck[client.id]
        if standing is RUNNING:
            gpu.running[client.id] = attachment
            gpu.allocated_running += attachment.allocated
            self.node.shifted.append(attachment)
        elif standing is DRAINING:
            gpu.draining[client.id] = attachment
        elif standing is STUCK:
            gpu.stuck[client.id] = attachment
        attachment.standing = standing
        attachment.changed()
        if not gpu.running and not gpu.draining:
            gpu.vacant_since = self.node.now
        if before is STUCK or standing is STUCK:  # memory of a stuck client cannot leave its card, nor its contexts
            for other in client.gpus.values():
                self._look_again(other.gpu)
            self.rebound()
        self._unsettled[gpu.uuid] = gpu

    def _set_alarm(self, client: Client) -> None:
        draining = contended = False
        for attachment in client.gpus.values():
            draining |= attachment.standing is DRAINING
            contended |= attachment.contended
        if not draining:
            client.drain_by = None
        due = [attachment.confirm_by for attachment in client.gpus.values() if attachment.confirm_by is not None]
        ends = client.drain_by if draining else client.turn_end if contended else None
        if ends is not None:
            due.append(ends)
        self.alarms.set(client.id, min(due, default=None))

    def _apply_policy(self, gpus: Sequence[GpuState]) -> None:
        """Make cards run in turns or side by side, as the policy says."""
        settings = self.node.settings
        began = set()
        for gpu in gpus:
            self._unsettled[gpu.uuid] = gpu
            took_turns, gpu.turns = gpu.turns, takes_turns(settings, gpu)
            if gpu.turns and not took_turns:
                began.add(gpu.uuid)
                gpu.moved_out = gpu.moved_in = 0
            if gpu.turns is not took_turns:
                self._log_regime(gpu)
        for gpu in gpus:
            if gpu.turns:
                self._drop_surplus(gpu)
        for client in {
            attachment.client.id: attachment.client for gpu in gpus for attachment in gpu.running.values()
        }.values():
            self._begin_turn(client, anew=not began.isdisjoint(client.gpus))

    def _drop_surplus(self, gpu: GpuState) -> None:
        for attachment in surplus(self.node.settings, gpu):
            self._drop(attachment.client)

    # --- the queue

    def _enqueue(self, client: Client, asked: bool) -> None:
        client.asked_at = self.node.now
        if not any(
            attachment.gpu.turns or attachment.standing is DRAINING or not attachment.whole
            for attachment in client.gpus.values()
        ):
            self._grant(client)
            return
        self._last_ticket += 1
        client.ticket = self._last_ticket
        client.asked = asked
        tails: dict[str, float] = {}
        for attachment in client.gpus.values():
            last = next(reversed(attachment.gpu.queue.values()), None)
            if last is not None:
                tails[attachment.gpu.uuid] = last.client.start_by + self.late - last.client.start_by_late
        self._bound(client, tails)
        for attachment in client.gpus.values():
            attachment.gpu.queue[client.id] = attachment
            self._unsettled[attachment.gpu.uuid] = attachment.gpu
        self._arrivals.append(client)

    def _dequeue(self, client: Client) -> None:
        client.waited += self.node.now - client.asked_at
        client.ticket = 0
        client.asked = client.parked = False
        for attachment in client.gpus.values():
            del attachment.gpu.queue[client.id]
            self._unsettled[attachment.gpu.uuid] = attachment.gpu

    def _insert_by_ticket(self, attachment: Attachment) -> None:
        gpu = attachment.gpu
        queue = {**gpu.queue, attachment.client.id: attachment}
        gpu.queue = dict(sorted(queue.items(), key=lambda item: item[1].client.ticket))
        self._unsettled[gpu.uuid] = gpu

    def _bound(self, client: Client, tails: dict[str, float]) -> None:
        """The waiter's guarantee: one longest turn after the waiter before it begins; if it is the first, from now.
        ``tails`` holds, per card, the guarantee of the waiter before it, and is moved on to this one."""
        now = self.node.now
        turn = longest_turn(self.node.settings)
        begins = [now]
        for uuid, attachment in client.gpus.items():
            if uuid in tails:
                begins.append(tails[uuid] + turn)
            elif attachment.gpu.running or attachment.gpu.draining:
                begins.append(now + turn)
        client.start_by = max(begins)
        client.start_by_late = self.late
        for uuid in client.gpus:
            tails[uuid] = client.start_by

    # --- commands and log lines

    def _next_grant(self) -> int:
        self._last_grant += 1
        return self._last_grant

    def _send_terms(self, attachment: Attachment) -> None:
        self.node.commands.append(
            Grant(
                attachment.client.id,
                attachment.gpu.uuid,
                attachment.grant,
                attachment.exclusive,
                attachment.contended,
                attachment.quantum,
            )
        )

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))

    def _log_grant(self, attachment: Attachment, others: int, level: Level) -> None:
        gpu, client = attachment.gpu, attachment.client
        own = attachment.allocated // MIB
        if self.node.settings.mode is Mode.AUTO and len(gpu.running) > 1 and gpu.allocated_running <= gpu.capacity:
            self._log(
                level,
                f"Auto mode: memory fits ({others // MIB} + {own} <= {gpu.capacity // MIB} MB), allowing concurrent",
            )
        self._log(
            level, f"Scheduled client {client.hex} (mem: {own} MB, total running: {gpu.allocated_running // MIB} MB)"
        )

    def _log_regime(self, gpu: GpuState) -> None:
        if gpu.attachments:
            how = "take turns" if gpu.turns else "run side by side"
            self._log(Level.INFO, f"Clients of GPU {gpu.uuid} {how}: {reason(self.node.settings, gpu)}")

    def _log_parked(self) -> None:
        for client in self._arrivals:
            if client.ticket and not client.parked:
                client.parked = True
                why = next((attachment.gpu for attachment in client.gpus.values() if attachment.gpu.turns), None)
                drains = any(attachment.standing is DRAINING for attachment in client.gpus.values())
                waits = "it is still draining" if drains else "its memory is on the way"
                text = reason(self.node.settings, why) if why is not None else waits
                self._log(Level.INFO, f"Client {client.hex} moved to wait queue ({text})")
        self._arrivals.clear()
