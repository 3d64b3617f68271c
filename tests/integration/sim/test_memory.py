"""Memory of the simulated card: contents, capacity, the rules of the virtual-memory API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvshare.gpu.sim import SimNode

MIB = 1 << 20
Run = Callable[..., str]
Start = Callable[..., Any]


def test_contents_survive_copies_in_every_direction(node: SimNode, run: Run) -> None:
    # GIVEN bytes on the card / WHEN they go device to device and by a 2D copy / THEN they come back unchanged
    run(
        node,
        """
        d = Driver()
        data = bytes(i * 7 % 251 for i in range(100_003))
        a, b = d.alloc(len(data)), d.alloc(4 << 20)
        d.upload(a, data)
        d.cuMemcpyDtoD_v2(b + 5, a, len(data))
        assert d.download(b + 5, len(data)) == data
        class Copy2D(ctypes.Structure):
            _fields_ = [(k, c_size_t) for k in "sx sy st sh sd sa sp dx dy dt dh dd da dp w h".split()]
        pitch, p = c_size_t(), c_uint64()
        d.cuMemAllocPitch_v2(byref(p), byref(pitch), 100, 10, c_uint(4))
        source = ctypes.create_string_buffer(data[:1000], 1000)
        rows = Copy2D(st=1, sh=ctypes.addressof(source), sp=100, dt=2, dd=p.value, dp=pitch.value, w=100, h=10)
        d.cuMemcpy2D_v2(byref(rows))
        assert d.download(p.value + 3 * pitch.value, 100) == data[300:400]
        pinned = c_void_p()
        d.cuMemHostAlloc(byref(pinned), len(data), c_uint(0))
        s = d.stream()
        d.cuMemcpyDtoHAsync_v2(pinned, a, len(data), s)
        d.cuStreamSynchronize(s)
        assert ctypes.string_at(pinned, len(data)) == data
        """,
    )


def test_any_mix_of_memsets_and_copies_equals_plain_memory(node: SimNode, run: Run) -> None:
    # GIVEN a buffer and a model of it / WHEN both are changed at random places / THEN they are equal
    run(
        node,
        """
        import random
        r = random.Random(7)
        d = Driver()
        size = 300_000
        p, q = d.alloc(size), d.alloc(size)
        model = [bytearray(size), bytearray(size)]
        for pointer in (p, q):
            d.cuMemsetD8_v2(pointer, c_uint(0), size)
        for step in range(400):
            which = r.randrange(2)
            base, own, other, theirs = (p, model[0], q, model[1]) if which else (q, model[1], p, model[0])
            length = r.choice([1, 3, 16, 500, 5000, 70_000])
            at = r.randrange(size - length)
            kind = r.randrange(4)
            if kind == 0:
                value = r.randrange(256)
                d.cuMemsetD8_v2(base + at, c_uint(value), length)
                own[at:at + length] = bytes([value]) * length
            elif kind == 1:
                at, words, value = at // 4 * 4, length // 4, r.randrange(1 << 32)
                d.cuMemsetD32_v2(base + at, c_uint(value), words)
                own[at:at + 4 * words] = struct.pack("<I", value) * words
            elif kind == 2:
                data = r.randbytes(length)
                d.upload(base + at, data)
                own[at:at + length] = data
            else:
                source = r.randrange(size - length)
                d.cuMemcpyDtoD_v2(base + at, other + source, length)
                own[at:at + length] = theirs[source:source + length]
        assert d.download(p, size) == bytes(model[0]) and d.download(q, size) == bytes(model[1])
        """,
    )


def test_add_is_exact_on_mixed_data_and_cheap_on_uniform_data(node: SimNode, run: Run) -> None:
    # GIVEN gigabytes of one value with a few others in between / WHEN added / THEN each sum is the float32 sum
    run(
        node,
        """
        d = Driver()
        n = 3 << 28
        x, y, z = d.alloc(4 * n), d.alloc(4 * n), d.alloc(4 * n)
        d.cuMemsetD32_v2(x, c_uint(struct.unpack("<I", struct.pack("<f", 1.5))[0]), n)
        d.cuMemsetD32_v2(y, c_uint(struct.unpack("<I", struct.pack("<f", 0.1))[0]), n)
        odd = [float(i) / 3 for i in range(2000)]
        d.upload(x + 4 * 123_457, struct.pack("<2000f", *odd))
        d.upload(y + 4 * 124_000, struct.pack("<2000f", *odd))
        d.add(z, x, y, n)
        xs, ys, zs = (struct.unpack("<6000f", d.download(p + 4 * 122_000, 24_000)) for p in (x, y, z))
        expect = struct.unpack("<6000f", struct.pack("<6000f", *(a + b for a, b in zip(xs, ys))))
        assert zs == expect
        assert d.download(z + 4 * n - 4, 4) == struct.pack("<f", 1.5 + struct.unpack("<f", struct.pack("<f", 0.1))[0])
        d.launch("nvs_scale_f32", z, x, 2.0, n)
        assert d.download(z, 4) == struct.pack("<f", 3.0)
        """,
    )


def test_the_card_is_full_for_all_processes_together(node: SimNode, start: Start, run: Run) -> None:
    # GIVEN a process that holds 9 GiB / WHEN another allocates 5 GiB / THEN it is out of memory until the first frees
    first = start(node, "d = Driver(); p = d.alloc(9 << 30); print('have', flush=True); input(); d.cuMemFree_v2(p); "
                  "print('freed', flush=True); input()")  # fmt: skip
    assert first.line() == "have"
    second = start(
        node,
        """
        d = Driver()
        free, total = d.memory()
        assert (free, total) == ((14913 - 2 * 1009 - 9 * 1024) << 20, 14913 << 20)
        assert d.code("cuMemAlloc_v2", byref(c_uint64()), 5 << 30) == 2
        print("full", flush=True); input()
        d.alloc(5 << 30)
        """,
    )
    assert second.line() == "full"
    first.tell()
    assert first.line() == "freed"
    second.tell()
    second.finish()


def test_small_allocations_share_two_mebibytes(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        before = d.memory()[0]
        pointers = [d.alloc(1000) for _ in range(100)]
        assert before - d.memory()[0] == 2 << 20
        base, size = c_uint64(), c_size_t()
        d.cuMemGetAddressRange_v2(byref(base), byref(size), pointers[7] + 10)
        assert (base.value, size.value) == (pointers[7], 1000)
        for p in pointers:
            d.cuMemFree_v2(p)
        assert d.memory()[0] == before
        assert d.code("cuMemFree_v2", pointers[0]) == 1
        p = d.alloc((2 << 20) + 1)
        assert before - d.memory()[0] == 4 << 20
        """,
    )


