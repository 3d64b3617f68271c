"""Sleep in the client's state machine: when it leaves the cards, who brings it back, what the scheduler is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nvshare.model.machine import Action, Do, Entry, EventType, Gate, Machine
from nvshare.wire import enums

MS = 10**6
S = 10**9
ORDER = 5
LOCK = 500 * MS


class Sleeper:
    """A machine with one card, under a scheduler, without a grant; a driver that a test answers for."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.now = S
        self.gate, self.entry = Gate.OPEN, Entry.OPEN
        self.driver: EventType | None = None
        self.sent: list[Action] = []
        self.looks: list[Do] = []
        self.feed(EventType.CARD)
        self.feed(EventType.CONTROL, flags=1)
        assert self.gate is Gate.SHUT

    def feed(self, kind: EventType, **fields: int) -> None:
        if kind is self.driver:
            self.driver = None
        for action in self.machine.feed(kind, self.now, **fields):
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        assert action.type is not Do.REPORT, self.machine.story
        if action.type in (Do.SEND_SLEPT, Do.SEND_REQ_WAKE, Do.SEND_AWAKE, Do.SEND_REQ_LOCK, Do.SEND_RELEASED):
            self.sent.append(action)
        elif action.type is Do.SET_GATE:
            self.gate = Gate(action.gate)
        elif action.type is Do.SET_ENTRY:
            self.entry = Entry(action.gate)
        elif action.type in (Do.LEAVE_CARDS, Do.RETURN_TO_CARDS):
            assert self.driver is None
            assert self.gate in (Gate.SHUT, Gate.REST)
            self.entry = Entry.SHUT
            self.driver = EventType.LEFT if action.type is Do.LEAVE_CARDS else EventType.RETURNED
        elif action.type in (Do.LOOK_HELD, Do.LOOK_ROOM):
            self.looks.append(action.type)
        elif action.type is Do.OPEN_MEMORY:
            self.feed(EventType.PLACE, flags=1)
        elif action.type is Do.DRAIN_TURN:
            assert self.entry is Entry.OPEN  # the driver is asked whether work has ended
            self.gate = Gate.SHUT
            self.feed(EventType.DRAINED, flags=1)

    def stands(self) -> tuple[Entry, Gate, EventType | None]:
        """The entry, the gate, and what the driver is at."""
        return self.entry, self.gate, self.driver

    def later(self, ns: int) -> None:
        self.now += ns
        self.feed(EventType.TIME)

    def told(self) -> list[tuple[Any, ...]]:
        """What was sent since the last time, with the fields that mean something."""
        sent, self.sent = self.sent, []
        fields: dict[Do, Any] = {
            Do.SEND_SLEPT: lambda one: (one.number, enums.SleptOutcome(one.reason), one.used, one.length),
            Do.SEND_REQ_WAKE: lambda one: (one.number,),
            Do.SEND_AWAKE: lambda one: (one.number, one.length),
            Do.SEND_REQ_LOCK: lambda one: (),
            Do.SEND_RELEASED: lambda one: (one.number,),
        }
        return [(one.type, *fields[one.type](one)) for one in sent]

    def ordered(self) -> Sleeper:
        self.feed(EventType.SLEEP, number=ORDER, length=LOCK)
        return self

    def asleep(self) -> Sleeper:
        self.ordered().feed(EventType.HELD, flags=1)
        self.feed(EventType.LEFT)
        assert self.told() == [(Do.SEND_SLEPT, ORDER, enums.SleptOutcome.ASLEEP, 0, 0)]
        return self


