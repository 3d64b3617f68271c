"""Processes that leave their cards and come back: on a simulated node, under the library, against a scripted scheduler.

The simulated driver kills a process of which a thread is in the driver, or enters it, while a checkpoint is made.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from nvshare.gpu import sim
from nvshare.wire.enums import BarReason, SleptOutcome
from nvshare.wire.messages import (
    FLAG_ASLEEP,
    Attach,
    Awake,
    DropLock,
    LockOk,
    LockReleased,
    MemAvailable,
    MemRequest,
    MemUpdate,
    Message,
    Register,
    ReqLock,
    ReqWake,
    Residency,
    SchedOn,
    Sleep,
    Sleepable,
    Slept,
    UpdateLimit,
    Usage,
    Wake,
)
from tests.support.nodes import MakeNode
from tests.support.processes import Program, Run, preloaded
from tests.support.scripted_scheduler import PATIENCE, ScriptedScheduler

PROGRAM = Path(__file__).with_name("sleep_program.py")
CARD = 13904 << 20
CONTEXT = 1009 << 20
KEPT = 4 << 20  # of a context that is away
DATA = 8 << 20
LOCK_MS = 20_000
OPERATING_SYSTEM, UNKNOWN = 304, 999
NOT_INITIALIZED = 3

M = TypeVar("M", bound=Message)

pytestmark = pytest.mark.simulated


class Sleeper:
    """One program, and its scheduler, which grants what is asked for and wakes who asks."""

    def __init__(self, node: sim.SimNode, scheduler: ScriptedScheduler, program: Program) -> None:
        self.node, self.scheduler, self.program = node, scheduler, program
        self.order = self.number = 0
        self.grants: dict[int, int] = {}
        self.resident: dict[int, tuple[int, int]] = {}  # by card: the target that is kept to, and bytes
        self.facts: list[Message] = []
        self.requests: list[MemRequest] = []
        self.gives_memory = True

    def registers(self, cards: int = 1) -> Sleeper:
        self.program.tell(f"attach {cards}")
        self.accepts()
        assert self.answer() == 0
        return self

    def accepts(self) -> Register:
        """A connection; what it says of the process's sleep."""
        self.scheduler.accept()
        hello = self.scheduler.expect(Register)
        self.grants.clear()
        self.facts.clear()
        self.number = 0
        self.scheduler.send(SchedOn(1), *(UpdateLimit(card, 0, CARD) for card in range(len(hello.gpus))))
        return hello

    def handle(self, message: object) -> None:
        send = self.scheduler.send
        if isinstance(message, Attach):
            send(UpdateLimit(1, 0, CARD))
        elif isinstance(message, ReqLock):
            self.number += 1
            self.grants[message.gpu] = self.number
            send(Residency(message.gpu, self.number, CARD), LockOk(message.gpu, self.number))
        elif isinstance(message, MemRequest):
            self.requests.append(message)
            self.give_memory()
        elif isinstance(message, LockReleased):
            self.grants.pop(message.gpu)
        elif isinstance(message, MemUpdate):
            self.resident[message.gpu] = message.applied, message.resident
        elif isinstance(message, (Slept, ReqWake, Awake, Sleepable)):
            self.facts.append(message)
            if isinstance(message, ReqWake):
                send(Wake(message.order))
        else:
            assert message is None or isinstance(message, Usage), message

    def give_memory(self) -> None:
        while self.requests and self.gives_memory:
            request = self.requests.pop()
            self.scheduler.send(MemAvailable(request.gpu, request.request))

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, (self.facts, self.program.said)
            self.handle(self.scheduler.poll(0.01))

    def hears(self, kind: type[M]) -> M:
        """The next fact of this kind."""
        self.until(lambda: any(isinstance(fact, kind) for fact in self.facts))
        found = next(fact for fact in self.facts if isinstance(fact, kind))
        self.facts.remove(found)
        return found

    def answer(self) -> int:
        self.until(self.program.has_line)
        return int(self.program.answer())

    def ask(self, line: str) -> int:
        self.program.tell(line)
        return self.answer()

    def gives_back(self) -> None:
        """No grant."""
        for card, grant in list(self.grants.items()):
            self.scheduler.send(DropLock(card, grant))
        self.until(lambda: not self.grants)

    def swaps_out(self) -> None:
        """Nor any byte on a card."""
        self.gives_back()
        self.number += 1
        for card in self.resident:
            self.scheduler.send(Residency(card, self.number, 0))
        self.until(lambda: all(kept == (self.number, 0) for kept in self.resident.values()))

    def is_told(self, lock_ms: int = LOCK_MS) -> None:
        self.order += 1
        self.scheduler.send(Sleep(self.order, lock_ms, CONTEXT))

    def sleeps(self) -> Sleeper:
        """Its contexts are off the cards."""
        self.swaps_out()
        return self.leaves()

    def leaves(self) -> Sleeper:
        """The same, with its data, where it has some there."""
        self.is_told()
        assert self.hears(Slept) == Slept(self.order, SleptOutcome.ASLEEP)
        assert all(one["memory_used"] in (0, KEPT) for one in self.node.counters())
        return self

    def is_right(self) -> None:
        """Every byte is, and a kernel runs."""
        assert (self.ask("check"), self.ask("launch")) == (0, 0)


