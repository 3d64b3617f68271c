"""The room that contexts take of a card: when they begin, when they grow, when they end."""

from __future__ import annotations

from collections.abc import Callable

from nvshare.gpu.sim import SimNode
from tests.support.processes import Program

MIB = 1 << 20
CONTEXT = 1009 * MIB
Run = Callable[..., str]
Start = Callable[..., Program]

# A module with variables of so many bytes, in a program that says what the card has free.
MODULE = """
d = Driver()
def image(size):
    return c_char_p((PTX + f".global .align 4 .b8 table[{size}];").encode())
def load(size):
    module = c_void_p()
    return d.code("cuModuleLoadData", byref(module), image(size)), module
def free():
    return d.memory()[0] >> 20
before = free()
"""


def test_a_context_needs_room_and_gives_it_back(node: SimNode, start: Start, run: Run) -> None:
    # GIVEN a card with a little less left than a context takes
    holder = start(
        node,
        f"""
        d = Driver()
        p = d.alloc(d.memory()[0] - {CONTEXT} + (2 << 20))
        print("full", flush=True)
        sys.stdin.readline()
        d.cuMemFree_v2(p)
        print("freed", flush=True)
        sys.stdin.readline()
        """,
    )
    assert holder.line() == "full"
    newcomer = start(
        node,
        """
        d, ctx = Driver(context=False), c_void_p()
        for _ in range(2):
            print(d.code("cuDevicePrimaryCtxRetain", byref(ctx), 0), flush=True)
            sys.stdin.readline()
        d.cuDevicePrimaryCtxRelease_v2(0)
        print("released", flush=True)
        sys.stdin.readline()
        """,
    )
    # WHEN another process wants one THEN it is told that there is no room, until there is
    assert newcomer.line() == "2"
    holder.tell()
    assert holder.line() == "freed"
    newcomer.tell()
    assert newcomer.line() == "0"
    assert node.counters()[0]["memory_used"] == 2 * CONTEXT
    # AND it gives back what it took
    newcomer.tell()
    assert newcomer.line() == "released"
    assert node.counters()[0]["memory_used"] == CONTEXT


def test_modules_take_room_while_they_are_loaded(node: SimNode, run: Run) -> None:
    run(
        node,
        MODULE
        + """
small = load(100_000)
assert small[0] == 0 and before == free(), "what every context has is enough"
code, module = load(200 << 20)
assert code == 0 and before - free() == 200
d.cuModuleUnload(module)
assert before == free()
assert load(20 << 30)[0] == 2 and before == free()
""",
    )


def test_a_lazy_module_takes_its_room_with_the_first_function(node: SimNode, run: Run) -> None:
    run(
        node,
        MODULE
        + """
code, module = load(200 << 20)
assert code == 0 and before == free()
filler = d.alloc(d.memory()[0] - (100 << 20))
find = "cuModuleGetFunction", byref(c_void_p()), module, c_char_p(b"nvs_spin")
assert d.code(*find) == 2
d.cuMemFree_v2(filler)
assert d.code(*find) == 0 and before - free() == 200
""",
        {"CUDA_MODULE_LOADING": "LAZY"},
    )


def test_local_memory_and_the_heap_of_kernels_take_room(node: SimNode, run: Run) -> None:
    run(
        node,
        MODULE
        + """
STACK, HEAP = c_int(0), c_int(2)
def limit(which):
    value = c_size_t()
    d.cuCtxGetLimit(byref(value), which)
    return value.value
d.cuCtxSetLimit(STACK, limit(STACK) + 5120)
assert before - free() == 200, "of each of 40 times 1024 threads"
d.cuCtxSetLimit(HEAP, limit(HEAP) + (100 << 20))
assert before - free() == 300
assert d.code("cuCtxSetLimit", HEAP, 20 << 30) == 2
d.cuCtxSetLimit(STACK, 1024)
assert before - free() == 100 and limit(HEAP) == 108 << 20
""",
    )


def test_what_a_context_grew_by_leaves_and_comes_back_with_it(node: SimNode, run: Run) -> None:
    run(
        node,
        MODULE
        + """
import os
assert load(200 << 20)[0] == 0
d.leave(os.getpid())
d.come_back(os.getpid())
assert before - free() == 200
""",
    )
    assert node.counters()[0]["memory_used"] == 0
    assert node.counters()[0]["bytes_h2d"] == 0, "it is no data"
