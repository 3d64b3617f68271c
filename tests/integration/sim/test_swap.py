"""Memory that leaves the simulated card and comes back: host buffers that hold uniform data for nothing, truly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvshare.gpu.sim import SimNode

pytestmark = pytest.mark.simulated

Run = Callable[..., str]
Start = Callable[..., Any]

# Makes system calls fail, as on a machine where they do not exist: ioctl requests on /proc/self/maps and pagemap that
# newer kernels have, memfd_create. Calls not named go through.
WITHOUT = """
def without(*what):
    import os
    ioctl, memfd = {"x86_64": (16, 319), "aarch64": (29, 279)}[os.uname().machine]
    calls = {"maps": (ioctl, 0xC0686611), "pagemap": (ioctl, 0xC0606610), "memfd": (memfd, None)}
    program = b"".join(
        struct.pack("<HBBI", 0x20, 0, 0, 0) + struct.pack("<HBBI", 0x15, 0, 3 if request else 1, number)
        + (struct.pack("<HBBI", 0x20, 0, 0, 24) + struct.pack("<HBBI", 0x15, 0, 1, request) if request else b"")
        + struct.pack("<HBBI", 0x06, 0, 0, 0x00050000 | 25)
        for number, request in (calls[name] for name in what)
    ) + struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, filters, 0, 0) == 0, "seccomp"
"""

# `register(size)`: page-locked memory of the program's own.
REGISTER = """
def register(d, size):
    p = map_memory(size)
    d.cuMemHostRegister_v2(p, size, c_uint(0))
    return p
M = 1 << 20
"""


def test_uniform_data_goes_out_and_in_without_time_or_memory_of_the_host(node: SimNode, run: Run) -> None:
    # GIVEN 8 GiB of one value, and undefined memory / WHEN it goes out and in / THEN bytes are not really moved
    run(
        node,
        REGISTER
        + """
chunk, count = 128 * M, 64
d = Driver()
s = d.stream()
hosts = [register(d, chunk) if i % 2 else d.host_alloc(chunk) for i in range(count)]
p = d.alloc(chunk * count)
d.fill(p, 0x40490FDB, chunk * (count - 4))
d.sync()
cpu, memory = time.process_time(), resident()
for i, host in enumerate(hosts):
    d.cuMemcpyDtoHAsync_v2(host, p + i * chunk, chunk, s)
d.cuStreamSynchronize(s)
d.fill(p, 0, chunk * count)
d.sync()
for i, host in enumerate(hosts):
    d.cuMemcpyHtoDAsync_v2(p + i * chunk, host, chunk, s)
d.cuStreamSynchronize(s)
assert time.process_time() - cpu < 0.5, time.process_time() - cpu
assert resident() - memory < 32 * M
word = struct.pack("<I", 0x40490FDB)
for i in (0, 31, 59):
    assert ctypes.string_at(hosts[i] + 77 * M, 8) == d.download(p + i * chunk + 99 * M, 8) == word * 2
assert d.download(p + 63 * chunk, 4) == ctypes.string_at(hosts[63], 4) == struct.pack("<I", 0xA5C3A5C3)
""",
    )


def test_swapping_for_ever_needs_no_more_mappings_than_swapping_once(
    make_node: Callable[..., SimNode], run: Run
) -> None:
    # GIVEN more copies than the kernel allows a process mappings / THEN the buffers stay free of charge
    run(
        make_node(speed=1000.0),
        REGISTER
        + """
d = Driver()
size, count = 512 * M, 220
host, p = register(d, size), d.alloc(size)
memory = resident()
for i in range(count):
    d.fill(p, 1 + i % 7, size)
    d.cuMemcpyDtoH_v2(c_void_p(host), p, size)
assert resident() - memory < 32 * M
with open("/proc/self/maps") as maps:
    assert len(maps.readlines()) < 1000
assert ctypes.string_at(host + 300 * M, 4) == struct.pack("<I", 1 + (count - 1) % 7)
""",
    )


def test_most_mappings_are_left_to_the_program(make_node: Callable[..., SimNode], run: Run) -> None:
    # GIVEN data in more stripes than a process may have mappings / WHEN it goes out and in / THEN the program has room
    run(
        make_node(speed=1000.0),
        """
