"""Steps by the driver API alone, for simulated cards: an add that really happens, and kernels of a given length in the
place of what needs a framework. A kernel that waits for a clock is none on a real card, where the clock goes on while
others compute; measurements there take PyTorch, or ``BURN``, a kernel of a given amount of work."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable

from nvshare.bench.compute import kinds
from nvshare.bench.driver import Context, Driver, Mark
from nvshare.bench.workloads import pattern, ptx
from nvshare.bench.workloads.spec import FLOAT_BYTES, MATRICES_PER_ADD

_ADD_ELEMENTS = 512 << 20  # about 1.5 ms on an H200
_CARD_PART = 16  # an add takes at most this part of the card's memory
_SAMPLE = 4096
_THREADS = 2048  # that one multiprocessor holds, so that one such kernel takes the whole card
_CLEAR = 1_000  # nanoseconds: what cuBLAS clears before each matmul, in a submission of its own
_KERNELS: dict[str, tuple[int, ...]] = {  # nanoseconds of each kernel of a step
    kinds.MATMUL: (_CLEAR, 1_250_000 - _CLEAR),  # a burst is a whole number of them
    kinds.SHORT: (200_000,),
    kinds.LONG: (_CLEAR, 3_200_000),
    kinds.GRAPH: (100_000,) * 20,
    kinds.TRAINING: (150_000,) * 12 + (250_000,) * 14 + (50_000,) * 20,  # forward, backward, optimizer
    kinds.LAUNCH: (100,),
}


STEPS = (kinds.ADD, *_KERNELS)


class _Launches:
    """A step is one or more launches."""

    def __init__(self, context: Context, launches: list[Callable[[], int]], check: Callable[[], bool]) -> None:
        self._context = context
        self._launches = launches
        self.check = check

    def submit(self, count: int) -> None:
        check = self._context.driver.check
        for _ in range(count):
            for launch in self._launches:
                code = launch()
                if code:
                    check("cuLaunchKernel", code)

    def mark(self) -> Mark:
        return self._context.mark()


class _OfAmount(_Launches):
    """One kernel whose length is set: in nanoseconds or rounds of work."""

    def __init__(self, context: Context, code: str, kernel: str, threads: int) -> None:
        launch = context.load(code).launcher(kernel, 1, elements=threads)
        super().__init__(context, [launch], lambda: True)
        (self._argument,) = launch.keep_alive  # type: ignore[attr-defined]

    def set_amount(self, amount: int) -> None:
        self._argument.value = amount


class Kit:
    def __init__(self) -> None:
        self._context: Context | None = None

    def versions(self) -> dict[str, str]:
        return {}

    def prepare(self, steps: str, size: int | None = None) -> _Launches:
        context = self._context = self._context or Context(Driver())
        if steps == kinds.ADD:
            return _add(context, size)
        if steps == kinds.BURN:
            return _OfAmount(context, ptx.BURN_PTX, ptx.BURN, _THREADS * context.multiprocessors())
        if steps == kinds.SPIN:
            return _OfAmount(context, ptx.PTX, ptx.SPIN, 1)
        module = context.load(ptx.PTX)
        if steps == kinds.GRAPH:

            def submit(stream: ctypes.c_void_p) -> None:
                for length in _KERNELS[steps]:
                    launch = module.launcher(ptx.SPIN, length, elements=1, stream=stream)
                    context.driver.check("cuLaunchKernel", launch())

            return _Launches(context, [context.capture(submit)], lambda: True)
        launchers = {length: module.launcher(ptx.SPIN, length, elements=1) for length in set(_KERNELS[steps])}
        return _Launches(context, [launchers[length] for length in _KERNELS[steps]], lambda: True)


def _add(context: Context, size: int | None) -> _Launches:
    _, total = context.memory()
    elements = (size or total // _CARD_PART) // (MATRICES_PER_ADD * FLOAT_BYTES)
    elements = elements if size else min(_ADD_ELEMENTS, elements)
    x, y, z = (context.allocate(elements * FLOAT_BYTES) for _ in range(3))
    context.fill(x, pattern.float_bits(pattern.FILL_X), elements)
    context.fill(y, pattern.float_bits(pattern.FILL_Y), elements)
    context.fill(z, 0, elements)
    launch = context.load(ptx.PTX).launcher(ptx.ADD, z, x, y, elements, elements=elements)
    expected = array("f", [pattern.FILL_X + pattern.FILL_Y]) * _SAMPLE

    def check() -> bool:
        found = array("f", bytes(FLOAT_BYTES * _SAMPLE))
        context.read(z + FLOAT_BYTES * (elements - _SAMPLE), found)
        return found == expected

    return _Launches(context, [launch], check)