@pytest.fixture
def node(simulated: MakeNode) -> sim.SimNode:
    return simulated("2xT4", 100.0)


@pytest.fixture
def scheduler(node: sim.SimNode) -> Iterator[ScriptedScheduler]:
    scheduler = ScriptedScheduler(node.socket)
    yield scheduler
    scheduler.close()


@pytest.fixture
def start(node: sim.SimNode, scheduler: ScriptedScheduler, run_program: Run) -> Callable[..., Sleeper]:
    """Start sleep_program.py under the library, with these variables."""

    def begin(**variables: str) -> Sleeper:
        return Sleeper(node, scheduler, run_program([sys.executable, PROGRAM], preloaded(node, **variables)))

    return begin


Start = Callable[..., Sleeper]


@pytest.mark.parametrize("cards", [1, 2])
def test_a_process_leaves_its_cards_and_a_call_brings_it_back(start: Start, cards: int) -> None:
    # GIVEN a process with data on each of its cards
    task = start().registers(cards)
    assert task.ask("fill") == 0
    for _ in range(2):
        # WHEN it is told to sleep THEN nothing of it stays but what the driver keeps
        task.sleeps()
        # WHEN it works again THEN it asks for its contexts, and every byte is there
        task.is_right()
        assert task.hears(ReqWake) == ReqWake(task.order)
        assert task.hears(Awake) == Awake(task.order)
        assert all(one["memory_used"] >= CONTEXT + DATA for one in task.node.counters()[:cards])


@pytest.mark.parametrize("call", ["query", "memory", "device-count", "calls", "alarm", "second"])
def test_any_call_wakes_a_process(start: Start, call: str) -> None:
    # GIVEN a sleeper WHEN it calls a function with or without a hook, from many threads, from a signal's handler
    task = start().registers()
    assert task.ask("fill") == 0
    task.sleeps()
    assert task.ask(call) == 0
    # THEN the call wakes it, once, and has its answer
    assert task.hears(Awake) == Awake(task.order)
    assert [fact for fact in task.facts if isinstance(fact, ReqWake)] == [ReqWake(task.order)]
    task.is_right()


def test_a_scheduler_may_wake_a_process_unasked(start: Start) -> None:
    task = start().registers()
    assert task.ask("fill") == 0
    task.sleeps()
    task.scheduler.send(Wake(task.order))
    assert task.hears(Awake) == Awake(task.order)
    task.is_right()


def test_threads_that_poll_are_held_back_or_keep_their_process_awake(start: Start) -> None:
    # GIVEN two threads that ask for an event each millisecond
    task = start().registers()
    assert (task.ask("fill"), task.ask("poll")) == (0, 0)
    outcomes = []
    for _ in range(20):
        # WHEN their process is told to sleep THEN they cancel it, or wait until it is back
        task.swaps_out()
        task.is_told()
        slept = task.hears(Slept)
        outcomes.append(slept.outcome)
        if slept.outcome == SleptOutcome.ASLEEP:
            assert task.hears(Awake) == Awake(task.order)
    assert set(outcomes) <= {SleptOutcome.ASLEEP, SleptOutcome.WOKE}
    # AND none of their calls fails
    assert task.ask("polled") == 0
    task.is_right()