M, stripe = 1 << 20, 64 << 10
d = Driver()
size = 3000 * M
host, p = d.host_alloc(size), d.alloc(size)
for word in (1, 2):
    d.fill(p, word, size)
    d.cuMemcpyDtoH_v2(c_void_p(host), p, 4 * M)
d.cuMemsetD2D32_v2(p, 2 * stripe, c_uint(1), stripe // 4, size // (2 * stripe))
d.cuMemcpyDtoH_v2(c_void_p(host), p, size)
d.cuMemsetD8_v2(p, c_uint(9), size)
d.cuMemcpyHtoD_v2(p, c_void_p(host), size)
with open("/proc/self/maps") as maps, open("/proc/sys/vm/max_map_count") as limit:
    assert len(maps.readlines()) < 0.7 * int(limit.read())
for at in range(0, size, 7 * M + 4 * 9973):
    word = struct.pack("<I", 1 if at % (2 * stripe) < stripe else 2)
    assert ctypes.string_at(host + at, 4) == d.download(p + at, 4) == word
""",
    )


@pytest.mark.parametrize("missing", [(), ("maps",), ("maps", "pagemap"), ("memfd",)])
def test_any_mix_of_copies_and_host_writes_equals_plain_memory(
    node: SimNode, run: Run, missing: tuple[str, ...]
) -> None:
    # GIVEN host buffers, device memory, and models of both / WHEN changed in turns / THEN they are equal on any kernel
    run(
        node,
        REGISTER
        + WITHOUT
        + f"""
without(*{missing!r})
"""
        + """
import random
r = random.Random(3)
d = Driver()
size = 33 * M + 12_345
p = d.alloc(size)
base = map_memory(size + 2 * M) + M
d.cuMemHostRegister_v2(base, size, c_uint(0))
own = d.host_alloc(size)
d.cuMemsetD8_v2(p, c_uint(0), size)
model = {name: bytearray(size) for name in (p, base, own)}
words = [0, 0x3F800000, 0xA5C3A5C3, 0x01020304]
for step in range(150):
    host = r.choice([base, own])
    length = r.choice([5, 5000, 70_000, 3 * M, 20 * M])
    length = r.randrange(length // 2, length)
    at, kind = r.randrange(size - length), r.randrange(5)
    if kind == 0:
        at, length, word = at // 4 * 4, length // 4 * 4, r.choice(words)
        d.fill(p + at, word, length)
        model[p][at:at + length] = struct.pack("<I", word) * (length // 4)
    elif kind == 1:
        length = min(length, 9000)
        data = r.randbytes(length)
        d.upload(p + at, data)
        model[p][at:at + length] = data
    elif kind == 2:
        length = min(length, 9000)
        data = r.randbytes(length)
        ctypes.memmove(host + at, data, length)
        model[host][at:at + length] = data
    elif kind == 3:
        to = r.randrange(size - length)
        d.cuMemcpyDtoH_v2(c_void_p(host + to), p + at, length)
        model[host][to:to + length] = model[p][at:at + length]
    else:
        to = r.randrange(size - length)
        d.cuMemcpyHtoD_v2(p + to, c_void_p(host + at), length)
        model[p][to:to + length] = model[host][at:at + length]
assert d.download(p, size) == bytes(model[p])
for host in (base, own):
    assert ctypes.string_at(host, size) == bytes(model[host])
""",
    )


def test_random_blocks_in_uniform_data_are_all_that_is_copied(node: SimNode, run: Run) -> None:
    run(
        node,
        REGISTER
        + """
import random
d = Driver()
size = 512 * M
host, p = register(d, size), d.alloc(size)
d.fill(p, 7, size)
blocks = {at * 31 * M + 1001: random.Random(at).randbytes(300_000) for at in range(16)}
for at, data in blocks.items():
    d.upload(p + at, data)
memory = resident()
d.cuMemcpyDtoH_v2(c_void_p(host), p, size)
d.cuMemsetD8_v2(p, c_uint(1), size)
d.cuMemcpyHtoD_v2(p, c_void_p(host), size)
d.sync()
assert resident() - memory < 32 * M
for at, data in blocks.items():
    around = struct.pack("<I", 7) * 2
    assert ctypes.string_at(host + at, len(data)) == d.download(p + at, len(data)) == data
    assert d.download(p + at // 4 * 4 - 8, 8) == around == ctypes.string_at(host + (at + len(data) + 4) // 4 * 4, 8)
""",
    )


def test_memory_that_the_program_maps_anew_is_read_as_it_is(node: SimNode, run: Run) -> None:
    # GIVEN a registered buffer that holds a pattern / WHEN parts are mapped anew, to nothing or to a file
    # THEN copies in see the new bytes, and copies out reach the file
    run(
        node,
        REGISTER
        + """
import tempfile
d = Driver()
size = 64 * M
host, p, q = register(d, size), d.alloc(size), d.alloc(size)
d.fill(p, 0x11223344, size)
d.cuMemcpyDtoH_v2(c_void_p(host), p, size)
unmap_memory(host + 8 * M, 8 * M)
map_memory(8 * M, at=host + 8 * M)
file = tempfile.TemporaryFile()
file.write(b"file" * (2 * M)); file.flush()
map_memory(8 * M, at=host + 32 * M, fd=file.fileno())
d.cuMemcpyHtoD_v2(q, c_void_p(host), size)
word = struct.pack("<I", 0x11223344)
assert d.download(q, size) == word * (2 * M) + bytes(8 * M) + word * (4 * M) + b"file" * (2 * M) + word * (6 * M)
d.cuMemcpyDtoH_v2(c_void_p(host), p, size)
d.sync()
assert ctypes.string_at(host, size) == word * (16 * M)
file.seek(0)
assert file.read() == word * (2 * M), "the copy went to the file"
""",
    )


def test_buffers_stay_true_when_the_program_closes_descriptors_forks_and_unregisters(node: SimNode, run: Run) -> None:
    run(
        node,
        REGISTER
        + """
import os
d = Driver()
size = 64 * M
host, p = register(d, size), d.alloc(size)
word = struct.pack("<I", 0xCAFED00D)
d.fill(p, 0xCAFED00D, size)
d.cuMemcpyDtoH_v2(c_void_p(host), p, size)
# a program that closes everything, and opens files of its own under the same numbers
os.closerange(3, 200)
others = [os.memfd_create("other") for _ in range(100)]
for other in others:
    os.truncate(other, 4 * M)
d.cuMemcpyHtoD_v2(p, c_void_p(host), size)
d.cuMemcpyDtoH_v2(c_void_p(host), p, size)
assert ctypes.string_at(host, size) == d.download(p, size) == word * (16 * M)
# a child sees what the parent had, and each writes only its own
pid = os.fork()
if pid == 0:
    good = ctypes.string_at(host + 5 * M, 8) == word * 2
    ctypes.memmove(host + 5 * M, b"child", 5)
    os._exit(0 if good and ctypes.string_at(host + 5 * M, 5) == b"child" else 1)
assert os.waitpid(pid, 0)[1] == 0
ctypes.memmove(host + 6 * M + 1, b"parent", 6)
d.cuMemcpyHtoD_v2(p, c_void_p(host), size)
assert d.download(p + 5 * M, 8) == word * 2
assert d.download(p + 6 * M, 8) == word[:1] + b"parent" + word[3:]
# the memory is the program's own
d.cuMemHostUnregister(c_void_p(host))
assert ctypes.string_at(host + 63 * M, 8) == word * 2
ctypes.memmove(host + 63 * M, b"mine", 4)
assert ctypes.string_at(host + 63 * M, 8) == b"mine" + word
unmap_memory(host, size)
""",
    )


def test_addresses_keep_their_data_while_the_physical_memory_comes_and_goes(node: SimNode, run: Run) -> None:
    # GIVEN chunks of random and uniform data / WHEN swapped out, released and brought back / THEN nothing is lost
    run(
        node,
        REGISTER
        + """
import random
d = Driver()
s, chunk, count = d.stream(), 128 * M, 8
free = d.memory()[0]
va = d.reserve(chunk * count)
hosts = [register(d, chunk) for _ in range(count)]
data = random.Random(1).randbytes(M + 17)
for i in range(count):
    d.map(va + i * chunk, chunk)
    d.fill(va + i * chunk, i, chunk)
    d.upload(va + i * chunk + 99, data)
for turn in range(5):
    for i in range(count):
        d.cuMemcpyDtoHAsync_v2(hosts[i], va + i * chunk, chunk, s)
    d.cuStreamSynchronize(s)
    d.cuMemUnmap(va, chunk * count)
    assert d.memory()[0] == free
    for i in range(count):
        d.map(va + i * chunk, chunk)
        d.cuMemcpyHtoDAsync_v2(va + i * chunk, hosts[i], chunk, s)
    d.cuStreamSynchronize(s)
for i in range(count):
    assert d.download(va + i * chunk + 99, len(data)) == data
    assert d.download(va + i * chunk + 90 * M, 8) == struct.pack("<2I", i, i)
""",
    )


def test_chunks_queued_back_to_back_take_what_the_link_says(node: SimNode, run: Run) -> None:
    # GIVEN 64 copies of 128 MiB, queued behind a kernel, so that it does not matter when each was submitted
    # THEN the card's clock agrees with the profile, and they do not take less by ours
    out = run(
        node,
        REGISTER
        + """
d = Driver()
s, chunk, count = d.stream(), 128 * M, 64
hosts = [register(d, chunk) for _ in range(count)]
p = d.alloc(chunk * count)
d.fill(p, 5, chunk * count)
for copy, rate in ((lambda i: d.cuMemcpyDtoHAsync_v2(hosts[i], p + i * chunk, chunk, s), 13.0e9),
                   (lambda i: d.cuMemcpyHtoDAsync_v2(p + i * chunk, hosts[i], chunk, s), 12.3e9)):
    d.sync()
    d.spin(3.0, s)
    began, first = time.monotonic(), d.record(s)
    for i in range(count):
        copy(i)
    took = d.elapsed(first, d.record(s))
    print(took / (chunk * count / rate), (time.monotonic() - began) * 10 / (chunk * count / rate))
""",
    )
    for line in out.splitlines():
        simulated, wall = map(float, line.split())
        assert simulated == pytest.approx(1, rel=0.005)
        assert wall >= 0.9


def test_one_leaves_one_arrives_and_a_third_computes_at_full_speed(
    make_node: Callable[..., SimNode], start: Start
) -> None:
    # At the speed of life, so that all three work at the same time for long, whenever each of them begins.
    node = make_node(speed=1.0)
    mover = (
        REGISTER
        + """
d = Driver()
s, chunk, count = d.stream(), 128 * M, 24
hosts = [register(d, chunk) for _ in range(8)]
p = d.alloc(chunk)
d.sync(); print("ready", flush=True); input()
marks = [d.record(s)]
for i in range(3 * count):
    %s
    if i %% count == count - 1:
        marks.append(d.record(s))
print(d.elapsed(marks[1], marks[2]) / (count * chunk / 10.8e9))
"""
    )
    leaving = start(node, mover % "d.cuMemcpyDtoHAsync_v2(hosts[i % 8], p, chunk, s)")
    arriving = start(node, mover % "d.cuMemcpyHtoDAsync_v2(p, hosts[i % 8], chunk, s)")
    computing = start(
        node,
        """
d = Driver()
d.spin(0.0); d.sync(); print("ready", flush=True); input()
marks = [d.record()]
for _ in range(2):
    for _ in range(100):
        d.spin(0.003)
    marks.append(d.record())
print(d.elapsed(marks[0], marks[2]) / 0.6)
""",
    )
    programs = [leaving, arriving, computing]
    for program in programs:
        assert program.line() == "ready"
    for program in programs:
        program.tell()
    assert [float(program.finish()) for program in programs] == pytest.approx([1, 1, 1], rel=0.02)


def test_pinning_and_mapping_take_no_less_than_with_a_real_driver(make_node: Callable[..., SimNode], run: Run) -> None:
    # A busy machine makes calls longer. A short call that was late makes the next one shorter, so many count together.
    node = make_node(speed=2.0)
    out = run(
        node,
        REGISTER
        + """
d = Driver()
def seconds(call):
    began = time.monotonic(); call(); return (time.monotonic() - began) * 2
memory = resident()
host = map_memory(4096 * M)
print(seconds(lambda: d.cuMemHostRegister_v2(host, 4096 * M, c_uint(0))) / (4 * 0.06))
print(seconds(lambda: d.host_alloc(512 * M)) / (0.5 * 0.55))
assert resident() - memory < 8 * M, "neither touches the memory"
va = d.reserve(8192 * M)
def map_all():
    for i in range(256):
        d.map(va + i * 32 * M, 32 * M)
calls = sum(seconds(map_all) + seconds(lambda: d.cuMemUnmap(va, 8192 * M)) for _ in range(5))
print(calls / (5 * 256 * (17 + 5 + 17 + 17 + 22) * 1e-6))
""",
    )
    ratios = [float(ratio) for ratio in out.split()]
    assert all(ratio > 0.95 for ratio in ratios), ratios


def test_bytes_are_attributed_to_processes_that_are_gone_too(node: SimNode, start: Start) -> None:
    source = (
        REGISTER
        + """
d = Driver()
host, p = register(d, 64 * M), d.alloc(64 * M)
d.cuMemcpyDtoH_v2(c_void_p(host), p, int(sys.stdin.readline()) * M)
d.cuMemcpyHtoD_v2(p, c_void_p(host), 5 * M)
print("done", flush=True); input()
d.cuMemHostUnregister(c_void_p(host))
print("free", flush=True); input()
"""
    )
    programs = [start(node, source) for _ in range(2)]
    for program, size in zip(programs, (10, 20), strict=True):
        program.tell(str(size))
        assert program.line() == "done"
    pids = [program.pid for program in programs]
    counters = node.process_counters()[0]
    assert [counters[pid]["bytes_d2h"] >> 20 for pid in pids] == [10, 20]
    assert [counters[pid]["bytes_h2d"] >> 20 for pid in pids] == [5, 5]
    assert [counters[pid]["pinned_bytes"] >> 20 for pid in pids] == [64, 64]
    programs[0].tell()
    assert programs[0].line() == "free"
    programs[1].kill()
    counters = node.process_counters()[0]
    assert [counters[pid]["pinned_bytes"] for pid in pids] == [0, 0]
    assert [counters[pid]["bytes_d2h"] >> 20 for pid in pids] == [10, 20]
    assert node.counters()[0]["bytes_d2h"] >> 20 == 30


def test_processes_killed_while_they_move_memory_leave_nothing(node: SimNode, start: Start) -> None:
    mover = (
        REGISTER
        + """
d = Driver()
s, chunk = d.stream(), 64 * M
va = d.reserve(16 * chunk)
managed = d.managed(512 * M)
print("busy", flush=True)
while True:
    hosts = [register(d, chunk) for _ in range(16)]
    for i in range(16):
        d.map(va + i * chunk, chunk)
        d.cuMemcpyHtoDAsync_v2(va + i * chunk, hosts[i], chunk, s)
        d.cuMemcpyDtoHAsync_v2(hosts[i], va + i * chunk, chunk, s)
        d.cuMemPrefetchAsync(managed + i * 32 * M, 32 * M, c_int(-(i % 2)), s)
    d.cuStreamSynchronize(s)
    d.cuMemUnmap(va, 16 * chunk)
    for host in hosts:
        d.cuMemHostUnregister(host)
        unmap_memory(host, chunk)
"""
    )
    survivor = start(
        node, "d = Driver(); print('up', flush=True); input(); d.spin(0.1); d.sync(); print(d.memory()[0])"
    )
    survivor.line()
    for _ in range(3):
        victims = [start(node, mover) for _ in range(2)]
        for victim in victims:
            assert victim.line() == "busy"
        for victim in victims:
            victim.kill()
    survivor.tell()
    assert int(survivor.finish()) == (14913 - 1009) << 20
    assert all(counts["pinned_bytes"] == 0 for counts in node.process_counters()[0].values())
