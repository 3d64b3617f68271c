"""Link and gate of the preloaded library, in real processes on a simulated node, against a scripted scheduler."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvshare.gpu import sim
from nvshare.wire.messages import (
    FLAG_CONTENDED,
    FLAG_TURNS,
    DropLock,
    EndTurn,
    LockOk,
    LockReleased,
    Refused,
    Register,
    ReleaseReason,
    ReqLock,
    ReqTurn,
    SchedOff,
    SchedOn,
    Terms,
    TurnOk,
    TurnOver,
    TurnReason,
    UpdateCoreLimit,
    UpdateLimit,
    Usage,
)
from tests.support.nodes import MakeNode
from tests.support.processes import Program, Run, preloaded
from tests.support.scripted_scheduler import ScriptedScheduler

PROGRAM = Path(__file__).with_name("link_program.py")
CLIENT = 0x00AB_CDEF_0123_4567
CARD = 13904 << 20
SYSTEM_NOT_READY = 802
PATIENCE = 20.0
PAUSE = 0.1

Start = Callable[..., Program]

pytestmark = pytest.mark.simulated


@pytest.fixture
def node(simulated: MakeNode) -> sim.SimNode:
    return simulated("1xT4")


@pytest.fixture
def scheduler(node: sim.SimNode) -> Iterator[ScriptedScheduler]:
    scheduler = ScriptedScheduler(node.socket)
    yield scheduler
    scheduler.close()


@pytest.fixture
def start(node: sim.SimNode, run_program: Run) -> Start:
    """Start link_program.py under the library, with these variables."""

    def begin(**variables: str) -> Program:
        return run_program([sys.executable, PROGRAM], preloaded(node, **variables))

    return begin


def register(scheduler: ScriptedScheduler, program: Program, *more: UpdateCoreLimit) -> Register:
    """Let the program register; it is scheduled from then on."""
    program.tell("attach")
    scheduler.accept()
    hello = scheduler.expect(Register)
    scheduler.send(SchedOn(CLIENT), UpdateLimit(0, 0, CARD), *more)
    assert program.answer() == 0
    return hello


def test_a_program_registers_and_works_only_under_a_grant(
    node: sim.SimNode, scheduler: ScriptedScheduler, start: Start
) -> None:
    # GIVEN a program that registers when it makes its context
    program = start(NVSHARE_GPU_CORE_LIMIT="30", NVSHARE_POD_NAME="p", NVSHARE_POD_NAMESPACE="ns")
    hello = register(scheduler, program)
    assert [gpu.uuid for gpu in hello.gpus] == list(node.uuids)
    assert (hello.core_limit, hello.pod_name, hello.pod_namespace) == (30, "p", "ns")
    assert hello.previous_id == 0
    assert hello.name.startswith("python")
    # WHEN it launches
    program.tell("launch 1")
    # THEN it asks, once, and nothing reaches the card before the grant
    assert scheduler.expect(ReqLock).gpu == 0
    assert scheduler.quiet(0.05)
    assert node.counters()[0]["launches"] == 0
    scheduler.send(LockOk(0, 1))
    assert program.answer() == 0
    assert node.counters()[0]["launches"] == 1
    # AND users read what they always read
    said = program.end()
    assert said == [
        "[NVSHARE][INFO]: Successfully initialized nvshare GPU",
        f"[NVSHARE][INFO]: Client ID = {CLIENT:016x}",
        "[NVSHARE][INFO]: Pending Kernel Window is 1024",
        "[NVSHARE][INFO]: Received LOCK_OK",
    ]


def test_a_drop_is_answered_after_the_work_and_the_next_launch_asks_again(
    scheduler: ScriptedScheduler, start: Start
) -> None:
    # GIVEN a program with a long kernel under way
    program = start()
    register(scheduler, program)
    program.tell("launch-async 300")
    scheduler.expect(ReqLock)
    scheduler.send(LockOk(0, 1))
    assert program.answer() == 0
    # WHEN its turn is over
    dropped = time.monotonic()
    scheduler.send(DropLock(0, 1, deadline_ms=10_000))
    released = scheduler.expect(LockReleased)
    # THEN the answer comes when the kernel has ended
    assert (released.grant, released.reason) == (1, ReleaseReason.TOLD)
    assert time.monotonic() - dropped > 0.1
    program.tell("launch 1")
    scheduler.expect(ReqLock)
    scheduler.send(LockOk(0, 2))
    assert program.answer() == 0
    said = program.end()
    assert [line.rpartition(": ")[2] for line in said[3:]] == [
        "Received LOCK_OK",
        "Received DROP_LOCK",
        "Sent LOCK_RELEASED",
        "Received LOCK_OK",
    ]


def test_new_terms_that_cross_a_release_do_not_bring_the_grant_back(
    node: sim.SimNode, scheduler: ScriptedScheduler, start: Start
) -> None:
    # GIVEN a program that gave its turn back because it was idle while others waited
    program = start()
    register(scheduler, program)
    program.tell("launch 1")
    scheduler.expect(ReqLock)
    scheduler.send(LockOk(0, 7, flags=FLAG_CONTENDED))
    assert program.answer() == 0
    assert scheduler.expect(LockReleased).grant == 7
    # WHEN new terms of that very grant arrive late
    scheduler.send(LockOk(0, 7))
    launches = node.counters()[0]["launches"]
    program.tell("launch 1")
    # THEN it is not taken for a grant: the next launch asks
    scheduler.expect(ReqLock)
    assert node.counters()[0]["launches"] == launches
    scheduler.send(LockOk(0, 8))
    assert program.answer() == 0
    program.end()


def test_a_kernel_that_does_not_end_in_time_is_reported_and_goes_on(scheduler: ScriptedScheduler, start: Start) -> None:
    program = start()
    register(scheduler, program)
    program.tell("launch-async 500")
    scheduler.expect(ReqLock)
    scheduler.send(LockOk(0, 1))
    assert program.answer() == 0
    # WHEN the deadline is shorter than the kernel THEN it is stuck, and the program may go on
    scheduler.send(DropLock(0, 1, deadline_ms=20))
    assert scheduler.expect(LockReleased).reason == ReleaseReason.STUCK
    assert program.ask("launch 1") == 0


def test_the_core_limit_is_said_at_each_change(scheduler: ScriptedScheduler, start: Start) -> None:
    program = start()
    register(scheduler, program, UpdateCoreLimit(30), UpdateCoreLimit(30), UpdateCoreLimit(80))
    # WHEN a grant that was sent after them has come THEN they have been read
    program.tell("launch 1")
    scheduler.expect(ReqLock)
    scheduler.send(LockOk(0, 1))
    assert program.answer() == 0
    said = program.end()
    assert [line for line in said if "Core limit" in line] == [
        "[NVSHARE][INFO]: Core limit = 30%",
        "[NVSHARE][INFO]: Core limit = 80%",
    ]


def test_occupied_time_is_reported(scheduler: ScriptedScheduler, start: Start) -> None:
    program = start()
    register(scheduler, program)
    program.tell("launch 1")
    scheduler.expect(ReqLock)
    scheduler.send(LockOk(0, 1))
    assert program.answer() == 0
    # WHEN ten kernels of 40 ms ran THEN about 400 ms are reported, and each of them
    for _ in range(10):
        assert program.ask("launch 40") == 0
    usage = scheduler.expect(Usage)
    while usage.submissions < 11 or usage.occupied_us < 380_000:
        usage = scheduler.expect(Usage)
    assert usage.submissions == 11
    assert usage.occupied_us < 600_000


def test_work_goes_on_while_the_scheduler_is_gone(
    node: sim.SimNode, scheduler: ScriptedScheduler, start: Start
) -> None:
    # GIVEN a program that waits for its turn
    program = start()
    register(scheduler, program)
    program.tell("launch 1")
    scheduler.expect(ReqLock)
    # WHEN the scheduler dies THEN the program goes on
    scheduler.close()
    assert program.answer() == 0
    assert program.ask("launch 1") == 0
    # WHEN it is back THEN the program registers again as who it was, and needs a turn
    successor = ScriptedScheduler(node.socket)
    try:
        successor.accept()
        assert successor.expect(Register).previous_id == CLIENT
        successor.send(SchedOn(CLIENT), UpdateLimit(0, 0, CARD), SchedOff(CLIENT))
        assert program.ask("launch 1") == 0
        said = program.end()
    finally:
        successor.close()
    assert sum("lost the scheduler" in line for line in said) == 1
    assert sum(line.endswith("is back") and "lost" not in line for line in said) == 1


def test_without_a_scheduler_there_is_one_warning(node: sim.SimNode, start: Start) -> None:
    program = start()
    assert program.ask("attach") == 0
    assert program.ask("launch 1") == 0
    assert program.end() == [f"[NVSHARE][WARN]: no scheduler at {node.socket}: running without sharing"]


def test_a_required_scheduler_that_is_missing_is_an_error(start: Start) -> None:
    program = start(NVSHARE_REQUIRE="1")
    assert program.ask("attach") == SYSTEM_NOT_READY
    said = program.end()
    assert len(said) == 1
    assert "NVSHARE_REQUIRE" in said[0]


def test_a_refused_program_runs_natively(scheduler: ScriptedScheduler, start: Start) -> None:
    program = start()
    program.tell("attach")
    scheduler.accept()
    scheduler.expect(Register)
    scheduler.send(Refused(1, "speaks version 1, this scheduler speaks 2; upgrade the library", version=2))
    assert program.answer() == 0
    assert program.ask("launch 1") == 0
    said = program.end()
    assert len(said) == 1
    assert "upgrade the library" in said[0]


def test_a_forked_child_does_not_keep_the_connection(scheduler: ScriptedScheduler, start: Start) -> None:
    # GIVEN a registered program with a child that lives on
    program = start()
    register(scheduler, program)
    program.ask("fork")
    # WHEN the parent is killed THEN the scheduler sees the connection end at once
    program.kill()
    assert scheduler.ended()


def test_a_process_without_cuda_is_left_alone(scheduler: ScriptedScheduler, start: Start) -> None:
    # GIVEN a program that loads the driver's library but makes no context
    program = start(NVSHARE_DEBUG="1")
    # THEN it has one thread and says nothing
    assert program.ask("threads") == 1
    assert program.end() == []


def take_turns(scheduler: ScriptedScheduler, program: Program) -> None:
    """Let the program register, grant it the card, and tell it to take compute turns; the first is over."""
    register(scheduler, program)
    program.tell("launch 1")
    scheduler.expect(ReqLock)
    scheduler.send(Terms(0, FLAG_TURNS, in_flight_us=4000), LockOk(0, 1))
    scheduler.expect(ReqTurn)
    scheduler.send(TurnOk(0, 1))
    assert program.answer() == 0
    scheduler.send(EndTurn(0, 1))
    last_word(scheduler)


def last_word(scheduler: ScriptedScheduler) -> TurnOver:
    """What is told of a turn when all of it has ended. Meanwhile the next one may be asked for."""
    while True:
        message = scheduler.receive()
        if isinstance(message, TurnOver) and message.pending_us == 0:
            return message
        assert isinstance(message, (TurnOver, ReqTurn, Usage)), message


def run_in_turns(scheduler: ScriptedScheduler, program: Program, line: str, length_us: int) -> list[TurnOver]:
    """The last word on each turn that the program needs to do what the line says."""
    program.tell(line)
    scheduler.expect(ReqTurn)
    ended: list[TurnOver] = []
    while not ended or ended[-1].wants or scheduler.asked_before(program):
        scheduler.send(TurnOk(0, len(ended) + 2, length_us=length_us))
        ended.append(last_word(scheduler))
    assert program.answer() == 0
    assert [over.number for over in ended] == list(range(2, len(ended) + 2))
    return ended


def test_what_busy_work_uses_is_billed_turn_by_turn(scheduler: ScriptedScheduler, start: Start) -> None:
    # GIVEN 300 ms of work in kernels of 1 ms WHEN it runs in turns of 50 ms
    program = start()
    take_turns(scheduler, program)
    ended = run_in_turns(scheduler, program, "loop 1 300", length_us=50_000)
    # THEN turns end by their length, and no work is left out of the bill
    assert len(ended) >= 2
    assert TurnReason.ENDED in {over.reason for over in ended}
    assert sum(over.used_us for over in ended) >= 297_000
    # AND the GPU is not said to have worked longer than it was used
    assert all(0 < over.busy_us <= over.used_us for over in ended if over.used_us)


def test_launch_bound_work_is_told_from_busy_work(scheduler: ScriptedScheduler, start: Start) -> None:
    # GIVEN kernels that take a fraction of what launching them takes WHEN they run in turns
    program = start()
    take_turns(scheduler, program)
    ended = run_in_turns(scheduler, program, "loop 0.001 10000 1000", length_us=50_000)
    # THEN the time is used, but the GPU was at work for a part of it only
    used = sum(over.used_us for over in ended)
    assert sum(over.busy_us for over in ended) < 0.6 * used


def test_pauses_between_bursts_are_not_billed(scheduler: ScriptedScheduler, start: Start) -> None:
    # GIVEN a program that may run until it is told not to
    program = start()
    take_turns(scheduler, program)
    program.tell("loop 1 10")
    scheduler.expect(ReqTurn)
    began = time.monotonic()
    scheduler.send(TurnOk(0, 2))
    assert program.answer() == 0
    first = time.monotonic() - began
    # WHEN it works for 10 ms now and then, without a word in between
    worked = 0.0
    for _ in range(4):
        assert scheduler.quiet(PAUSE)
        began = time.monotonic()
        assert program.ask("loop 1 10") == 0
        worked += time.monotonic() - began
    assert scheduler.quiet(PAUSE)
    scheduler.send(EndTurn(0, 2))
    over = scheduler.expect(TurnOver)
    # THEN the bursts are billed, however long this machine took for them, and not half of the pauses
    assert (over.reason, over.pending_us, over.wants) == (TurnReason.TOLD, 0, 0)
    assert 45_000 <= over.used_us <= (first + worked + 2.5 * PAUSE) * 1e6