def test_a_client_leaves_its_cards_when_nobody_is_inside() -> None:
    client = Sleeper().ordered()
    # GIVEN an order WHEN somebody is still inside THEN the entry is held, and the shell is asked again soon
    assert client.stands() == (Entry.HELD, Gate.SHUT, None)
    client.feed(EventType.HELD, flags=0)
    assert client.stands() == (Entry.HELD, Gate.SHUT, None)
    assert client.machine.wake_at == client.now + MS
    client.looks.clear()
    client.later(MS)
    assert client.looks == [Do.LOOK_HELD]
    # WHEN nobody is THEN the entry is shut and the driver is called
    client.feed(EventType.HELD, flags=1)
    assert client.stands() == (Entry.SHUT, Gate.SHUT, EventType.LEFT)
    assert client.told() == []
    client.feed(EventType.LEFT)
    assert client.told() == [(Do.SEND_SLEPT, ORDER, enums.SleptOutcome.ASLEEP, 0, 0)]
    assert (client.stands()[0], client.machine.wake_at) == (Entry.SHUT, 0)


@pytest.mark.parametrize("kind", [EventType.CALL, EventType.WANT])
def test_a_call_before_the_lock_cancels_the_order(kind: EventType) -> None:
    client = Sleeper().ordered()
    client.feed(kind)
    assert client.stands()[0] is Entry.OPEN
    assert client.told()[0] == (Do.SEND_SLEPT, ORDER, enums.SleptOutcome.WOKE, 0, 0)


def test_who_stays_inside_cancels_the_order_when_its_time_is_over() -> None:
    client = Sleeper().ordered()
    client.later(LOCK - 1)
    assert client.stands()[0] is Entry.HELD
    client.later(1)
    assert client.stands()[0] is Entry.OPEN
    assert client.told() == [(Do.SEND_SLEPT, ORDER, enums.SleptOutcome.WOKE, 0, 0)]


def test_a_client_with_a_bar_declines() -> None:
    client = Sleeper()
    client.feed(EventType.SLEEP, number=ORDER, length=LOCK, flags=enums.BarReason.IPC)
    assert client.told() == [(Do.SEND_SLEPT, ORDER, enums.SleptOutcome.DECLINED, enums.BarReason.IPC, 0)]
    assert client.stands()[0] is Entry.OPEN


def test_a_bar_that_comes_with_the_last_call_inside_is_seen() -> None:
    client = Sleeper().ordered()
    client.feed(EventType.HELD, flags=1, number=enums.BarReason.IPC)
    assert client.stands() == (Entry.OPEN, Gate.SHUT, None)
    assert client.told() == [(Do.SEND_SLEPT, ORDER, enums.SleptOutcome.DECLINED, enums.BarReason.IPC, 0)]


def test_a_client_that_has_a_grant_does_not_leave() -> None:
    client = Sleeper()
    client.feed(EventType.GRANT, number=7)
    assert client.ordered().told() == [(Do.SEND_SLEPT, ORDER, enums.SleptOutcome.WOKE, 0, 0)]


def test_a_client_that_waits_for_its_turn_leaves_and_asks_for_its_context_instead() -> None:
    # GIVEN a thread that waits for a turn
    client = Sleeper()
    client.feed(EventType.WANT)
    assert client.told() == [(Do.SEND_REQ_LOCK,)]
    # WHEN its process is told to sleep THEN it does, though the thread asks again
    client.ordered().feed(EventType.WANT)
    client.feed(EventType.HELD, flags=1)
    client.feed(EventType.LEFT)
    assert client.told() == [
        (Do.SEND_SLEPT, ORDER, enums.SleptOutcome.ASLEEP, 0, 0),
        (Do.SEND_REQ_WAKE, ORDER),
    ]
    # AND asks for its turn anew when it is back
    client.feed(EventType.WAKE, number=ORDER)
    client.feed(EventType.RETURNED)
    assert client.told() == [(Do.SEND_AWAKE, ORDER, 0), (Do.SEND_REQ_LOCK,)]


