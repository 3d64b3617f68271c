"""Sleep: whose contexts leave their cards, and when they come back.

A client sleeps as a whole. Its memory leaves its cards first, then it is told to take its contexts off. Operators and
idleness decide that, and where contexts are in the way ``policy/victims.py`` does. A sleeper that wants its contexts
waits in the queue of its cards like a client that wants its memory. It is called when its turn has come on all of its
cards, or when there is room anyway: only then do others make room for its contexts. It is woken when that room is
there on all of its cards. One sleeper at a time is called on a card, in the order of arrival, so no two wait for each
other.

A client that fails, declines or does not answer is planned around, and not told again.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.core import events
from nvshare.core.broken import InvariantBroken
from nvshare.core.commands import GoToSleep, Level, Log, WakeUp
from nvshare.core.memory import ledger
from nvshare.core.memory.headroom import MIB, beside_contexts, extra, fixed
from nvshare.core.memory.selection import can_ever_run, chosen
from nvshare.core.memory.turns import Turns
from nvshare.core.sleep.lifecycle import Change, IllegalChange, State, after
from nvshare.core.sleep.policy.victims import Candidate, victims
from nvshare.core.sleep.state import WORDS, Bar, Outcome, Why
from nvshare.core.state import Attachment, Client, GpuState, Node, Standing
from nvshare.core.timers import Alarms

UNKNOWN = 999  # CUDA_ERROR_UNKNOWN, for a failure without a number


class Sleepers:
    def __init__(self, node: Node, turns: Turns) -> None:
        self.node = node
        self.turns = turns
        self.alarms: Alarms[int] = Alarms()
        self._able: dict[int, Client] = {}  # clients that said that they can sleep
        self._concerned: dict[int, Client] = {}  # clients that are not awake, or are to sleep

    # --- what clients say

    def said(self, client: Client, bar: Bar, context: int) -> None:
        """The client can sleep, or cannot."""
        sleep = client.sleep
        sleep.bar, sleep.allowed = bar, self.node.settings.sleeps
        if bar is Bar.NONE:
            self._able[client.id] = client
        else:
            self._able.pop(client.id, None)
        if sleep.is_here:
            sleep.fault = 0
        elif context:
            for attachment in client.gpus.values():
                ledger.measure_context(attachment, context, self.node.settings)
        self._look_again(client)
        self._set_alarm(client)

    def ended(self, client: Client, event: events.SleepEnded) -> None:
        """An order to sleep has ended, one way or another."""
        sleep = client.sleep
        if sleep.state is not State.ORDERED or event.order != sleep.order:
            self._log(Level.DEBUG, f"Ignored SLEPT {event.order} of client {client.hex}, which is {sleep.state.value}")
            return
        sleep.late, sleep.answer_by, by = False, None, sleep.why
        sleep.why = None
        if event.outcome is Outcome.ASLEEP:
            self._change(client, Change.SLEEP)
            for attachment in client.gpus.values():
                ledger.measure_context(attachment, _expected_context(attachment), self.node.settings)
                size, uuid = attachment.context // MIB, attachment.gpu.uuid
                self._log(Level.INFO, f"Client {client.hex} sleeps: its context ({size} MB) left GPU {uuid}")
        elif event.outcome is Outcome.WOKE:
            sleep.spared_until = self.node.now + self.node.settings.drain_deadline
            self._change(client, Change.STAY)
            level = Level.DEBUG if by is None else Level.INFO
            self._log(level, f"Client {client.hex} stays awake: it wanted its GPU when it was told to sleep")
        elif event.outcome is Outcome.DECLINED:
            sleep.bar = event.bar if event.bar is not Bar.NONE else Bar.CONTEXTS
            self._able.pop(client.id, None)
            self._change(client, Change.STAY)
            self._log(Level.INFO, f"Client {client.hex} stays awake: {WORDS[sleep.bar]}")
        else:
            sleep.fault = event.error or UNKNOWN
            self._change(client, Change.STAY)
            self._log(
                Level.WARN,
                f"Client {client.hex} (pid {client.pid}) stays awake: the driver could not checkpoint it "
                f"(error {sleep.fault}); it is not told to sleep again",
            )
        self._set_alarm(client)

    def requested(self, client: Client, order: int) -> None:
        """A thread of a sleeper wants the driver."""
        sleep = client.sleep
        if sleep.state in (State.AWAKE, State.LEAVING, State.ORDERED) or order != sleep.order or sleep.fault:
            self._log(Level.DEBUG, f"Ignored REQ_WAKE {order} of client {client.hex}, which is {sleep.state.value}")
            return
        self.turns.request_context(client)

    def woken(self, client: Client, order: int, error: int) -> None:
        """A wake-up has ended."""
        sleep = client.sleep
        if sleep.state is not State.WAKING or order != sleep.order:
            self._log(Level.DEBUG, f"Ignored AWAKE {order} of client {client.hex}, which is {sleep.state.value}")
            return
        sleep.late, sleep.answer_by, sleep.active_at = False, None, self.node.now
        sleep.fault = error
        if error:
            self._change(client, Change.FAIL)
            self.turns.withdraw(client)
            self._log(
                Level.WARN,
                f"Client {client.hex} (pid {client.pid}) could not be woken: the driver answered error {error}; its "
                "calls fail with that, and nvsharectl wake tries again",
            )
        else:
            self._change(client, Change.RISE)
            self._log(Level.INFO, f"Client {client.hex} is awake")
        self._set_alarm(client)

    def stir(self, client: Client) -> None:
        """The client asks for something: nobody but who needs its room wants it to sleep."""
        client.sleep.active_at = self.node.now
        if client.sleep.why is None or not client.sleep.is_here:
            return
        client.sleep.why = None
        self._log(Level.INFO, f"Client {client.hex} stays awake: it has work")
        if client.sleep.state is State.LEAVING:
            self._change(client, Change.SPARE)

    def measured(self, client: Client) -> None:
        """The client used its card."""
        client.sleep.active_at = self.node.now

    def joined(self, client: Client) -> None:
        """The client has registered, awake or asleep."""
        client.sleep.active_at = self.node.now
        if not client.sleep.is_here:
            self._concerned[client.id] = client
            self.turns.empty(client)
            self._log(Level.INFO, f"Client {client.hex} sleeps since before it registered")

    def attached(self, client: Client) -> None:
        """The client has further cards."""
        if client.sleep.state is State.CALLED:
            self._change(client, Change.DISMISS)  # there has to be room on these too
        if not client.sleep.is_here:
            self.turns.empty(client)

    def remove(self, client: Client) -> None:
        self.alarms.set(client.id, None)
        self._able.pop(client.id, None)
        self._concerned.pop(client.id, None)
        for attachment in client.gpus.values():
            if attachment.gpu.called is client:
                attachment.gpu.called = None

    # --- what operators say

    def order(self, client: Client) -> None:
        """An operator puts the client to sleep, whatever failed before."""
        sleep = client.sleep
        if sleep.is_here:
            sleep.fault, sleep.spared_until = 0, None
        if self.why_not(client) is None and sleep.is_here:
            sleep.why = Why.OPERATOR
            self._concerned[client.id] = client
            self._look_again(client)

    def call(self, client: Client) -> None:
        """An operator wakes the client, whatever failed before."""
        if client.sleep.state in (State.ASLEEP, State.CALLED):
            client.sleep.fault = 0
            self._look_again(client)
            self.turns.request_context(client)
        elif client.sleep.is_here:
            self.stir(client)

    def why_not(self, client: Client) -> str | None:
        """Why a client cannot be put to sleep, in words; None: it can, or sleeps."""
        sleep = client.sleep
        if not sleep.is_here:
            return None
        if not self.node.settings.anti_thrash:
            return "anti-thrash is off, so no task gives its memory up"
        return barred(client)

    # --- settling

    def settle(self) -> bool:
        """Choose, order, call and wake whom the state as it is asks for. True: something changed."""
        acted = False
        while (due := self.alarms.pop_due(self.node.now)) is not None:
            self._alarm(self.node.clients[due])
            acted = True
        if self._able and self._choose():
            acted = True
        for client in sorted(self._concerned.values(), key=lambda client: client.ticket):
            if self._advance(client):
                acted = True
        return acted

    def _choose(self) -> bool:
        """Have those leave whose contexts are in the way, and spare those who no longer are."""
        settings, lacking = self.node.settings, {}
        near: set[int] = set()  # clients that run, or whose turn has come
        for gpu in self.node.gpus.values() if settings.anti_thrash else ():
            if gpu.holds_contexts and (gpu.queue or gpu.pending or gpu.expecting or gpu.called):
                coming = chosen(settings, gpu)
                near.update(attachment.client.id for attachment in coming if self._comes(attachment.client))
                lacking[gpu.uuid] = _lack(gpu, coming)
        clients = [client for client in self._able.values() if client.id not in near and _may_leave(client)]
        wanted = (
            victims([_candidate(client) for client in clients], lacking)
            if any(size > 0 for size in lacking.values())
            else []
        )
        acted = False
        for client in [clients[index] for index in wanted]:
            if client.sleep.state is State.AWAKE:
                self._change(client, Change.CHOOSE)
                self._log(Level.DEBUG, f"Client {client.hex} is to sleep: the room of its context is needed")
                acted = True
        kept = {clients[index].id for index in wanted}
        for client in list(self._concerned.values()):
            if client.sleep.state is State.LEAVING and client.sleep.why is None and client.id not in kept:
                self._change(client, Change.SPARE)
                acted = True
        return acted

    def _advance(self, client: Client) -> bool:
        """The next step of one client, if there is one."""
        state = client.sleep.state
        if state is State.AWAKE:
            return self._begin(client)
        if state is State.LEAVING:
            return self._order(client)
        if state is State.ASLEEP and client.ticket and not client.sleep.lost and self.may_be_called(client):
            self._change(client, Change.CALL)
            self._wake(client)
            return True
        if state is State.CALLED:
            if not client.ticket or not self._comes(client):
                self._change(client, Change.DISMISS)
                return True
            return self._wake(client)
        return False

    def _begin(self, client: Client) -> bool:
        """It is to sleep although nobody needs its room. Its turn ends first."""
        if client.sleep.why is None or self.why_not(client) is not None:
            client.sleep.why = None
            self._concerned.pop(client.id, None)
            return False
        standings = {attachment.standing for attachment in client.gpus.values()}
        if Standing.RUNNING in standings:
            self.turns.cut_short(client)
            return True
        if standings != {Standing.IDLE} or client.ticket:
            return False
        self._change(client, Change.CHOOSE)
        return True

    def _order(self, client: Client) -> bool:
        """Its memory has left its cards: now its contexts may."""
        sleep = client.sleep
        if not client.can_sleep or not self.node.settings.anti_thrash:
            sleep.why = None
            self._change(client, Change.SPARE)
            return True
        if any(attachment.target for attachment in client.gpus.values()):
            self.turns.empty(client)  # it was given memory meanwhile
            return True
        if not self._is_empty(client):
            return False
        deadline = self.node.settings.drain_deadline
        sleep.order += 1
        sleep.answer_by = self.node.now + deadline
        self._change(client, Change.ORDER)
        context = max(map(_expected_context, client.gpus.values()))
        self.node.commands.append(GoToSleep(client.id, sleep.order, deadline / 2, context))
        self._set_alarm(client)
        return True

    def _is_empty(self, client: Client) -> bool:
        """It has no grant, nothing on any card, and knows that it may have nothing there."""
        return not any(
            attachment.standing is not Standing.IDLE
            or attachment.held
            or attachment.wanted
            or attachment.applied != attachment.number
            or (client.id, uuid) in self.node.first_requests
            for uuid, attachment in client.gpus.items()
        )

    def may_be_called(self, client: Client) -> bool:
        """No other is called on its cards, and its turn has come or there is room for its contexts as things are."""
        attachments = client.gpus.values()
        if any(attachment.gpu.called is not None for attachment in attachments):
            return False
        return self._comes(client) or all(map(self._has_spare_room, attachments))

    def _has_spare_room(self, attachment: Attachment) -> bool:
        """There is room for its context, also when those whose turn has come have all of theirs."""
        gpu, settings = attachment.gpu, self.node.settings
        if ledger.room(gpu, settings) < attachment.context:
            return False
        return not gpu.holds_contexts or _lack(gpu, chosen(settings, gpu)) + attachment.context <= 0

    def _comes(self, client: Client) -> bool:
        """Its turn has come on all of its cards."""
        settings = self.node.settings
        return can_ever_run(client) and all(
            attachment in chosen(settings, attachment.gpu) for attachment in client.gpus.values()
        )

    def _wake(self, client: Client) -> bool:
        """Tell it to wake, if its room is there on all of its cards."""
        if not all(map(self.has_room, client.gpus.values())):
            return False
        client.sleep.answer_by = self.node.now + self.node.settings.drain_deadline
        self._change(client, Change.WAKE)
        for attachment in client.gpus.values():
            size, uuid = attachment.context // MIB, attachment.gpu.uuid
            self._log(Level.INFO, f"Client {client.hex} wakes: its context ({size} MB) has room on GPU {uuid}")
        self.node.commands.append(WakeUp(client.id, client.sleep.order))
        self._set_alarm(client)
        return True

    def has_room(self, attachment: Attachment) -> bool:
        """The room of its context, which is counted already, is there."""
        return attachment.context_here == 0 or ledger.room(attachment.gpu, self.node.settings) >= 0

    # --- alarms

    def _alarm(self, client: Client) -> None:
        sleep, now = client.sleep, self.node.now
        if sleep.answer_by is not None and sleep.answer_by <= now:
            sleep.answer_by, sleep.late = None, True
            does = "go to sleep" if sleep.state is State.ORDERED else "wake"
            self._log(
                Level.WARN,
                f"Client {client.hex} (pid {client.pid}) does not {does}: no answer within "
                f"{self.node.settings.drain_deadline:g} s; the others go on beside its context",
            )
        if sleep.spared_until is not None and sleep.spared_until <= now:
            sleep.spared_until = None
        if self._is_idle(client):
            sleep.why = Why.IDLE
            self._concerned[client.id] = client
            self._log(Level.INFO, f"Client {client.hex} is to sleep: idle for {now - sleep.active_at:.0f} s")
        self._look_again(client)
        self._set_alarm(client)

    def _is_idle(self, client: Client) -> bool:
        if self._idle_at(client) is None or client.ticket or any(one.wanted for one in client.gpus.values()):
            return False
        return client.sleep.active_at + (self.node.settings.sleep_after or 0.0) <= self.node.now

    def _idle_at(self, client: Client) -> float | None:
        """When it has been idle for long enough, if it does nothing until then; None: that does not matter."""
        length = self.node.settings.sleep_after
        sleep = client.sleep
        if length is None or sleep.state is not State.AWAKE or sleep.why is not None or not client.gives_way:
            return None
        return max(sleep.active_at + length, self.node.now)

    def _set_alarm(self, client: Client) -> None:
        idle_at = self._idle_at(client)
        if idle_at is not None and idle_at <= self.node.now:
            idle_at = self.node.now + (self.node.settings.sleep_after or 0.0)  # it waits for something: look later
        times = (client.sleep.answer_by, client.sleep.spared_until, idle_at)
        self.alarms.set(client.id, min((at for at in times if at is not None), default=None))

    # --- changes

    def _change(self, client: Client, change: Change) -> None:
        """The one place where a client's sleep changes, with all that follows from it on its cards."""
        sleep = client.sleep
        try:
            sleep.state = after(sleep.state, change)
        except IllegalChange as fault:
            raise InvariantBroken("legal changes of sleep", f"{client.hex}: {fault}", self.node) from None
        if sleep.state is State.AWAKE and sleep.why is None:
            self._concerned.pop(client.id, None)
        else:
            self._concerned[client.id] = client
        for attachment in client.gpus.values():
            attachment.gpu.called = client if sleep.state is State.CALLED else attachment.gpu.called
            if attachment.gpu.called is client and sleep.state is not State.CALLED:
                attachment.gpu.called = None
            ledger.move_context(attachment, self.node.settings)
        if change is Change.CHOOSE:
            self.turns.empty(client)
        self._look_again(client)

    def _look_again(self, client: Client) -> None:
        """Whether it can sleep, or what it takes on its cards, may have changed."""
        for attachment in client.gpus.values():
            attachment.gpu.changed()
            self.turns.reconsider(attachment.gpu)

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))


