"""A client of the joint world: the library's real state machine, and around it a shell, a program, a driver and a wire
that are random.

The client keeps books of its own from what the machine was told and what it did, and checks the machine against them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.compute.lifecycle import State
from nvshare.core.policy import membership
from nvshare.core.settings import Cores, SliceEnd
from nvshare.model.machine import Action, Do, EventType, Gate, Machine
from nvshare.wire import messages as wire

NS = 10**9
SECOND = NS
MS = 10**6
US = 10**3
UNSEEN = 2 * MS  # what the GPU's clock may take off a bill
KERNELS = (300 * US, MS, 3 * MS)
PIECES = (1, 3, 20, 60)
THINKING = (0, 300 * US, 1200 * US, 6 * MS, 20 * MS)
AHEAD = 8  # pieces in flight without a budget
LOOKS = (20 * US, 100 * US, 400 * US)  # from what happens until the link thread sees it
SAME_MOMENT = 30  # rounds of the link thread without time passing
OPEN = (Gate.OPEN, Gate.PACED)


class Broken(Exception):
    """An invariant does not hold."""


class World(Protocol):
    now: int
    rng: Any
    behaves: bool
    story: deque[str]

    def after(self, delay: int, action: Callable[[], None]) -> None: ...
    def at(self, when: int, action: Callable[[], None]) -> None: ...
    def latency(self) -> int: ...
    def handle(self, event: e.Event) -> None: ...
    def check(self, name: str, holds: bool, what: str) -> None: ...


class Wire:
    """A connection: both directions keep their order, and what is under way is lost when it breaks."""

    def __init__(self, world: World, client: JointClient) -> None:
        self._world, self._client = world, client
        self._last = {"up": 0, "down": 0}
        self.under_way = 0
        self.dead = self.stutters = False

    @property
    def busy(self) -> bool:
        return self.dead or self.under_way > 0

    def up(self, make: Callable[[float], e.Event]) -> None:
        self._send("up", lambda: self._world.handle(make(self._world.now / NS)))

    def down(self, command: c.Command) -> None:
        if isinstance(command, c.Registered):
            self._client.group = command.group
            return
        self._send("down", lambda: self._client.link(lambda: self._client.receive(command)))

    def _send(self, way: str, deliver: Callable[[], None]) -> None:
        world = self._world
        times = 2 if self.stutters and not world.behaves else 1
        self.stutters = False
        for _ in range(times):
            if self.dead:
                return
            self.under_way += 1
            self._last[way] = max(self._last[way], world.now + world.latency())
            world.at(self._last[way], lambda: self._arrive(deliver))

    def _arrive(self, deliver: Callable[[], None]) -> None:
        if not self.dead:
            self.under_way -= 1
            deliver()

    def broke(self, told: bool = True) -> None:
        """``told``: the scheduler is still there, and hears of it."""
        if self.dead:
            return
        self.dead = True
        world, client = self._world, self._client
        if told:
            gone = client.id
            world.after(world.latency(), lambda: world.handle(e.ClientGone(world.now / NS, gone)))
            client.id += 1000
        world.after(world.latency(), lambda: client.link(client.lost))


@dataclass
class Seat:
    """What the machine was told about one card, and what it said."""

    grant: int = 0
    given_back: int = 0  # the last one
    needs: bool = False
    number: int = 0  # of its slice
    given_at: int = 0
    over: int = 0
    overrun: int = 0
    asked: bool = False
    voided: bool = False  # the terms changed while it asked; perhaps the scheduler heard it under the new ones
    closing: bool = False  # it told what is in flight
    began_with: int = 0  # nanoseconds at work, when its slice began
    counted: int = 0

    @property
    def view(self) -> State:
        if self.number:
            return State.CLOSING if self.closing else State.HELD
        return State.ASKED if self.asked else State.NONE

    def without_slices(self) -> None:
        self.voided = self.voided or self.asked
        self.number, self.asked, self.closing, self.overrun = 0, False, False, 0


class JointClient:
    def __init__(self, world: World, number: int, cards: tuple[str, ...], quota: Cores, pod: str | None) -> None:
        self.world, self.rng = world, world.rng
        self.id = self.pid = number
        self._cards, self._quota, self._pod = cards, quota, pod
        self.group: str | None = None
        self.machine = Machine()
        self.wire: Wire | None = None
        self.seats = {uuid: Seat() for uuid in cards}
        self.given = self.given_up = 0  # the last slice that it was given, and that the scheduler no longer waits for
        # the link thread
        self._backlog: deque[Callable[[], None]] = deque()
        self._blocked_until = 0
        self._draining = False
        self._timer = 0
        self._rounds = (0, 0)  # when, and how many
        self._dead = False
        self._scheduled = False
        # the gate
        self._gate, self._budget = Gate.OPEN, 0
        self._wanted = self._news = self._in_call = False
        self._memory = True  # it is where the program has it
        self._closing = False  # a slice, or what is left of one: follow it
        # the program
        self._left = 0  # pieces of its burst
        self._waits = False  # it waits until less is in flight
        self._stepping = False
        self._final = self.satisfied = False
        self.next_kernel = 0
        # the driver
        self._pieces: deque[int] = deque()
        self._free_at = self._idle_since = self._busy_since = self._at_work = 0
        self._submitted_at = 0
        self.world.after(self.rng.randrange(5 * MS), self._step)

    def __repr__(self) -> str:
        return f"client {self.id}"

    # --- its life

    def connect(self) -> None:
        if self._dead:
            return
        link = self.wire = Wire(self.world, self)
        self.given = self.given_up = 0
        held = tuple(e.HeldGpu(uuid, grant=seat.grant) for uuid, seat in self.seats.items())
        ancestors = membership.Process(self.pid, (self.pid,), pod=self._pod)
        me, quota = self.id, self._quota
        link.up(lambda now: e.ClientRegistered(now, me, ancestors, held, can_swap=True, core_limit=quota))
        for card in range(len(self._cards)):
            self.link(lambda card=card: self._feed(EventType.CARD, card=card))

    def lost(self) -> None:
        self.wire = None
        self._scheduled = False
        for seat in self.seats.values():
            seat.without_slices()
            seat.needs, seat.over, seat.given_back = False, 0, 0
        self._feed(EventType.LOST)
        self.world.after(self.rng.choice((MS, 60 * MS, 300 * MS)), self.connect)

    def die(self) -> None:
        if self.wire is not None and not self.wire.dead:
            self.wire.broke()
        self._dead = True

    def stall(self, length: int) -> None:
        self._blocked_until = max(self._blocked_until, self.world.now + length)

    def behave(self) -> None:
        self.next_kernel = 0
        self._final, self._left = True, 3
        self._step()

    @property
    def settled(self) -> bool:
        """Its link thread has nothing to do that it knows of."""
        blocked = self._draining or self.world.now < self._blocked_until
        return self._scheduled and not blocked and not self._backlog and self.group is not None

    # --- the link thread

    def link(self, action: Callable[[], None]) -> None:
        """Have the link thread do this, as soon as it can."""
        self._backlog.append(action)
        self._run_link()

    def _run_link(self) -> None:
        world = self.world
        if world.now < self._blocked_until:
            world.at(self._blocked_until, self._run_link)
        while self._backlog and not (self._dead or self._draining or world.now < self._blocked_until):
            action = self._backlog.popleft()
            self._tell_facts()
            action()

    def _tell_facts(self) -> None:
        if self._wanted and self._gate not in OPEN:
            self._wanted = False
            self._feed(EventType.WANT)
        if self._submitted_at:
            at, self._submitted_at = self._submitted_at, 0
            self._feed(EventType.WORK, at=at)

    def _look(self) -> None:
        """Is the GPU idle, has it ended what a slice left?"""
        if self._closing:
            self._follow()
        elif not self._pieces and self._gate in OPEN and not self._in_call:
            self._news = True
            self._feed(EventType.IDLE, at=self._idle_since)

    def _look_soon(self) -> None:
        self.world.after(self.rng.choice(LOOKS), lambda: self.link(self._look))

    def _on_timer(self, timer: int) -> None:
        if timer == self._timer:
            self.link(lambda: self._feed(EventType.TIME))

    def _feed(self, kind: EventType, **fields: int) -> None:
        if self._dead:
            return
        world = self.world
        if kind is EventType.TIME:
            when, rounds = self._rounds
            self._rounds = (world.now, rounds + 1 if when == world.now else 0)
            world.check("the machine comes to rest", self._rounds[1] < SAME_MOMENT, f"{self}: {self.machine.story}")
        before = self.machine.feed(kind, world.now, waits=int(self._waits), **fields)
        wake = self.machine.wake_at
        world.story.append(f"{world.now} {self} {kind.name} {fields} -> {[one.type.name for one in before]}")
        for action in before:
            handler = CARRY_OUT.get(action.type)
            if handler is not None:
                handler(self, action)
                wake = self.machine.wake_at
        self._timer += 1
        timer = self._timer
        if wake:
            world.at(max(world.now + 1, wake), lambda: self._on_timer(timer))

    # --- what the scheduler says

    def receive(self, command: c.Command) -> None:
        if isinstance(command, (c.SchedOn, c.SchedOff)):
            self._scheduled = isinstance(command, c.SchedOn)
            if not self._scheduled:
                for seat in self.seats.values():
                    seat.without_slices()
                    seat.grant, seat.needs = 0, False
            self._feed(EventType.CONTROL, flags=int(self._scheduled))
        elif isinstance(command, (c.Grant, c.Drop, c.SetTerms, c.GiveSlice, c.EndSlice)):
            self._heard(command, self._cards.index(command.gpu), self.seats[command.gpu])
        elif isinstance(command, c.SetResidency):
            me, gpu, number = self.id, command.gpu, command.number
            self._say(lambda now: e.MemoryUpdated(now, me, gpu, released=0, resident=0, applied=number))
        self._check_gate()

    def _heard(self, command: c.Grant | c.Drop | c.SetTerms | c.GiveSlice | c.EndSlice, card: int, seat: Seat) -> None:
        if isinstance(command, c.Grant):
            if command.grant not in (seat.grant, seat.given_back):
                seat.grant, seat.asked = command.grant, False  # what was asked under another grant was not heard
            flags = wire.FLAG_EXCLUSIVE * command.exclusive | wire.FLAG_CONTENDED * command.contended
            length = 0 if command.quantum is None else round(command.quantum * NS)
            self._feed(EventType.GRANT, card=card, number=command.grant, flags=flags, length=length)
        elif isinstance(command, c.Drop):
            self._feed(EventType.DROP, card=card, number=command.grant, length=round(command.deadline * NS))
        elif isinstance(command, c.SetTerms):
            if seat.needs is not command.slices:
                seat.without_slices()
                seat.needs = command.slices
            flags, in_flight = wire.FLAG_TURNS * command.slices, round(command.in_flight * NS)
            self._feed(EventType.TERMS, card=card, flags=flags, length=in_flight)
        elif isinstance(command, c.GiveSlice):
            self._given(command, card, seat)
        else:
            self._feed(EventType.END, card=card, number=command.number)

    def _given(self, command: c.GiveSlice, card: int, seat: Seat) -> None:
        if seat.needs and seat.grant and command.number not in (seat.over, seat.number):
            if seat.number:
                seat.over = seat.number
            seat.number, seat.given_at = command.number, self.world.now
            seat.closing = seat.asked = seat.voided = False
        length = 0 if command.length is None else max(1, round(command.length * NS))
        patience = round(command.patience * NS)
        self._feed(EventType.GIVE, card=card, number=command.number, length=length, patience=patience)

    # --- what the machine wants

    def _say(self, make: Callable[[float], e.Event]) -> None:
        if self.wire is not None:
            self.wire.up(make)

    def _seat(self, action: Action) -> tuple[str, Seat]:
        uuid = self._cards[action.card]
        return uuid, self.seats[uuid]

    def _set_gate(self, action: Action) -> None:
        was_open, self._gate, self._budget = self._gate in OPEN, Gate(action.gate), action.length
        if was_open and self._gate not in OPEN:
            self._wanted = False
            self._in_call = self.rng.random() < 0.2 and self._left > 0
            if self._in_call:
                self.world.after(self.rng.choice(LOOKS), self._straggle)
        elif not was_open and self._gate in OPEN:
            if not self._pieces:
                self._idle_since = self.world.now
                self._look_soon()
            self.world.after(self.rng.choice(LOOKS), self._step)

    def _ask_grant(self, action: Action) -> None:
        me, (uuid, _) = self.id, self._seat(action)
        self._say(lambda now: e.LockRequested(now, me, uuid))

    def _tell_released(self, action: Action) -> None:
        me, (uuid, seat) = self.id, self._seat(action)
        stuck = action.reason == wire.ReleaseReason.STUCK
        self.world.check("turns end once", action.number == seat.grant, f"{self} released {action.number}: {seat}")
        if not stuck:
            seat.grant, seat.given_back = 0, action.number
            self.world.check("turns end at rest", not self._pieces and not self._in_call, f"{self} still works")
        seat.without_slices()
        self._say(lambda now: e.LockReleased(now, me, uuid, action.number, stuck=stuck))

    def _ask_slice(self, action: Action) -> None:
        me, (uuid, seat) = self.id, self._seat(action)
        entitled = seat.grant and seat.needs and (not seat.number or seat.closing)
        self.world.check("slices are asked for once", bool(entitled) and not seat.asked, f"{self}: {seat}")
        seat.asked = True
        self._say(lambda now: e.SliceRequested(now, me, uuid))

    def _tell_over(self, action: Action) -> None:
        me, (uuid, seat) = self.id, self._seat(action)
        number, used, pending, reason = action.number, action.used, action.length, SliceEnd(action.reason)
        known = number and number in (seat.number, seat.over, seat.overrun)
        self.world.check("slices end that were given", bool(known), f"{self} ended {number}: {seat}")
        if number == seat.number:
            self._check_bill(seat, used, pending)
            if reason is SliceEnd.OVERRUN:
                seat.overrun, seat.over, seat.number = number, number, 0
            elif not pending:
                seat.over, seat.number = number, 0
            seat.closing = bool(seat.number and pending)
            seat.asked = seat.asked or action.wants
        elif number == seat.overrun and not pending:
            seat.overrun = 0
        self._say(
            lambda now: e.SliceOver(
                now, me, uuid, number, used / NS, used / NS, pending / NS, reason, wants=bool(action.wants)
            )
        )

    def _check_bill(self, seat: Seat, used: int, pending: int) -> None:
        elapsed = self.world.now - seat.given_at
        self.world.check("no bill above the time", used <= elapsed, f"{self} says {used} of {elapsed}")
        if not pending and len(self._cards) == 1:
            real = self._worked() - seat.began_with
            self.world.check("no work without a bill", used >= real - UNSEEN, f"{self} says {used} of {real}")

    def _begin_slice(self, _: Action) -> None:
        self._news, self._closing, self._submitted_at = True, False, 0
        for seat in self.seats.values():
            seat.began_with = self._worked()

    def _watch_idle(self, _: Action) -> None:
        self._news = True

    def _close_slice(self, action: Action) -> None:
        self._closing = True
        if action.reason == SliceEnd.IDLE and not (self._pieces or self._in_call or self._submitted_at):
            self._closing = False
            self._feed(EventType.ENDED, at=self._idle_since)
        else:
            self._look_soon()

    def _follow(self) -> None:
        if self._in_call:
            return self._look_soon()
        if not self._pieces:
            self._closing = False
            self._tell_facts()
            return self._feed(EventType.ENDED, at=self.world.now)
        left = self._free_at - self.world.now
        self._feed(EventType.PENDING, length=round(left * self.rng.choice((0.5, 1.0, 1.0, 2.0))))
        return self.world.after(min(left, 200 * MS) + self.rng.choice(LOOKS), lambda: self.link(self._look))

    def _count_used(self, action: Action) -> None:
        _, seat = self._seat(action)
        seat.counted += action.used
        self.world.check("no use above the time", seat.counted <= self.world.now, f"{self}: {seat}")

    def _drain_turn(self, action: Action) -> None:
        """The link thread waits for all work; what it has to do besides waits."""
        self._before_drain, self._gate, self._wanted = self._gate, Gate.SHUT, False
        self._draining, deadline = True, self.world.now + action.length
        self._wait_drained(deadline)

    def _wait_drained(self, deadline: int) -> None:
        if self._dead:
            return
        world, at_rest = self.world, not self._pieces and not self._in_call
        if at_rest or world.now >= deadline:
            if not at_rest and self._before_drain is not Gate.SHUT:
                self._gate = Gate.REST if self._before_drain is Gate.REST else Gate.OPEN
            self._draining = False
            self._feed(EventType.DRAINED, flags=int(at_rest))
            if not self._draining:
                world.after(self.rng.choice(LOOKS), self._step)
                self._run_link()
        else:
            later = min(deadline, max(world.now + self.rng.choice(LOOKS), self._free_at))
            world.at(later, lambda: self._wait_drained(deadline))

    def _look_drained(self, _: Action) -> None:
        self._feed(EventType.DRAINED, flags=int(not self._pieces and not self._in_call))

    def _open_memory(self, _: Action) -> None:
        there = self._memory or self.world.behaves or self.rng.random() < 0.7
        if there:
            self._memory = True
        else:
            self.world.after(3 * MS, lambda: self.link(lambda: self._feed(EventType.TIME)))
        self._feed(EventType.PLACE, flags=int(there))

    def _shut_memory(self, _: Action) -> None:
        at_rest = not self._pieces and not self._in_call and self._gate not in OPEN
        self.world.check("memory leaves at rest", at_rest, f"{self} works, its gate is {self._gate.name}")
        self._memory = False

    def _free_memory(self, _: Action) -> None:
        self._memory = True

    def _report(self, _: Action) -> None:
        raise Broken(f"only legal changes: {self}: {self.machine.story}")

    def _check_gate(self) -> None:
        """The gate is open only with all grants, and with a slice on each card that needs one."""
        if not self._scheduled or self._gate not in OPEN or self._draining:
            return
        seats = self.seats.values()
        self.world.check("no work without a turn", all(seat.grant for seat in seats), f"{self}: {seats}")
        given = all(seat.number and not seat.closing for seat in seats if seat.needs)
        self.world.check("no work without a slice", given, f"{self}: {seats}")

    # --- the program and its driver

    def _step(self) -> None:
        """Go on with the burst, as far as gate and budget allow."""
        if self._dead or self.satisfied or self._stepping:
            return
        if not self._left:
            self._left = 3 if self._final else self.rng.choice(PIECES)
        if self._gate not in OPEN:
            self._wanted = True
            self.world.after(self.rng.choice(LOOKS), lambda: self.link(lambda: None))
        elif len(self._pieces) >= AHEAD or (self._budget and self._pieces and sum(self._pieces) > self._budget):
            self._waits = True
        else:
            self._submit()
            self._stepping = True
            self.world.after(self.rng.choice((5 * US, 50 * US)), self._next_step)

    def _next_step(self) -> None:
        self._stepping = False
        if self._left:
            self._step()
        else:
            self._waits = bool(self._pieces) and self.rng.random() < 0.5

    def _straggle(self) -> None:
        """A call that went through the gate before it was shut submits now."""
        self._in_call = False
        if self._left and not self._dead:
            self._submit()

    def _submit(self) -> None:
        world = self.world
        world.check("work only where memory is", self._memory, f"{self} submits, its memory may be away")
        length, self.next_kernel = self.next_kernel or self.rng.choice(KERNELS), 0
        self._left -= 1
        if not self._pieces:
            self._busy_since = world.now
        self._pieces.append(length)
        self._free_at = max(self._free_at, world.now) + length
        if self._news:
            self._news, self._submitted_at = False, self._submitted_at or world.now
            world.after(self.rng.choice(LOOKS), lambda: self.link(lambda: None))
        world.at(self._free_at, self._done)

    def _worked(self) -> int:
        return self._at_work + (self.world.now - self._busy_since if self._pieces else 0)

    def _done(self) -> None:
        if self._dead:
            return
        self._pieces.popleft()
        if not self._pieces:
            self._at_work += self.world.now - self._busy_since
            self._idle_since = self.world.now
            self._look_soon()
            if not self._left:
                self._end_burst()
        if self._waits:
            self._waits = False
            if self._left:
                self.world.after(self.rng.choice(LOOKS), self._step)

    def _end_burst(self) -> None:
        if self._final:
            self.satisfied = True
        else:
            self.world.after(self.rng.choice(THINKING) + self.rng.choice(LOOKS), self._step)


CARRY_OUT: dict[Do, Callable[[JointClient, Action], None]] = {
    Do.SET_GATE: JointClient._set_gate,
    Do.SEND_REQ_LOCK: JointClient._ask_grant,
    Do.SEND_RELEASED: JointClient._tell_released,
    Do.SEND_REQ_TURN: JointClient._ask_slice,
    Do.SEND_TURN_OVER: JointClient._tell_over,
    Do.BEGIN_SLICE: JointClient._begin_slice,
    Do.WATCH_IDLE: JointClient._watch_idle,
    Do.CLOSE_SLICE: JointClient._close_slice,
    Do.COUNT_USED: JointClient._count_used,
    Do.DRAIN_TURN: JointClient._drain_turn,
    Do.LOOK_DRAINED: JointClient._look_drained,
    Do.OPEN_MEMORY: JointClient._open_memory,
    Do.SHUT_MEMORY: JointClient._shut_memory,
    Do.FREE_MEMORY: JointClient._free_memory,
    Do.REPORT: JointClient._report,
}