def test_a_call_during_the_lock_is_told_once_asleep_and_a_wake_ends_it() -> None:
    client = Sleeper().ordered()
    client.feed(EventType.HELD, flags=1)
    client.feed(EventType.CALL)
    assert client.told() == []
    client.feed(EventType.LEFT)
    assert [one[0] for one in client.told()] == [Do.SEND_SLEPT, Do.SEND_REQ_WAKE]
    client.feed(EventType.CALL)
    assert client.told() == []
    client.feed(EventType.WAKE, number=ORDER)
    assert client.stands() == (Entry.SHUT, Gate.SHUT, EventType.RETURNED)
    client.feed(EventType.RETURNED)
    assert client.stands()[0] is Entry.OPEN
    assert client.told() == [(Do.SEND_AWAKE, ORDER, 0)]


def test_a_submission_asks_for_its_context_before_it_asks_for_its_turn() -> None:
    client = Sleeper().asleep()
    client.feed(EventType.WANT)
    assert client.told() == [(Do.SEND_REQ_WAKE, ORDER)]
    client.feed(EventType.WAKE, number=ORDER)
    client.feed(EventType.RETURNED)
    assert client.told() == [(Do.SEND_AWAKE, ORDER, 0), (Do.SEND_REQ_LOCK,)]


@pytest.mark.parametrize("locked", [False, True])
def test_a_driver_that_refuses_is_reported(locked: bool) -> None:
    client = Sleeper().ordered()
    client.feed(EventType.HELD, flags=1)
    client.feed(EventType.LEFT, number=304, flags=locked)
    # THEN the process goes on, or its calls get the error where the driver stays locked
    assert client.stands()[0] is (Entry.BROKEN if locked else Entry.OPEN)
    assert client.told() == [(Do.SEND_SLEPT, ORDER, enums.SleptOutcome.FAILED, 0, 304)]


def test_a_failed_restore_is_tried_again_on_a_new_wake_only() -> None:
    client = Sleeper().asleep()
    client.feed(EventType.WAKE, number=ORDER)
    client.feed(EventType.RETURNED, number=2, flags=1)
    assert client.told() == [(Do.SEND_AWAKE, ORDER, 2)]
    assert client.stands()[0] is Entry.BROKEN
    client.later(100 * S)
    client.feed(EventType.CALL)
    assert (client.driver, client.told()) == (None, [])
    client.feed(EventType.WAKE, number=ORDER)
    assert client.stands() == (Entry.SHUT, Gate.SHUT, EventType.RETURNED)
    client.feed(EventType.RETURNED)
    assert client.told() == [(Do.SEND_AWAKE, ORDER, 0)]
    assert client.stands()[0] is Entry.OPEN


def test_without_a_scheduler_a_sleeper_comes_back_where_it_has_room() -> None:
    client = Sleeper().asleep()
    client.feed(EventType.LOST)
    client.feed(EventType.TIME)
    # GIVEN a lost scheduler and no call THEN it looks for room after ten seconds
    assert client.looks == [Do.LOOK_HELD]
    client.later(10 * S - 1)
    assert Do.LOOK_ROOM not in client.looks
    client.later(1)
    assert client.looks.pop() is Do.LOOK_ROOM
    client.feed(EventType.ROOM, flags=0)
    assert client.driver is None
    # WHEN a second later there is room THEN it comes back, and all is open
    client.later(S)
    assert client.looks.pop() is Do.LOOK_ROOM
    client.feed(EventType.ROOM, flags=1)
    client.feed(EventType.RETURNED)
    assert client.told() == []
    assert client.stands() == (Entry.OPEN, Gate.OPEN, None)


def test_without_a_scheduler_a_call_looks_for_room_at_once() -> None:
    client = Sleeper().asleep()
    client.feed(EventType.LOST)
    client.feed(EventType.CALL)
    client.feed(EventType.TIME)
    assert client.looks.pop() is Do.LOOK_ROOM
    # WHEN the scheduler is back before there is room THEN it is asked instead
    client.feed(EventType.CONTROL, flags=1)
    assert client.told() == [(Do.SEND_REQ_WAKE, 0)]
    client.feed(EventType.WAKE, number=0)
    client.feed(EventType.RETURNED)
    assert client.told()[0] == (Do.SEND_AWAKE, 0, 0)


