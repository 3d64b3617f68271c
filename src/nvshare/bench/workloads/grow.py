"""A task whose memory grows as far as it may: it shows where its limit is, and that a raised one acts at once.

``python -m nvshare.bench.workloads.grow --until 3Gi`` holds more and more memory. Where an allocation fails it says
``LIMIT``, waits and tries again, until it holds all that was asked for and every piece still has what was written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from array import array
from collections.abc import Sequence

from nvshare.bench.driver import NO_DRIVER, Context, CudaError, Driver, DriverMissing
from nvshare.config import parse_size

MIB = 1 << 20
HELD, LIMIT = "HELD", "LIMIT"
_RETRY = 0.1  # seconds between two tries at the limit
_WORD = 4
_ENDS = 64  # words looked at, at both ends of a piece


def _mark(piece: int) -> int:
    """What fills a piece: no two pieces the same."""
    return 0x5A000000 + piece


class Growth:
    """Pieces of one size, each filled with its own number."""

    def __init__(self, context: Context, step: int) -> None:
        self._context = context
        self._step = step
        self._pieces: list[int] = []
        self.limits: list[int] = []

    @property
    def held(self) -> int:
        return len(self._pieces) * self._step

    def grow(self) -> bool:
        """One piece more; False at the limit."""
        try:
            pointer = self._context.allocate(self._step)
        except CudaError as error:
            if not error.out_of_memory:
                raise
            if self.limits[-1:] != [self.held]:
                self.limits.append(self.held)
                print(f"{LIMIT} at {self.held // MIB} MiB: {error}", flush=True)
            return False
        self._context.fill(pointer, _mark(len(self._pieces)), self._step // _WORD)
        self._pieces.append(pointer)
        print(f"{HELD} {self.held // MIB} MiB", flush=True)
        return True

    def grow_until(self, wanted: int, patience: float) -> bool:
        """Whether it came to hold that much; not when it stood still for so many seconds."""
        moved = time.monotonic()
        while self.held < wanted:
            if self.grow():
                moved = time.monotonic()
            elif time.monotonic() - moved > patience:
                return False
            else:
                time.sleep(_RETRY)
        return True

    def is_whole(self) -> bool:
        """Every piece holds what was written, at both of its ends."""
        for piece, pointer in enumerate(self._pieces):
            for start in (pointer, pointer + self._step - _ENDS * _WORD):
                found = array("I", bytes(_ENDS * _WORD))
                self._context.read(start, found)
                if set(found) != {_mark(piece)}:
                    return False
        return True


def run(wanted: int, step: int, patience: float) -> int:
    began = time.monotonic()
    with Context(Driver()) as context:
        growth = Growth(context, step)
        grown = growth.grow_until(wanted, patience)
        right = growth.is_whole()
        seconds = time.monotonic() - began
        if not right:
            print("FAIL: memory does not hold what was written", flush=True)
        elif not grown:
            print(f"FAIL: no more than {growth.held // MIB} MiB within {patience:g} seconds", flush=True)
        else:
            print("PASS", flush=True)
        print(f"--- {seconds:.2f} seconds ---", flush=True)
        result = {
            "workload": "grow",
            "seconds": seconds,
            "loop_seconds": seconds,
            "its": 0.0,
            "held": growth.held,
            "limits": growth.limits,
            "uuid": context.uuid,
            "pid": os.getpid(),
            "passed": right and grown,
        }
        print(json.dumps(result), flush=True)
    return 0 if right and grown else 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nvshare.bench.workloads.grow", description="hold more and more GPU memory, as far as it may"
    )
    parser.add_argument("--until", type=parse_size, required=True, help="how much in the end, e.g. 3Gi")
    parser.add_argument("--step", type=parse_size, default=128 * MIB, help="how much at a time (default 128Mi)")
    parser.add_argument(
        "--patience",
        type=float,
        default=600.0,
        help="seconds to wait at the limit before it is a failure (default 600)",
    )
    arguments = parser.parse_args(argv)
    try:
        return run(arguments.until, arguments.step // MIB * MIB or MIB, arguments.patience)
    except DriverMissing:
        print(NO_DRIVER.format(command="python -m nvshare.bench.workloads.grow --until 3Gi"), file=sys.stderr)
    except CudaError as error:
        print(f"FAIL: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
