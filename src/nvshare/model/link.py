"""A modelled client's way to its card: what ``libnvshare.so`` does between program and driver, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nvshare.bench.outcome import TaskPlan
from nvshare.core import commands, events
from nvshare.core.policy import membership
from nvshare.core.settings import Cores, Priority, SliceEnd
from nvshare.model import costs
from nvshare.model.card import Card, OutOfMemory
from nvshare.model.engine import Engine, Process, Signal
from nvshare.model.machine import Action, Do, EventType, Gate, Machine, busy_part
from nvshare.model.mover import Mover
from nvshare.model.shell import Shell
from nvshare.model.work import Work
from nvshare.wire import messages as wire

NS = 1e9  # nanoseconds in a second
ROUNDED_UP = 0.75  # of a submission that may be in flight beyond the budget


class Path(Protocol):
    """How a task reaches its card."""

    launch_seconds: float  # host time per launch

    def open(self) -> Process:
        """Make the context."""

    def allocate(self, size: int) -> Process:
        """Get memory, or raise ``OutOfMemory``."""

    def enter(self) -> Process:
        """Wait until work may be submitted."""

    def batch(self, wanted: int, kernel_seconds: float) -> int:
        """How many launches may go into one piece of work now."""

    def pace(self, seconds: float) -> Process:
        """Wait until so much more work may be in flight."""

    def submitted(self, launches: int, done: Signal, seconds: float = 0.0) -> None:
        """Work was submitted that takes so long alone; ``done`` fires when the card finished it."""

    def close(self) -> None:
        """The process ends."""

    @property
    def window(self) -> int | None:
        """The pending-kernel window, where there is one."""


class Plain:
    """Without nvshare: straight to the card."""

    launch_seconds = costs.LAUNCH
    window = None

    def __init__(self, card: Card, user: int) -> None:
        self._card = card
        self._user = user

    def open(self) -> Process:
        self._card.open_context(self._user)
        yield 0.0

    def allocate(self, size: int) -> Process:
        self._card.allocate(self._user, size)
        yield 0.0

    def enter(self) -> Process:
        yield from ()

    def batch(self, wanted: int, kernel_seconds: float) -> int:
        return wanted

    def pace(self, seconds: float) -> Process:
        yield from ()

    def submitted(self, launches: int, done: Signal, seconds: float = 0.0) -> None:
        pass

    def close(self) -> None:
        self._card.close_context(self._user)


class Shared:
    """Under ``libnvshare.so``: the library's own state machine between a modelled program and a modelled card.

    It decides, this carries out. Its memory comes and goes as the scheduler's targets say; while it holds a grant all
    of it is on the card.
    """

    launch_seconds = costs.LAUNCH + costs.LAUNCH_SHARED

    def __init__(self, engine: Engine, shell: Shell, card: Card, client: int, task: TaskPlan) -> None:
        self._engine = engine
        self._shell = shell
        self._card = card
        self._client = client
        self._plan = task
        self._registered = Signal()
        self._memory: dict[int, Signal] = {}
        self.mover = Mover(engine, card, client, self._report_memory)
        self._work = Work(engine)
        self._machine = Machine()
        self._timer = 0.0  # the next TIME, 0 for none
        self._carry_out: dict[Do, Callable[[Action], None]] = {
            Do.SET_GATE: self._set_gate,
            Do.SEND_REQ_LOCK: self._ask_grant,
            Do.SEND_RELEASED: self._tell_released,
            Do.SEND_REQ_TURN: self._ask_slice,
            Do.SEND_TURN_OVER: self._tell_over,
            Do.BEGIN_SLICE: self._begin_slice,
            Do.WATCH_IDLE: self._watch_idle,
            Do.CLOSE_SLICE: self._close_slice,
            Do.DRAIN_TURN: self._drain_turn,
            Do.OPEN_MEMORY: self._open_memory,
            Do.REPORT: self._fault,
        }

        self._gate = Gate.OPEN
        self._opened = Signal()
        self._quantum = False  # a turn with an end
        self._contended = False
        self._in_slices = False
        self._budget = 0.0  # seconds of work in flight, in slices
        self._news = True  # the next submission is one
        self._drain_began = 0.0
        self._closing = False  # a slice, or what is left of one: tell when all has ended
        self._closed = False

        self._submissions = 0
        self._window = costs.FREE_WINDOW

    # --- the program's side

    def open(self) -> Process:
        yield costs.REGISTRATION
        self._shell.connect(self._client, self)
        self._shell.send(self._registration)
        self._feed(EventType.CARD)
        yield self._registered
        self._card.open_context(self._client)
        context = self._card.profile.context_bytes
        self._shell.send(lambda now: events.ContextMeasured(now, self._client, self._card.uuid, context))
        self._engine.after(costs.USAGE_PERIOD, self._report_usage)

    def _registration(self, now: float) -> events.Event:
        return events.ClientRegistered(
            now,
            self._client,
            membership.Process(self._client, (self._client,)),
            gpus=(events.HeldGpu(self._card.uuid),),
            name=self._plan.name,
            can_swap=True,
            mem_limit=self._plan.mem_limit,
            core_limit=None if self._plan.core_limit is None else Cores.of(self._plan.core_limit),
            priority=Priority.HIGH if self._plan.urgent else Priority.NORMAL,
        )

    def allocate(self, size: int) -> Process:
        """An answer that must wait comes later, by the same number."""
        size = -(-size // costs.GRANULE) * costs.GRANULE
        request = len(self._memory) + 1
        answer = self._memory[request] = Signal()
        self._shell.send(lambda now: events.MemoryRequested(now, self._client, self._card.uuid, request, size))
        granted = yield answer
        if not granted:
            raise OutOfMemory(f"{size} bytes were denied on {self._card.uuid}")
        yield from self.mover.allocate(size)

    def _report_memory(self) -> None:
        mover, gpu = self.mover, self._card.uuid
        resident, host, applied = mover.resident, mover.host, mover.applied
        self._shell.send(
            lambda now: events.MemoryUpdated(
                now, self._client, gpu, released=0, resident=resident, host=host, applied=applied
            )
        )

    def enter(self) -> Process:
        while True:
            if self._gate in (Gate.SHUT, Gate.REST):
                self._feed(EventType.WANT)
                yield self._opened
            elif not self.mover.complete:
                yield self.mover.moved_one()
            else:
                self.mover.dirty()
                return

    def batch(self, wanted: int, kernel_seconds: float) -> int:
        work = costs.PACED_WORK if self._quantum else None
        if self._in_slices:
            work = self._budget / 2
        self._window = costs.FREE_WINDOW if work is None else max(1, int(work / kernel_seconds))
        return min(wanted, self._window)

    def pace(self, seconds: float) -> Process:
        """Of the oldest piece only a part is left, as the library reckons."""
        work = self._work
        while self._in_slices and work.pieces and work.in_flight + seconds * (1 - ROUNDED_UP) > self._budget:
            work.waiting += 1
            yield work.eased()
            yield costs.WAKE
            work.waiting -= 1

    def submitted(self, launches: int, done: Signal, seconds: float = 0.0) -> None:
        self._submissions += launches
        self._work.submitted(seconds)
        if self._news:
            self._news = False
            self._feed(EventType.WORK, at=_ns(self._engine.now))
        done.then(lambda _: self._finished(seconds))

    def close(self) -> None:
        self._closed = True
        self.mover.end()
        self._card.close_context(self._client)
        self._shell.send(lambda now: events.ClientGone(now, self._client))

    @property
    def window(self) -> int | None:
        return self._window

    # --- the card's side

    def _finished(self, seconds: float) -> None:
        self._work.finished(seconds)
        if not self._work.pieces:
            if self._closing:
                self._engine.after(costs.SEE_END, self._tell_drained)
            else:
                self._watch_for_idleness()
        self._work.ease()

    def _watch_for_idleness(self) -> None:
        """The library looks for it in slices and where others wait for the turn."""
        if self._in_slices or self._contended:
            since = self._work.idle_since
            self._engine.after(costs.SEE_IDLE, lambda: self._look(since))

    def _look(self, since: float) -> None:
        if self._work.pieces or self._work.idle_since != since or self._gate in (Gate.SHUT, Gate.REST):
            return
        self._news = True
        self._feed(EventType.IDLE, at=_ns(since))

    def _tell_drained(self) -> None:
        if self._closing and not self._work.pieces:
            self._tell_ended(self._work.idle_since)

    def _tell_ended(self, at: float) -> None:
        self._closing = False
        span = max(0.0, at - self._work.begun) if self._work.begun else 0.0
        self._feed(EventType.ENDED, at=_ns(at), length=_ns(span))

    # --- the machine's side

    def _feed(self, kind: EventType, **fields: int) -> None:
        if self._closed:
            return
        now = max(_ns(self._engine.now), self._machine.wake_at if kind is EventType.TIME else 0)
        for action in self._machine.feed(kind, now, waits=self._work.waiting > 0, **fields):
            handler = self._carry_out.get(action.type)
            if handler is not None:
                handler(action)
        self._set_timer()

    def _set_timer(self) -> None:
        wake = self._machine.wake_at / NS
        if wake and (not self._timer or wake < self._timer):
            self._timer = wake
            self._engine.at(wake, lambda: self._fire(wake))

    def _fire(self, due: float) -> None:
        if due != self._timer:
            return  # an earlier one took its place
        self._timer = 0.0
        if self._machine.wake_at and self._machine.wake_at <= _ns(self._engine.now) + 1:
            self._feed(EventType.TIME)
        else:
            self._set_timer()

    def _set_gate(self, action: Action) -> None:
        before, self._gate = self._gate, Gate(action.gate)
        if before not in (Gate.SHUT, Gate.REST) or self._gate in (Gate.SHUT, Gate.REST):
            return
        if not self._work.pieces:  # those who wait have to wake up first
            self._work.idle_since = self._engine.now
            self._watch_for_idleness()
        self._engine.after(costs.OPEN_GATE if self._in_slices else 0.0, self._open_gate)

    def _open_gate(self) -> None:
        opened, self._opened = self._opened, Signal()
        opened.fire()

    def _begin_slice(self, _: Action) -> None:
        self._news, self._closing = True, False
        self._work.begin()

    def _watch_idle(self, _: Action) -> None:
        self._news = True

    def _close_slice(self, action: Action) -> None:
        """Where nothing is in flight it ends now, or when the pause began that ends it."""
        self._closing = True
        if self._work.pieces:
            self._feed(EventType.PENDING, length=_ns(self._work.pending()))
        else:
            idle = action.reason == SliceEnd.IDLE
            self._tell_ended(self._work.idle_since if idle else self._engine.now)

    def _drain_turn(self, _: Action) -> None:
        self._gate = Gate.SHUT
        self._drain_began = self._engine.now
        self._open_gate()  # who waited for a slice waits for the grant now
        if self._work.pieces:
            self._work.drained().then(lambda _: self._feed(EventType.DRAINED, flags=1))
        else:
            self._feed(EventType.DRAINED, flags=1)

    def _open_memory(self, _: Action) -> None:
        if not self.mover.complete:
            self.mover.moved_one().then(lambda _: self._feed(EventType.TIME))
        self._feed(EventType.PLACE, flags=int(self.mover.complete))

    def _fault(self, _: Action) -> None:
        raise AssertionError(f"a slice cannot change so: {self._machine.story}")

    def _ask_grant(self, _: Action) -> None:
        self._shell.send(lambda now: events.LockRequested(now, self._client, self._card.uuid))

    def _ask_slice(self, _: Action) -> None:
        self._shell.send(lambda now: events.SliceRequested(now, self._client, self._card.uuid))

    def _tell_released(self, action: Action) -> None:
        drain = self._engine.now - self._drain_began
        self._quantum = self._contended = False
        self._shell.send(
            lambda now: events.LockReleased(now, self._client, self._card.uuid, action.number, drain=drain)
        )

    def _tell_over(self, action: Action) -> None:
        busy = busy_part(_ns(self._work.at_work()), action.used)
        self._shell.send(
            lambda now: events.SliceOver(
                now,
                self._client,
                self._card.uuid,
                action.number,
                action.used / NS,
                busy / NS,
                action.length / NS,
                SliceEnd(action.reason),
                action.wants,
            )
        )

    # --- the scheduler's side

    def receive(self, command: commands.Command) -> None:
        if self._closed:
            return
        if isinstance(command, commands.SchedOn | commands.SchedOff):
            self._registered.fire()
            self._feed(EventType.CONTROL, flags=int(isinstance(command, commands.SchedOn)))
        elif isinstance(command, commands.Grant):
            self._on_grant(command)
        elif isinstance(command, commands.Drop):
            self._feed(EventType.DROP, number=command.grant, length=_ns(command.deadline))
        elif isinstance(command, commands.GrantMemory):
            self._memory[command.request].fire(True)
        elif isinstance(command, commands.DenyMemory):
            self._memory[command.request].fire(False)
        elif isinstance(command, commands.SetTerms):
            self._in_slices, self._budget = command.slices, command.in_flight
            flags = wire.FLAG_TURNS if command.slices else 0
            self._feed(EventType.TERMS, flags=flags, length=_ns(command.in_flight))
        elif isinstance(command, commands.GiveSlice):
            length = 0 if command.length is None else max(1, _ns(command.length))
            self._feed(EventType.GIVE, number=command.number, length=length, patience=_ns(command.patience))
            if not self._work.pieces:
                self._watch_for_idleness()
        elif isinstance(command, commands.EndSlice):
            self._feed(EventType.END, number=command.number)
        elif isinstance(command, commands.SetResidency):
            self.mover.set_target(command.number, command.target)

    def _on_grant(self, command: commands.Grant) -> None:
        self._quantum, self._contended = command.quantum is not None, command.contended
        flags = wire.FLAG_EXCLUSIVE * command.exclusive | wire.FLAG_CONTENDED * command.contended
        quantum = 0 if command.quantum is None else _ns(command.quantum)
        self._feed(EventType.GRANT, number=command.grant, flags=flags, length=quantum)
        if not self._work.pieces:
            self._watch_for_idleness()

    def _report_usage(self) -> None:
        if self._closed:
            return
        occupied, submissions, window = self._work.occupied(), self._submissions, self._window
        out, into = self.mover.moved.out_bytes, self.mover.moved.in_bytes
        self._shell.send(
            lambda now: events.UsageReported(
                now, self._client, self._card.uuid, occupied, submissions, window, swapped_out=out, swapped_in=into
            )
        )
        self._engine.after(costs.USAGE_PERIOD, self._report_usage)


def _ns(seconds: float) -> int:
    return round(seconds * NS)
