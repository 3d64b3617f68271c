"""Managed memory of the simulated card: where it is, what moving it takes, who has to go when the card is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvshare.gpu.sim import SimNode

pytestmark = pytest.mark.simulated

Run = Callable[..., str]
Start = Callable[..., Any]

START = """
G, M = 1 << 30, 1 << 20
d = Driver()
s = d.stream()
d.function("nvs_add_f32")
free = d.memory()[0]
def used(): return free - d.memory()[0]
def close(a, b): assert abs(a / b - 1) < 0.005, (a, b)
# Behind a kernel, so that the time between the marks does not depend on when work was submitted.
def seconds(work):
    d.spin(2.0, s)
    first = d.record(s)
    work()
    return d.elapsed(first, d.record(s))
def touch(p, size): d.add(p, p, p, size // 4, stream=s)
def prefetch(p, size, device): d.cuMemPrefetchAsync(p, size, c_int(device), s)
"""


def test_prefetch_and_first_touch_take_what_the_profile_says(make_node: Callable[..., SimNode], run: Run) -> None:
    node = make_node("1xH200")
    run(
        node,
        START
        + """
p = d.managed(4 * G)
assert used() == 0, "starts on the host"
kernel = 3 * 4 * G / 4.346e12
close(seconds(lambda: touch(p, 4 * G)), kernel + 4 * G / 9e9)
assert used() == 4 * G
close(seconds(lambda: touch(p, 4 * G)), kernel)
close(seconds(lambda: prefetch(p, 4 * G, -1)), 4 * G / 10.5e9)
assert used() == 0
close(seconds(lambda: prefetch(p, 4 * G, 0)), 4 * G / 46e9)
assert used() == 4 * G
close(seconds(lambda: touch(p, 4 * G)), kernel)
# only what is not there moves
prefetch(p + G, G, -1); d.cuStreamSynchronize(s)
assert used() == 3 * G
close(seconds(lambda: prefetch(p, 4 * G, 0)), G / 46e9)
# by location, and hints
d.cuMemPrefetchAsync_v2(p, 2 * G, Location(2, 0), c_uint(0), s); d.cuStreamSynchronize(s)
assert used() == 2 * G
d.cuMemAdvise(p, 2 * G, c_int(3), c_int(-1))
d.cuMemPrefetchAsync_v2(p, 2 * G, Location(1, 0), c_uint(0), s); d.cuStreamSynchronize(s)
assert used() == 4 * G
assert d.code("cuMemPrefetchAsync", p + 3 * G, 2 * G, c_int(0), s) == 1
assert d.code("cuMemPrefetchAsync", p, G, c_int(7), s) == 101
d.cuMemFree_v2(p)
assert used() == 0
""",
    )
    counters = node.counters()[0]
    assert counters["bytes_faulted"] == 4 << 30
    assert counters["bytes_d2h"] == (4 + 1 + 2) << 30
    assert counters["bytes_h2d"] == (4 + 1 + 2) << 30


def test_room_is_free_when_a_prefetch_out_is_done_not_before(node: SimNode, start: Start) -> None:
    # GIVEN a process that prefetches 8 GiB out and then calls no driver / WHEN the time is over / THEN others have room
    leaving = start(
        node,
        START
        + """
p = d.managed(8 * G)
touch(p, 8 * G); d.cuStreamSynchronize(s)
d.spin(6.0, s)
prefetch(p, 8 * G, -1)
print(used(), flush=True); input()
""",
    )
    assert int(leaving.line()) == 8 << 30
    other = start(
        node,
        """
d = Driver()
full = d.memory()[0]
while d.memory()[0] < full + (8 << 30):
    pass
d.alloc(12 << 30)
""",
    )
    other.finish()


def test_more_than_the_card_holds_goes_around_by_least_recent_use(node: SimNode, run: Run) -> None:
    # GIVEN 20 GiB of managed memory on a card with 13.6 / WHEN touched in turns / THEN the longest unused is evicted
    run(
        node,
        START
        + """
G5 = 5 * G
parts = [d.managed(G5) for _ in range(4)]
for i, p in enumerate(parts):
    d.fill(p, 0x3F800000 + i, G5)
d.sync()
assert 2 * G5 < used() <= free
kernel = 3 * G5 / 242.5e9
close(seconds(lambda: touch(parts[3], G5)), kernel)
close(seconds(lambda: touch(parts[0], G5)), kernel + 2 * G5 / 4e9)
assert seconds(lambda: touch(parts[3], G5)) < kernel * 1.01, "used a moment ago: still there"
assert d.memory()[0] < 2 * M
# memory that cannot move comes first
q = d.alloc(12 * G)
assert 0 <= d.memory()[0] < 2 * M
d.cuMemFree_v2(q)
for i, p in enumerate(parts):
    word = 0x3F800000 + 0x800000 * (1, 0, 0, 2)[i] + i  # doubled as often as touched
    assert d.download(p + 3 * G, 4) == struct.pack("<I", word), i
    d.cuMemFree_v2(p)
assert used() == 0
""",
    )
    assert node.counters()[0]["bytes_evicted"] > 0


def test_managed_memory_of_an_idle_neighbour_makes_room(node: SimNode, start: Start, run: Run) -> None:
    # GIVEN an idle process with 10 GiB on the card / WHEN another touches 10 GiB / THEN the idle one has to go
    idle = start(
        node,
        START
        + """
p = d.managed(10 * G)
touch(p, 10 * G); d.cuStreamSynchronize(s)
print("there", flush=True); input()
kernel = 3 * 10 * G / 242.5e9
print(seconds(lambda: touch(p, 10 * G)) - kernel, flush=True)
""",
    )
    assert idle.line() == "there"
    run(node, START + "p = d.managed(10 * G); touch(p, 10 * G); d.cuStreamSynchronize(s)")
    usable = 14913 - 2 * 1009
    evicted = 2 * 10240 - usable + (usable % 2)
    assert node.counters()[0]["bytes_evicted"] >> 20 == evicted
    idle.tell()
    assert float(idle.finish()) == pytest.approx((evicted << 20) / 4e9, rel=0.01)
    assert node.process_counters()[0][idle.pid]["bytes_evicted"] >> 20 == evicted


def test_what_managed_memory_holds_follows_host_and_device(node: SimNode, run: Run) -> None:
    run(
        node,
        START
        + """
size = 3 * G
x, y = d.managed(size), d.managed(size)
memory = resident()
d.fill(x, 0x3F800000, size); d.fill(y, 0x40000000, size)
d.sync()
ctypes.memmove(x + 2 * G + 4, struct.pack("<f", 10.0), 4)
d.add(y, x, y, size // 4, stream=s)
prefetch(y, size, -1)
d.cuStreamSynchronize(s)
assert resident() - memory < 32 * M, "uniform memory is cheap here too"
assert ctypes.string_at(y + 2 * G, 12) == struct.pack("<3f", 3.0, 12.0, 3.0)
assert ctypes.string_at(y + size - 4, 4) == struct.pack("<f", 3.0)
""",
    )
