"""A PyTorch process that stays up and does what it is told, a line of JSON per command, so that runs can alternate.

Commands on standard input: {"do": "prepare", "workload": W, "gib": G}, {"do": "run", "iterations": N},
{"do": "work", "until": T, "batch": N}, {"do": "check"}, {"do": "alloc", "mib": N}, {"do": "info"}, {"do": "quit"}. Each
answer is one line of JSON. CUDA is not touched before the first command that needs it, so a worker can be started ahead
of time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

MIB = 1 << 20
PIECE = 4 * MIB  # elements


def prepare_add(gib: float) -> tuple[Callable[[], None], Callable[[], bool]]:
    """z = x + y over float32 buffers of together ``gib``; the check sums all of z."""
    count = int(gib * (1 << 30) / 4 / 3)
    x = torch.full((count,), 1.0, device="cuda")
    y = torch.full((count,), 2.0, device="cuda")
    x[::1000] = 5.0
    z = torch.empty_like(x)
    marked = (count + 999) // 1000
    expected = 3.0 * (count - marked) + 7.0 * marked

    def step() -> None:
        torch.add(x, y, out=z)

    def check() -> bool:
        # In pieces: a sum in float64 first makes a copy of that width.
        return sum(float(piece.sum(dtype=torch.float64)) for piece in z.split(PIECE)) == expected

    return step, check


def prepare_matmul(gib: float) -> tuple[Callable[[], None], Callable[[], bool]]:
    """c = a @ b with cuBLAS in bfloat16; the check compares sampled elements with float64 dot products."""
    n = 8192
    torch.manual_seed(7)
    a = torch.randn((n, n), device="cuda", dtype=torch.bfloat16)
    b = torch.randn((n, n), device="cuda", dtype=torch.bfloat16)
    c = torch.empty((n, n), device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        torch.mm(a, b, out=c)

    def check() -> bool:
        for i, j in ((0, 0), (17, 4000), (n - 1, n - 1)):
            exact = float((a[i].double() * b[:, j].double()).sum())
            if abs(float(c[i, j]) - exact) > 0.02 * max(1.0, abs(exact)) + 1.0:
                return False
        return True

    return step, check


def prepare_tiny(gib: float) -> tuple[Callable[[], None], Callable[[], bool]]:
    """Launch-bound: additions on a few thousand elements."""
    x = torch.ones((4096,), device="cuda")
    z = torch.empty_like(x)

    def step() -> None:
        torch.add(x, x, out=z)

    return step, lambda: bool((z == 2.0).all())


PREPARE = {"add": prepare_add, "matmul": prepare_matmul, "tiny": prepare_tiny}


def run(step: Callable[[], None], check: Callable[[], bool], iterations: int) -> dict[str, Any]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(iterations):
        step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "its": iterations / seconds, "right": check()}


def work(step: Callable[[], None], check: Callable[[], bool], until: float, batch: int) -> dict[str, Any]:
    """Steps until a moment of the monotonic clock, which all processes share; ``done``: those finished by then.

    Two batches are in flight, so that the card never waits for the host.
    """
    ends = (torch.cuda.Event(), torch.cuda.Event())
    submitted = done = 0
    while True:
        for _ in range(batch):
            step()
        ends[submitted % 2].record()
        submitted += 1
        if submitted == 1:
            continue
        ends[submitted % 2].synchronize()
        if time.monotonic() > until:
            break
        done += batch
    torch.cuda.synchronize()
    return {"done": done, "right": check()}


def allocate(mib: int) -> dict[str, Any]:
    """Allocate 64 MiB at a time until ``mib`` or the out-of-memory error, then free and try once more."""
    held = []
    error = ""
    try:
        while len(held) * 64 < mib:
            held.append(torch.empty((64 * MIB,), dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as out_of_memory:
        error = type(out_of_memory).__name__
    reached = len(held) * 64
    free, total = torch.cuda.mem_get_info()
    held.clear()
    torch.cuda.empty_cache()
    torch.empty((256 * MIB,), dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    return {
        "reached_mib": reached,
        "error": error,
        "free_mib": free // MIB,
        "total_mib": total // MIB,
        "recovered": True,
    }


def main() -> None:
    step: Callable[[], None] = lambda: None  # noqa: E731
    check: Callable[[], bool] = lambda: False  # noqa: E731
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any]
        match command["do"]:
            case "prepare":
                step, check = PREPARE[command["workload"]](command.get("gib", 1.0))
                answer = run(step, check, 3)
            case "run":
                answer = run(step, check, command["iterations"])
            case "work":
                answer = work(step, check, command["until"], command["batch"])
            case "check":
                answer = {"right": check()}
            case "alloc":
                answer = allocate(command["mib"])
            case "info":
                answer = {"pid": os.getpid(), "allocated": torch.cuda.memory_reserved(), "torch": torch.__version__}
            case _:
                return
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
