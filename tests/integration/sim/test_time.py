"""Time on the simulated card: streams, events, contention between processes, death. Ratios of simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvshare.gpu.sim import SimNode

pytestmark = pytest.mark.simulated

Run = Callable[..., str]
Start = Callable[..., Any]

# Adds as add-small does (n = 14000^2), and prints how many times the computed time the middle third took: by then every
# neighbour has started, and none has finished.
ADDS = """
d = Driver()
n, third = 14000 * 14000, {third}
x = d.alloc(4 * n)
d.function("nvs_add_f32")
d.sync()
print("ready", flush=True); input()
began, marks = time.time(), []
for _ in range(3):
    for _ in range(third):
        d.add(x, x, x, n)
    marks.append(d.record())
d.sync()
took = time.time() - began
print(d.elapsed(marks[0], marks[1]) / (third * (3e-6 + 12 * n / 242.5e9)), took, flush=True)
"""


def ratios(programs: list[Any]) -> list[float]:
    """Let all begin together; the first number that each prints."""
    for program in programs:
        assert program.line() == "ready"
    for program in programs:
        program.tell()
    return [float(program.finish().split()[0]) for program in programs]


def test_kernels_alone_take_what_the_profile_says(node: SimNode, start: Start) -> None:
    # GIVEN more launches than the queue holds / WHEN they run alone
    # THEN they take the computed time by the card's clock, and no less by ours
    program = start(node, ADDS.format(third=500))
    program.line()
    program.tell()
    ratio, wall = map(float, program.finish().split())
    assert ratio == pytest.approx(1, rel=0.001)
    assert wall * node.speed / (1500 * 12 * 14000**2 / 242.5e9) >= 0.95


@pytest.mark.parametrize("count", [2, 3])
def test_busy_processes_share_with_the_loss_of_time_slicing(node: SimNode, start: Start, count: int) -> None:
    programs = [start(node, ADDS.format(third=200)) for _ in range(count)]
    assert ratios(programs) == pytest.approx([count / 0.905] * count, rel=0.02)


def test_processes_on_different_gpus_do_not_meet(node: SimNode, start: Start) -> None:
    programs = [start(node, ADDS.format(third=100), {"CUDA_VISIBLE_DEVICES": str(gpu)}) for gpu in range(2)]
    assert ratios(programs) == pytest.approx([1, 1], rel=0.01)


def test_a_killed_process_frees_its_memory_and_the_gpu(node: SimNode, start: Start) -> None:
    # GIVEN a neighbour with gigabytes and an endless kernel / WHEN it is killed / THEN the other has the card to itself
    victim = start(node, "d = Driver(); d.alloc(8 << 30); d.spin(1e6); print('busy', flush=True); input()")
    assert victim.line() == "busy"
    survivor = start(
        node,
        """
        d = Driver()
        def rate():
            d.spin(1.0); first = d.record(); d.spin(0.5); last = d.record()
            return d.elapsed(first, last) / 0.5
        d.spin(0.0); d.sync()
        print(rate(), flush=True); input()
        d.alloc(12 << 30)
        rate()
        print(rate())
        """,
    )
    assert float(survivor.line()) == pytest.approx(2 / 0.905, rel=0.02)
    victim.kill()
    survivor.tell()
    assert float(survivor.finish()) == pytest.approx(1, rel=0.02)
    assert node.counters()[0]["memory_used"] == 0


def test_processes_killed_at_any_moment_never_stop_the_others(node: SimNode, start: Start) -> None:
    # GIVEN processes that submit without pause / WHEN they are killed / THEN the lock and the sums recover
    busy = """
        d = Driver()
        print("busy", flush=True)
        while True:
            p = d.alloc(4 << 20); d.spin(1e-6); d.cuMemsetD8_v2(p, c_uint(1), 100); d.cuMemFree_v2(p)
        """
    survivor = start(
        node, "d = Driver(); print('up', flush=True); input(); d.spin(0.1); d.sync(); print(d.memory()[0])"
    )
    survivor.line()
    for _ in range(3):
        victims = [start(node, busy) for _ in range(2)]
        for victim in victims:
            victim.line()
        for victim in victims:
            victim.kill()
    survivor.tell()
    assert int(survivor.finish()) == (14913 - 1009) << 20


def test_streams_order_events_and_copies_overlap(make_node: Callable[..., SimNode], run: Run) -> None:
    # Everything is queued behind a kernel, so that the times between events do not depend on when it was submitted.
    node = make_node(speed=2.0)
    run(
        node,
        """
        d = Driver()
        a, b = d.stream(), d.stream()
        pinned = c_void_p()
        size = 123 << 20
        d.cuMemHostAlloc(byref(pinned), size, c_uint(0))
        p = d.alloc(512 << 20)
        d.function("nvs_spin")
        # a copy runs beside a kernel of another stream; kernels of one context run one after the other
        d.spin(1.0, a)
        start = d.record(a)
        d.cuStreamWaitEvent(b, start, c_uint(0))
        d.spin(0.5, a)
        after_kernel = d.record(a)
        d.cuMemcpyHtoDAsync_v2(p, pinned, size, b)
        after_copy = d.record(b)
        d.spin(0.5, b)
        after_both = d.record(b)
        assert d.code("cuEventQuery", start) == 600 and d.code("cuStreamQuery", b) == 600
        close = lambda seconds, expected: abs(seconds / expected - 1) < 0.001
        assert close(d.elapsed(start, after_copy), size / 12.3e9)
        assert close(d.elapsed(start, after_kernel), 0.5)
        assert close(d.elapsed(start, after_both), 1.0)
        assert d.code("cuStreamQuery", a) == d.code("cuStreamQuery", b) == 0
        # the legacy stream waits for blocking streams, not for others
        blocking = d.stream(0)
        d.spin(0.3, blocking)
        d.cuStreamSynchronize(None)
        assert d.code("cuStreamQuery", blocking) == 0
        d.spin(3.0, a)
        d.cuStreamSynchronize(None)
        assert d.code("cuStreamQuery", a) == 600
        d.sync()
        """,
    )


def test_pinned_copies_of_two_processes_share_the_link(make_node: Callable[..., SimNode], start: Start) -> None:
    # Much slower than life: the bytes really are copied, by a processor that has other things to do.
    node = make_node(speed=0.05)
    source = """
        d = Driver()
        size = 32 << 20
        pinned = c_void_p()
        d.cuMemHostAlloc(byref(pinned), size, c_uint(0))
        p, s = d.alloc(size), d.stream()
        d.sync(); print("ready", flush=True); input()
        marks = []
        for _ in range(3):
            for _ in range(5):
                d.cuMemcpyHtoDAsync_v2(p, pinned, size, s)
            marks.append(d.record(s))
        print(d.elapsed(marks[0], marks[1]) / (5 * size / 12.3e9))
        """
    assert ratios([start(node, source) for _ in range(2)]) == pytest.approx([2, 2], rel=0.01)


def test_host_functions_run_in_stream_order_without_being_waited_for(
    make_node: Callable[..., SimNode], run: Run
) -> None:
    node = make_node(speed=2.0)
    # GIVEN a host function behind a kernel / WHEN the program waits for its effect only / THEN it comes
    run(
        node,
        """
        import threading
        d = Driver()
        done = threading.Event()
        called = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: done.set())
        s = d.stream()
        d.spin(2.0, s)
        d.cuLaunchHostFunc(s, called, None)
        last = d.record(s)
        assert d.code("cuEventQuery", last) == 600
        assert done.wait(30)
        d.cuEventSynchronize(last)
        """,
    )


def test_waiting_sleeps(node: SimNode, run: Run) -> None:
    used = run(
        node,
        """
        d = Driver(); d.function("nvs_spin")
        before = time.process_time(); d.spin(10.0); d.sync()
        print(time.process_time() - before)
        """,
    )
    assert float(used) < 0.1  # of one second of waiting
