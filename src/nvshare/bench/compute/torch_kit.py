"""Steps in PyTorch, for real cards.

What is multiplied is float32 without TF32: with it and with bfloat16 an H200 lowers its clocks under full load by 5 to
10 %, whatever the operands, and a share of the speed would not be a share of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from nvshare.bench.compute import kinds, torch_models

_ADD_ELEMENTS = 512 << 20  # of three float32 buffers: 6 GiB, about 1.5 ms on an H200
_SHORT_ELEMENTS = 64 << 20  # of three buffers: about 0.2 ms
_MATMUL = 3328  # about 1.4 ms on an H200
_LONG_MATMUL = 4352  # about 3.2 ms
_CARD_PART = 16  # an add takes at most this part of the card's memory
_PIECE = 16 << 20  # elements that are checked at once: a comparison takes memory of its own
_GRAPH_KERNELS = 20
_GRAPH_ELEMENTS = 32 << 20  # about 0.1 ms a kernel
_TINY_ELEMENTS = 4096
_HEAD_START = 200_000_000  # clocks of the card, 0.1 s: more than a host takes to submit a step
_BATCH, _WIDTH, _LAYERS = 512, 4096, 3  # about 3.5 ms a step


class _Mark:
    def __init__(self) -> None:
        self._event = torch.cuda.Event(blocking=True)

    def record(self) -> None:
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()


class _Steps:
    def __init__(self, step: Callable[[], Any], check: Callable[[], bool]) -> None:
        self._step = step
        self.check = check

    def submit(self, count: int) -> None:
        step = self._step
        for _ in range(count):
            step()

    def mark(self) -> _Mark:
        return _Mark()

    def gpu_seconds(self, count: int) -> float:
        """By CUDA events. The card is kept busy until the host has submitted the whole step, so that it waits for
        nothing in between."""
        found: list[float] = []
        for _ in range(count):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(_HEAD_START)
            begin.record()
            self._step()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1000)
        return median(found)


def _add(elements: int) -> _Steps:
    x = torch.full((elements,), 1.0, device="cuda")
    y = torch.full((elements,), 2.0, device="cuda")
    z = torch.zeros_like(x)
    return _Steps(lambda: torch.add(x, y, out=z), lambda: all(bool((part == 3.0).all()) for part in z.split(_PIECE)))


def _large_add() -> _Steps:
    total = torch.cuda.get_device_properties(0).total_memory
    return _add(min(_ADD_ELEMENTS, total // _CARD_PART // 12))


def _matmul(n: int) -> _Steps:
    a = torch.full((n, n), 0.5, device="cuda")
    b = torch.full((n, n), 0.5, device="cuda")
    c = torch.zeros((n, n), device="cuda")
    return _Steps(lambda: torch.mm(a, b, out=c), lambda: bool((c[::97] == n / 4).all()))


def _graph() -> _Steps:
    x = torch.zeros((_GRAPH_ELEMENTS,), device="cuda")
    y = torch.ones((_GRAPH_ELEMENTS,), device="cuda")
    z = torch.zeros((_GRAPH_ELEMENTS,), device="cuda")

    def kernels() -> None:
        torch.add(x, y, out=z)
        for _ in range(_GRAPH_KERNELS - 1):
            z.add_(y)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        kernels()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels()
    return _Steps(graph.replay, lambda: bool((z[:: 1 << 10] == _GRAPH_KERNELS).all()))


def _training() -> _Steps:
    torch.manual_seed(1)
    layers: list[torch.nn.Module] = []
    for _ in range(_LAYERS):
        layers += [torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    data = torch.full((_BATCH, _WIDTH), 0.1, device="cuda")
    last: list[torch.Tensor] = []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return _Steps(step, lambda: bool(torch.isfinite(last[0])))


_PREPARE: dict[str, Callable[[], _Steps]] = {
    kinds.ADD: _large_add,
    kinds.MATMUL: lambda: _matmul(_MATMUL),
    kinds.SHORT: lambda: _add(_SHORT_ELEMENTS),
    kinds.LONG: lambda: _matmul(_LONG_MATMUL),
    kinds.GRAPH: _graph,
    kinds.TRAINING: _training,
    kinds.LAUNCH: lambda: _add(_TINY_ELEMENTS),
}
_ONLY_HERE: dict[str, Callable[[], _Steps]] = {  # nothing on a simulated card is like them
    kinds.RESNET: lambda: _Steps(*torch_models.resnet_50()),
    kinds.TRANSFORMER: lambda: _Steps(*torch_models.transformer()),
}


class Kit:
    def __init__(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "cuda": str(torch.version.cuda)}

    def prepare(self, steps: str, size: int | None = None) -> _Steps:
        prepared = _add(size // 12) if size and steps == kinds.ADD else {**_PREPARE, **_ONLY_HERE}[steps]()
        prepared.submit(3)
        torch.cuda.synchronize()
        return prepared
