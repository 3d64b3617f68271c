"""What the examples beside this file do on a GPU: add two matrices and look at the sums. Needs no framework."""

from __future__ import annotations

import os

from nvshare.bench.driver import Context, Driver
from nvshare.bench.workloads.program import Options, Program
from nvshare.bench.workloads.spec import Workload
from nvshare.launch import check


def add(n: int, iterations: int = 50) -> dict[str, object]:
    """``iterations`` sums of two n x n matrices; whether they are right, and where they were computed."""
    check()
    with Context(Driver()) as context:
        program = Program(context, Workload("example", n=n, iterations=iterations), Options(seed=n))
        program.set_up()
        program.loop()
        right, _checksum = program.check()
        return {"n": n, "right": right, "pid": os.getpid(), "gpu": context.uuid}