@pytest.mark.parametrize("scheduled", [True, False])
def test_nothing_opens_the_gate_of_a_sleeper(scheduled: bool) -> None:
    client = Sleeper().asleep()
    client.feed(EventType.CONTROL, flags=scheduled)
    client.feed(EventType.GRANT, number=9)
    client.later(100 * S)
    assert client.stands()[1] is Gate.SHUT
    # A scheduler that knows nothing of sleep has granted a turn: it comes back for it.
    assert client.looks.pop() is Do.LOOK_ROOM
    client.feed(EventType.ROOM, flags=1)
    client.feed(EventType.RETURNED)
    assert client.stands()[1] is Gate.OPEN


def test_a_grant_that_a_sleeper_got_is_given_back_without_asking_the_driver() -> None:
    client = Sleeper().asleep()
    client.feed(EventType.GRANT, number=9)
    client.feed(EventType.DROP, number=9)
    assert client.told() == [(Do.SEND_RELEASED, 9)]
    assert client.stands() == (Entry.SHUT, Gate.SHUT, None)


class Sleeps(RuleBasedStateMachine):
    """Any events in any order: the driver is at one thing at a time, behind a gate that is shut; each order is answered
    once; every change is legal; and TIME does what is due."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Sleeper()
        self.orders = 0
        self.unanswered: list[int] = []

    def feed(self, kind: EventType, **fields: int) -> None:
        self.client.feed(kind, **fields)
        for one in self.client.told():
            if one[0] is Do.SEND_SLEPT:
                assert self.unanswered.pop() == one[1]

    @rule(bar=st.sampled_from([0, 0, 0, enums.BarReason.IPC]))
    def sleep(self, bar: int) -> None:
        if self.unanswered:
            return  # a scheduler waits for its answer
        if self.client.entry is Entry.OPEN:
            self.orders += 1
            self.unanswered.append(self.orders)
            self.feed(EventType.SLEEP, number=self.orders, length=LOCK, flags=bar)

    @precondition(lambda self: self.client.driver is not None)
    @rule(error=st.sampled_from([0, 0, 2, 304]), locked=st.booleans())
    def driver_ends(self, error: int, locked: bool) -> None:
        assert self.client.driver is not None
        self.feed(self.client.driver, number=error, flags=locked)

    @rule(kind=st.sampled_from([EventType.CALL, EventType.WANT, EventType.TIME]))
    def plain(self, kind: EventType) -> None:
        self.feed(kind)

    @rule(kind=st.sampled_from([EventType.HELD, EventType.ROOM, EventType.CONTROL]), flags=st.booleans())
    def fact(self, kind: EventType, flags: bool) -> None:
        if kind is not EventType.CONTROL or self.client.driver is None:  # nobody registers on the way out or in
            self.feed(kind, flags=flags)

    @rule(kind=st.sampled_from([EventType.WAKE, EventType.GRANT, EventType.DROP]), number=st.integers(0, 4))
    def numbered(self, kind: EventType, number: int) -> None:
        self.feed(kind, number=number)

    @rule()
    def lost(self) -> None:
        self.feed(EventType.LOST)
        self.unanswered.clear()

    @rule(ns=st.sampled_from([0, MS, 20 * MS, LOCK, 2 * S, 20 * S]))
    def later(self, ns: int) -> None:
        self.client.now += ns
        for _ in range(8):
            if not 0 < self.client.machine.wake_at <= self.client.now:
                return
            self.feed(EventType.TIME)
        raise AssertionError(f"TIME is due again and again: {self.client.machine.story}")

    @invariant()
    def nobody_enters_while_the_driver_is_locked(self) -> None:
        if self.client.entry is not Entry.OPEN:
            assert self.client.gate is Gate.SHUT
        if self.client.driver is not None:
            assert self.client.entry is Entry.SHUT


TestSleeps = Sleeps.TestCase
TestSleeps.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
