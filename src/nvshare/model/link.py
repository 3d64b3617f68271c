"""A modelled client's way to its card: what ``libnvshare.so`` does between program and driver, or nothing at all."""

from __future__ import annotations

from typing import Protocol

from nvshare.bench.outcome import TaskPlan
from nvshare.core import commands, events
from nvshare.core.policy import membership
from nvshare.core.settings import Cores, Priority
from nvshare.model import costs
from nvshare.model.card import Card, OutOfMemory
from nvshare.model.engine import Engine, Process, Signal
from nvshare.model.mover import Mover
from nvshare.model.shell import Shell
from nvshare.model.slices import ComputeSlices


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
    """Under ``libnvshare.so``: registered, asked about memory, and let through while it holds a grant.

    Its memory comes and goes as the scheduler's targets say; while it holds a grant all of it is on the card.
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

        self._slices = ComputeSlices(engine, shell, client, card.uuid, self._open_gate)

        self._free = False  # SCHED_OFF: nobody is scheduled
        self._grant = 0
        self._terms: commands.Grant | None = None
        self._wanted = False
        self._opened = Signal()
        self._in_flight = 0
        self._drained = Signal()
        self._idle_since = 0.0
        self._returning = Signal()  # the process that gives a grant back
        self._closed = False

        self._occupied = 0.0
        self._busy_since = 0.0
        self._submissions = 0
        self._window = costs.FREE_WINDOW

    # --- the program's side

    def open(self) -> Process:
        yield costs.REGISTRATION
        self._shell.connect(self._client, self)
        self._shell.send(self._registration)
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
            if not (self._free or self._grant):
                if not self._wanted:
                    self._wanted = True
                    self._ask()
                yield self._opened
            elif not (self._free or self._slices.open):
                self._slices.knock()
                yield self._opened
            elif not self.mover.complete:
                yield self.mover.moved_one()
            else:
                self.mover.dirty()
                return

    def _ask(self) -> None:
        self._shell.send(lambda now: events.LockRequested(now, self._client, self._card.uuid))

    def batch(self, wanted: int, kernel_seconds: float) -> int:
        in_turns = self._terms is not None and self._terms.quantum is not None
        work = costs.PACED_WORK if in_turns else None
        if self._slices.paced is not None:
            work = self._slices.paced
        self._window = costs.FREE_WINDOW if work is None else max(1, int(work / kernel_seconds))
        return min(wanted, self._window)

    def pace(self, seconds: float) -> Process:
        yield from self._slices.pace(seconds)

    def submitted(self, launches: int, done: Signal, seconds: float = 0.0) -> None:
        self._slices.submitted(seconds, done)
        if not self._in_flight:
            self._busy_since = self._engine.now
            self._drained = Signal()
        self._in_flight += 1
        self._submissions += launches
        done.then(lambda _: self._finished())

    def close(self) -> None:
        self._closed = True
        self._grant = 0
        self._slices.lost()
        self.mover.end()
        self._engine.kill(self._returning)
        self._card.close_context(self._client)
        self._shell.send(lambda now: events.ClientGone(now, self._client))

    @property
    def window(self) -> int | None:
        return self._window

    def _finished(self) -> None:
        self._in_flight -= 1
        if self._in_flight:
            return
        self._occupied += self._engine.now - self._busy_since
        self._idle_since = self._engine.now
        self._drained.fire()
        self._watch_idleness()

    # --- the scheduler's side

    def receive(self, command: commands.Command) -> None:
        if self._closed:
            return
        if isinstance(command, commands.SchedOn | commands.SchedOff):
            self._free = isinstance(command, commands.SchedOff)
            self._registered.fire()
            if self._free:
                self._open_gate()
        elif isinstance(command, commands.Grant):
            self._on_grant(command)
        elif isinstance(command, commands.Drop):
            if command.grant == self._grant:
                self._return(command.grant)
        elif isinstance(command, commands.GrantMemory):
            self._memory[command.request].fire(True)
        elif isinstance(command, commands.DenyMemory):
            self._memory[command.request].fire(False)
        elif isinstance(command, commands.SetTerms):
            self._slices.on_terms(command)
        elif isinstance(command, commands.GiveSlice):
            self._slices.on_slice(command)
        elif isinstance(command, commands.EndSlice):
            self._slices.on_end(command)
        elif isinstance(command, commands.SetResidency):
            self.mover.set_target(command.number, command.target)

    def _on_grant(self, command: commands.Grant) -> None:
        renewed = command.grant == self._grant
        self._grant = command.grant
        self._terms = command
        self._wanted = False
        if command.quantum is not None and not renewed:
            self._engine.after(command.quantum, lambda: self._end_turn(command.grant))
        self._open_gate()
        self._watch_idleness()

    def _open_gate(self) -> None:
        opened, self._opened = self._opened, Signal()
        opened.fire()

    def _end_turn(self, grant: int) -> None:
        """The quantum that came with the grant is over. Without others who wait it may go on."""
        if self._grant == grant and self._terms is not None and self._terms.contended:
            self._return(grant)

    def _watch_idleness(self) -> None:
        """Others wait: give the turn up after a while without work."""
        if self._terms is None or not self._terms.contended or self._in_flight:
            return
        since = self._idle_since

        def look() -> None:
            contended = self._terms is not None and self._terms.contended
            if self._grant and contended and not self._in_flight and self._idle_since == since:
                self._return(self._grant)

        self._engine.after(costs.IDLE_RELEASE, look)

    def _return(self, grant: int) -> None:
        self._grant = 0
        self._slices.lost()
        self._open_gate()  # who waited for a slice waits for the grant now
        self._terms = None
        self._returning = self._engine.start(self._give_back(grant))

    def _give_back(self, grant: int) -> Process:
        began = self._engine.now
        if self._in_flight:
            yield self._drained
        drain = self._engine.now - began
        self._shell.send(lambda now: events.LockReleased(now, self._client, self._card.uuid, grant, drain=drain))

    def _report_usage(self) -> None:
        if self._closed:
            return
        occupied = self._occupied + (self._engine.now - self._busy_since if self._in_flight else 0.0)
        submissions, window = self._submissions, self._window
        out, into = self.mover.moved.out_bytes, self.mover.moved.in_bytes
        self._shell.send(
            lambda now: events.UsageReported(
                now, self._client, self._card.uuid, occupied, submissions, window, swapped_out=out, swapped_in=into
            )
        )
        self._engine.after(costs.USAGE_PERIOD, self._report_usage)