def barred(client: Client) -> str | None:
    """Why a client cannot sleep, in words; None: it can."""
    sleep = client.sleep
    if sleep.bar is None:
        return "its library does not know how, or has not said yet"
    if sleep.bar is not Bar.NONE:
        return WORDS[sleep.bar]
    if sleep.fault:
        return f"the driver refused it last time (error {sleep.fault})"
    if sleep.late or any(one.silent for one in client.gpus.values()):
        return "it does not answer"
    if not client.can_swap or client.oversize or any(one.lasting for one in client.gpus.values()):
        return WORDS[Bar.PINNED]
    if any(one.standing is Standing.STUCK for one in client.gpus.values()):
        return "its work does not end"
    return None


def _expected_context(attachment: Attachment) -> int:
    """What its context will take. One that was never measured: as much as the largest here."""
    return attachment.context or attachment.gpu.largest_context


def _may_leave(client: Client) -> bool:
    """It can be told to sleep for others now, or was."""
    state_fits = client.sleep.state is State.AWAKE or (client.sleep.state is State.LEAVING and not client.sleep.why)
    return (
        state_fits
        and client.gives_way
        and all(attachment.standing is Standing.IDLE and not attachment.wanted for attachment in client.gpus.values())
    )


def _candidate(client: Client) -> Candidate:
    frees = {uuid: attachment.context_here for uuid, attachment in client.gpus.items() if attachment.gpu.holds_contexts}
    return Candidate(frees, client.ticket, client.sleep.active_at, client.sleep.state is State.LEAVING)


def _lack(gpu: GpuState, coming: list[Attachment]) -> int:
    """Bytes by which contexts that are here keep the clients that run, or whose turn has come, from having all of
    theirs; less the contexts that leave already."""
    size = beside_contexts(gpu) - sum(map(fixed, gpu.attachments.values()))
    busy = (*gpu.running.values(), *gpu.draining.values())
    comes = (attachment for attachment in coming if attachment.standing is not Standing.DRAINING)
    wanted = sum(map(extra, busy)) + sum(extra(one) + one.context - one.context_here for one in comes)
    return wanted - size - sum(one.context_here for one in _leaving(gpu))


def _leaving(gpu: GpuState) -> Iterator[Attachment]:
    """Clients here whose contexts leave whatever happens."""
    for attachment in gpu.attachments.values():
        sleep = attachment.client.sleep
        ordered = sleep.state is State.ORDERED and not sleep.late
        if ordered or (sleep.state is State.LEAVING and sleep.why is not None):
            yield attachment