def test_virtual_memory_api_keeps_its_rules(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        M = 2 << 20
        free = d.memory()[0]
        va, h = c_uint64(), c_uint64()
        d.cuMemAddressReserve(byref(va), 8 * M, 0, 0, 0)
        va = va.value
        assert d.code("cuMemCreate", byref(h), M + 1, byref(on_device()), 0) == 1
        d.cuMemCreate(byref(h), 4 * M, byref(on_device()), 0)
        assert free - d.memory()[0] == 4 * M
        assert d.code("cuMemMap", va, 2 * M, M, h, 0) == 1, "offset must be 0"
        d.cuMemMap(va, 4 * M, 0, h, 0)
        assert d.code("cuMemMap", va + M, M, 0, h, 0) == 1, "already mapped"
        assert d.code("cuMemUnmap", va, M) == 1, "cannot split a mapping"
        assert d.code("cuMemAddressFree", va, 8 * M) == 1, "still mapped"
        d.cuMemSetAccess(va, 4 * M, byref(access()), 1)
        d.upload(va + M - 2, b"over")
        assert d.download(va + M - 2, 4) == b"over"
        d.cuMemRelease(h)
        assert free - d.memory()[0] == 4 * M, "mapped memory lives on"
        assert d.code("cuMemRelease", h) == 1
        d.cuMemUnmap(va, 4 * M)
        assert d.memory()[0] == free
        d.cuMemAddressFree(va, 8 * M)
        """,
    )


def test_contents_stay_with_the_memory_when_it_is_mapped_elsewhere(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        M = 2 << 20
        va, h = c_uint64(), c_uint64()
        d.cuMemAddressReserve(byref(va), 4 * M, 0, 0, 0)
        va = va.value
        d.cuMemCreate(byref(h), M, byref(on_device()), 0)
        d.cuMemMap(va, M, 0, h, 0)
        d.cuMemSetAccess(va, M, byref(access()), 1)
        d.upload(va, b"here")
        d.cuMemUnmap(va, M)
        d.cuMemMap(va + M, M, 0, h, 0)
        d.cuMemSetAccess(va + M, M, byref(access()), 1)
        assert d.download(va + M, 4) == b"here"
        """,
    )