def test_a_thread_inside_the_driver_keeps_its_process_awake_until_the_order_ends(start: Start) -> None:
    # GIVEN a thread that waits inside a call, for memory that does not come
    task = start().registers()
    task.gives_memory = False
    task.program.tell("fill")
    task.until(lambda: task.requests)
    # WHEN its process is told to sleep, within a time THEN the order ends with the time, and nothing has happened
    task.is_told(lock_ms=50)
    assert task.hears(Slept) == Slept(task.order, SleptOutcome.WOKE)
    task.gives_memory = True
    task.give_memory()
    assert task.answer() == 0
    task.is_right()


def test_a_call_that_comes_while_others_are_waited_for_ends_the_order(start: Start) -> None:
    # GIVEN a thread inside the driver, and others that poll
    task = start().registers()
    task.gives_memory = False
    assert task.ask("poll") == 0
    task.program.tell("fill")
    task.until(lambda: task.requests)
    # WHEN their process is told to sleep, with all the time in the world
    task.is_told()
    # THEN the first that polls ends the order
    assert task.hears(Slept) == Slept(task.order, SleptOutcome.WOKE)
    task.gives_memory = True
    task.give_memory()
    assert task.answer() == 0
    assert task.ask("polled") == 0
    task.is_right()


def test_a_task_that_has_its_turn_does_not_leave(start: Start) -> None:
    task = start().registers()
    assert task.ask("fill") == 0
    task.is_told()
    assert task.hears(Slept) == Slept(task.order, SleptOutcome.WOKE)
    task.is_right()


@pytest.mark.parametrize("fault", ["lock=304", "lock=600", "checkpoint=999"])
def test_a_driver_that_refuses_leaves_the_process_as_it_was(start: Start, fault: str) -> None:
    # GIVEN a driver that refuses the first time
    operation, code = fault.split("=")
    task = start(NVSHARE_SIM_FAULTS=f"{operation}@1={code}").registers()
    assert task.ask("fill") == 0
    task.swaps_out()
    # WHEN the process is told to sleep THEN it says why it does not, and works on
    task.is_told()
    assert task.hears(Slept) == Slept(task.order, SleptOutcome.FAILED, 0, int(code))
    assert task.ask("query") == 0
    task.is_right()
    assert f"CUDA error {code}" in task.program.heard("could not take this process off its cards").text
    # AND the next time it sleeps
    task.sleeps().is_right()


def test_a_process_that_the_driver_broke_gets_the_drivers_error(start: Start) -> None:
    # GIVEN a driver that fails, and can unlock no more WHEN the process is told to sleep THEN no call of it hangs
    task = start(NVSHARE_SIM_FAULTS="checkpoint=break").registers()
    assert task.ask("fill") == 0
    task.swaps_out()
    task.is_told()
    assert task.hears(Slept).outcome == SleptOutcome.FAILED
    assert (task.ask("query"), task.ask("launch")) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(("operation", "again"), [("restore", OPERATING_SYSTEM), ("unlock", 0)])
def test_a_failed_return_is_told_and_tried_again_on_a_new_wake_only(start: Start, operation: str, again: int) -> None:
    # GIVEN a sleeper whose driver fails on its way back, once; after a failed restore it never succeeds again
    task = start(NVSHARE_SIM_FAULTS=f"{operation}@1=999").registers()
    assert task.ask("fill") == 0
    task.sleeps()
    # WHEN a call wakes it THEN the call gets the error, and so do all others
    assert task.ask("query") == UNKNOWN
    assert task.hears(Awake) == Awake(task.order, UNKNOWN)
    assert (task.ask("launch"), task.ask("memory"), task.ask("query")) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert len([fact for fact in task.facts if isinstance(fact, ReqWake)]) == 1
    # WHEN the scheduler tries again THEN what is left to do is done, or fails again
    task.scheduler.send(Wake(task.order))
    assert task.hears(Awake) == Awake(task.order, again)
    assert (task.ask("check"), task.ask("query")) == (again, again)


@pytest.mark.parametrize("operation", ["lock", "checkpoint", "restore", "unlock"])
def test_a_process_that_is_killed_between_two_calls_leaves_nothing(start: Start, operation: str) -> None:
    # GIVEN a process that is killed after one of the driver's calls
    task = start(NVSHARE_SIM_FAULTS=f"{operation}=kill").registers()
    assert task.ask("fill") == 0
    task.swaps_out()
    task.is_told()
    if operation in ("restore", "unlock"):
        assert task.hears(Slept).outcome == SleptOutcome.ASLEEP
        task.scheduler.send(Wake(task.order))
    # THEN its connection ends, and nothing of it is on a card
    assert task.program.process.wait(PATIENCE) == -signal.SIGKILL
    assert [one["memory_used"] for one in task.node.counters()] == [0, 0]


