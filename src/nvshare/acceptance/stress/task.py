"""One stress worker: sees the GPU its lease says, allocates, computes until time is up, and checks its data.

``python -m nvshare.acceptance.stress.task --bytes N --seconds S`` prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import replace
from typing import Any

from nvshare.bench.driver import Context, CudaError, Driver, DriverMissing
from nvshare.bench.workloads.program import Options, Program
from nvshare.bench.workloads.spec import FLOAT_BYTES, Workload
from nvshare.launch import LaunchError, check

_BUFFERS = 4  # of the workload: x, y and two sums
_GRANULE = 2 << 20  # bytes; the card rounds each buffer up to this
_SMALLEST = 64  # elements in a row
_PORTION = 0.25  # seconds of adds between two looks at the clock
_CHECKS = 4  # looks at the data in between, beside the one at the end


def matrix_size(size: int) -> int:
    """The largest n for which all matrices together fit into ``size`` bytes."""
    buffer = size // _BUFFERS // _GRANULE * _GRANULE
    return max(_SMALLEST, math.isqrt(buffer // FLOAT_BYTES))


def work(size: int, seconds: float, seed: int) -> dict[str, Any]:
    """Allocate, add for ``seconds``, and check the sums; returns what the worker saw and did."""
    sight = check()
    with Context(Driver()) as context:
        workload = Workload("stress", n=matrix_size(size), iterations=8)
        program = Program(context, workload, Options(seed=seed))
        program.set_up()
        free, total = context.memory()
        began = time.monotonic()
        ops, right, next_check = 0, True, seconds / (_CHECKS + 1)
        while (spent := time.monotonic() - began) < seconds:
            program.run_loop(workload)
            ops += workload.iterations
            took = max(1e-6, time.monotonic() - began - spent)
            workload = replace(workload, iterations=_next_portion(workload.iterations, took))
            if spent > next_check:
                right = right and program.check()[0]
                next_check += seconds / (_CHECKS + 1)
        spent = time.monotonic() - began
        right = right and program.check()[0]
        return {
            "pid": os.getpid(),
            "uuid": context.uuid,
            "lease": sight.lease,
            "ok": right,
            "ops": ops,
            "began": began,
            "seconds": spent,
            "allocated": total - free,
            "total": total,
        }


def _next_portion(iterations: int, took: float) -> int:
    """The number of adds that takes about a portion. It is even, so that both sums are written."""
    wanted = iterations * _PORTION / took
    return max(2, int(min(wanted, 4 * iterations)) // 2 * 2)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", help="file for the JSON; default: standard output")
    arguments = parser.parse_args()
    try:
        result = work(arguments.bytes, arguments.seconds, arguments.seed)
    except (CudaError, DriverMissing, LaunchError) as error:
        result = {"pid": os.getpid(), "ok": False, "error": f"{type(error).__name__}: {error}"}
    text = json.dumps(result)
    if arguments.result:
        with open(arguments.result, "w") as file:
            file.write(text)
    else:
        print(text, flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