def test_one_handle_at_two_addresses_is_the_same_memory(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        M = 2 << 20
        free = d.memory()[0]
        prop = on_device()
        prop.handle_types = 1
        va, h = d.reserve(2 * M), c_uint64()
        d.cuMemCreate(byref(h), M, byref(prop), 0)
        d.cuMemMap(va, M, 0, h, 0)
        d.cuMemMap(va + M, M, 0, h, 0)
        d.cuMemSetAccess(va, 2 * M, byref(access()), 1)
        d.upload(va, b"once")
        assert d.download(va + M, 4) == b"once"
        assert free - d.memory()[0] == M
        d.cuMemUnmap(va, M)
        d.cuMemMap(va, M, 0, h, 0)
        flags, where = ctypes.c_ulonglong(9), access().location
        d.cuMemGetAccess(byref(flags), byref(where), va)
        assert flags.value == 0, "access is set anew after each map"
        said = type(prop)()
        d.cuMemGetAllocationPropertiesFromHandle(byref(said), h)
        assert bytes(said) == bytes(prop)
        """,
    )


def test_memory_without_access_is_a_sticky_illegal_address(node: SimNode, run: Run) -> None:
    # GIVEN memory that was mapped again without setting access / WHEN a kernel uses it / THEN the context is lost
    run(
        node,
        """
        d = Driver()
        M = 2 << 20
        va, h = c_uint64(), c_uint64()
        d.cuMemAddressReserve(byref(va), M, 0, 0, 0)
        d.cuMemCreate(byref(h), M, byref(on_device()), 0)
        d.cuMemMap(va, M, 0, h, 0)
        other = d.alloc(M)
        d.add(other, va.value, other, 10)
        assert d.code("cuCtxSynchronize") == 700
        assert d.code("cuMemAlloc_v2", byref(c_uint64()), M) == 700
        """,
    )


def test_unmapping_under_queued_work_is_an_illegal_address(node: SimNode, run: Run) -> None:
    # GIVEN a kernel queued behind a long one / WHEN its memory is unmapped before it runs / THEN it faults
    run(
        node,
        """
        d = Driver()
        M = 2 << 20
        va, h = c_uint64(), c_uint64()
        d.cuMemAddressReserve(byref(va), M, 0, 0, 0)
        d.cuMemCreate(byref(h), M, byref(on_device()), 0)
        d.cuMemMap(va, M, 0, h, 0)
        d.cuMemSetAccess(va, M, byref(access()), 1)
        d.spin(3.0)
        d.add(va.value, va.value, va.value, 10)
        d.cuMemUnmap(va, M)
        assert d.code("cuCtxSynchronize") == 700
        """,
    )


def test_pinned_managed_and_pool_memory(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        M = 2 << 20
        free = d.memory()[0]
        managed = c_uint64()
        d.cuMemAllocManaged(byref(managed), 2 * M, c_uint(1))
        assert d.memory()[0] == free, "managed memory starts on the host"
        ctypes.memset(managed.value, 0, 2 * M)
        ctypes.memmove(managed.value, struct.pack("<f", 4.0), 4)
        d.add(managed.value, managed.value, managed.value, 2 * M // 4)
        d.sync()
        assert ctypes.string_at(managed.value, 4) == struct.pack("<f", 8.0)
        assert free - d.memory()[0] == 2 * M, "and comes to the card when used"
        d.cuMemFree_v2(managed)
        buffer = ctypes.create_string_buffer(100)
        d.cuMemHostRegister_v2(buffer, 100, c_uint(0))
        assert d.code("cuMemHostRegister_v2", buffer, 100, c_uint(0)) == 712
        d.cuMemHostUnregister(buffer)
        assert d.code("cuMemHostUnregister", buffer) == 713
        p, s = c_uint64(), d.stream()
        d.cuMemAllocAsync(byref(p), 3 * M, s)
        d.cuMemsetD8Async(p, c_uint(9), 3 * M, s)
        kind = c_uint()
        d.cuPointerGetAttribute(byref(kind), c_int(2), p)
        assert kind.value == 2
        d.cuMemFreeAsync(p, s)
        d.cuStreamSynchronize(s)
        assert d.memory()[0] == free
        """,
    )