def test_a_sleeper_that_is_killed_leaves_nothing(start: Start) -> None:
    task = start().registers()
    assert task.ask("fill") == 0
    task.sleeps()
    task.program.kill()
    assert [one["memory_used"] for one in task.node.counters()] == [0, 0]


def test_a_call_brings_a_sleeper_without_a_scheduler_back(start: Start) -> None:
    # GIVEN a sleeper whose scheduler is gone
    task = start().registers()
    assert task.ask("fill") == 0
    task.gives_back()
    task.leaves()
    task.scheduler.close()
    # WHEN it calls the driver, and the card has room THEN it is back, whole
    assert [task.program.ask(line) for line in ("query", "check", "launch")] == [0, 0, 0]


def test_a_sleeper_that_registers_again_says_so_and_wakes_under_the_new_scheduler(
    start: Start, node: sim.SimNode
) -> None:
    task = start().registers()
    assert task.ask("fill") == 0
    task.sleeps()
    # WHEN the scheduler is restarted
    task.scheduler.close()
    task.scheduler = ScriptedScheduler(node.socket)
    try:
        hello = task.accepts()
        # THEN it is told of the sleeper and of its size, and wakes it as any other
        assert hello.flags & FLAG_ASLEEP
        assert task.hears(Sleepable) == Sleepable(BarReason.NONE, CONTEXT)
        task.is_right()
        assert task.hears(ReqWake) == ReqWake(0)
        assert task.hears(Awake) == Awake(0)
        task.order = 0
        task.sleeps().is_right()
    finally:
        task.scheduler.close()


def test_a_child_of_a_sleeper_does_not_sleep(start: Start) -> None:
    # GIVEN a sleeper WHEN it forks THEN the child has the driver's answer to a child, at once, and wakes nobody
    task = start().registers()
    assert task.ask("fill") == 0
    task.sleeps()
    assert task.ask("fork") == NOT_INITIALIZED
    assert not [fact for fact in task.facts if isinstance(fact, ReqWake)]
    task.is_right()


def test_a_program_that_ends_asleep_is_awake_when_its_exit_handlers_run(start: Start) -> None:
    # GIVEN a sleeper with a handler that looks at its data
    task = start().registers()
    assert (task.ask("fill"), task.ask("at-exit")) == (0, 0)
    task.sleeps()
    # WHEN it ends THEN they are right
    task.program.tell("end")
    assert task.answer() == 0
    assert task.program.process.wait(PATIENCE) == 0
    # AND without a handler it is brought back as well, for the driver takes itself down
    other = start().registers()
    assert other.ask("fill") == 0
    other.sleeps()
    other.program.tell("end")
    assert other.hears(Awake) == Awake(other.order)
    assert other.program.process.wait(PATIENCE) == 0


@pytest.mark.parametrize(("does", "bar"), [("managed", BarReason.MANAGED), ("exported", BarReason.IPC)])
def test_what_a_process_did_that_cannot_sleep_is_told_at_once(start: Start, does: str, bar: BarReason) -> None:
    # GIVEN a process that can sleep
    task = start().registers()
    assert task.hears(Sleepable) == Sleepable(BarReason.NONE)
    # WHEN it does what bars it THEN the scheduler is told; it may hear first that memory is there that stays
    assert task.ask(does) == 0
    while task.hears(Sleepable).bar != bar:
        pass
    # AND an order is declined all the same
    task.gives_back()
    task.is_told()
    assert task.hears(Slept) == Slept(task.order, SleptOutcome.DECLINED, bar)


def test_a_driver_without_the_calls_is_told(simulated: MakeNode, run_program: Run) -> None:
    node = simulated("1xT4", setup=sim.Setup(older_driver=1))
    scheduler = ScriptedScheduler(node.socket)
    try:
        task = Sleeper(node, scheduler, run_program([sys.executable, PROGRAM], preloaded(node))).registers()
        assert task.hears(Sleepable).bar == BarReason.DRIVER
    finally:
        scheduler.close()
