"""How fast the link between host and card is, by plain driver calls: one way each, and both at once by two processes;
and what giving memory its addresses and taking it away costs beside the copies.

``python -m nvshare.bench.linkspeed h2d`` is one of those processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from nvshare.bench.columns import Column
from nvshare.bench.driver import Context, CudaError, Driver, DriverMissing

READY = "READY"
WAYS = {"h2d": "cuMemcpyHtoDAsync_v2", "d2h": "cuMemcpyDtoHAsync_v2"}
MAPPING = "map"
_PIECE = 128 << 20  # as memory moves
_PIECES = 2  # in flight
_SECONDS = 1.0
_MAPPINGS = 16


class NotCalibrated(Exception):
    """The link could not be measured; the text is what a copying process said."""


def rate(value: float) -> str:
    return f"{value / 1e9:.1f} GB/s"


@dataclass(frozen=True)
class LinkSpeed:
    """Bytes per second to the card and from it, each alone and both at once. ``mapping``: seconds per byte that comes
    while another leaves, without the copies; None where nobody measured it."""

    h2d: Annotated[float, Column(form=rate, says="to the card")]
    d2h: Annotated[float, Column(form=rate, says="from it")]
    duplex_h2d: Annotated[float, Column(form=rate, says="to it, both at once")]
    duplex_d2h: Annotated[float, Column(form=rate, says="from it, both at once")]
    mapping: float | None = None

    def seconds(self, out_bytes: float, in_bytes: float) -> float:
        """The least that moving so much out and in takes: both at once as long as both have something to do."""
        both = min(out_bytes / self.duplex_d2h, in_bytes / self.duplex_h2d)
        return both + (out_bytes - both * self.duplex_d2h) / self.d2h + (in_bytes - both * self.duplex_h2d) / self.h2d


def measure(environment: Mapping[str, str], speed: float = 1.0) -> LinkSpeed:
    """Of the first card that this environment shows, which runs ``speed`` times as fast as life."""
    (h2d,) = _copy(environment, "h2d")
    (d2h,) = _copy(environment, "d2h")
    both = _copy(environment, "h2d", "d2h")
    mapping = None
    with contextlib.suppress(NotCalibrated):  # not every driver has the functions
        (mapped,) = _copy(environment, MAPPING)
        mapping = speed / mapped
    return LinkSpeed(h2d / speed, d2h / speed, both[0] / speed, both[1] / speed, mapping)


def _copy(environment: Mapping[str, str], *ways: str) -> list[float]:
    """Bytes per second of processes that copy (or map) these ways at the same time."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_started(environment, way)) for way in ways]
        for process in processes:
            _line(process)  # it is ready
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [float(json.loads(_line(process))["bytes_per_second"]) for process in processes]


@contextlib.contextmanager
def _started(environment: Mapping[str, str], way: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "nvshare.bench.linkspeed", way],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    if not line:
        raise NotCalibrated(f"the speed of the link could not be measured: {process.stderr.read().strip()}")
    return line


def _run(way: str) -> None:
    with Context(Driver()) as context:
        function = context.driver.function(WAYS[way])
        host = [context.allocate_pinned(_PIECE) for _ in range(_PIECES)]
        device = [context.allocate(_PIECE) for _ in range(_PIECES)]
        marks = [context.mark() for _ in range(_PIECES)]

        def submit(piece: int) -> None:
            ends = (device[piece], host[piece]) if way == "h2d" else (host[piece], device[piece])
            context.driver.check(WAYS[way], function(*ends, _PIECE, None))
            marks[piece].record()

        submit(0)
        marks[0].wait()  # what is done once is done
        print(READY, flush=True)
        sys.stdin.readline()
        for piece in range(_PIECES):
            submit(piece)
        began = time.monotonic()
        now, done, next_piece = began, 0, 0
        while now - began < _SECONDS:
            marks[next_piece].wait()
            now = time.monotonic()
            done += 1
            submit(next_piece)
            next_piece = (next_piece + 1) % _PIECES
        print(json.dumps({"way": way, "bytes_per_second": done * _PIECE / (now - began)}), flush=True)
        context.synchronize()
        sys.stdin.readline()  # stay until told to go: the other one may still copy


def _run_mapping() -> None:
    with Context(Driver()) as context, context.address_range(_PIECE) as address:

        def come_and_go() -> None:
            context.unmap_memory(address, _PIECE, context.map_memory(address, _PIECE))

        come_and_go()  # what is done once is done
        print(READY, flush=True)
        sys.stdin.readline()
        began = time.monotonic()
        for _ in range(_MAPPINGS):
            come_and_go()
        rate = _MAPPINGS * _PIECE / (time.monotonic() - began)
        print(json.dumps({"way": MAPPING, "bytes_per_second": rate}), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="copies between pinned host memory and the card for a second, or maps")
    parser.add_argument("way", choices=[*WAYS, MAPPING])
    arguments = parser.parse_args(argv)
    try:
        if arguments.way == MAPPING:
            _run_mapping()
        else:
            _run(arguments.way)
    except (CudaError, DriverMissing) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyError as error:
        print(f"the driver has no {error.args[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
