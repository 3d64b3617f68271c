"""One workload as a program: set up, add, check, report.

Output for people: progress (with ``--progress``), ``PASS`` or ``FAIL``, the speed, ``--- N seconds ---``. The last line
is a JSON object with ``--json``. All seconds are the card's time: on a simulated card that runs faster than life
(``--time-scale 10``) ten times those of the wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nvshare.bench.driver import NO_DRIVER, Context, CudaError, Driver, DriverMissing
from nvshare.bench.workloads import pattern, ptx
from nvshare.bench.workloads.spec import BATCH, BATCHES_IN_FLIGHT, WORKLOADS, Workload

_PROGRESS_SECONDS = 0.25
_NEVER_WRITTEN = 0xFFFFFFFF  # fills z before the first add: not a number, so it can never pass for a sum
READY = "READY"


@dataclass(frozen=True)
class Options:
    device: int = 0
    seed: int = 1
    time_scale: float = 1.0
    progress: bool = False
    barrier: bool = False
    json: bool = False
    marks: int | None = None


class Program:
    """A workload on a card. Call ``set_up``, ``loop`` and ``check`` in this order."""

    def __init__(self, context: Context, workload: Workload, options: Options) -> None:
        self._context = context
        self._workload = workload
        self._options = options
        self._blocks = pattern.random_blocks(workload.elements, options.seed)
        self._z: list[int] = []
        self._launch: list[Callable[[], int]] = []
        self.marks: list[tuple[float, int]] = []  # when (on the clock of all processes) how many adds were done

    def set_up(self) -> None:
        """Allocate, fill x and y, and prepare the launches."""
        context, workload = self._context, self._workload
        x, y, *rest = (context.allocate(workload.buffer_bytes) for _ in range(workload.buffers))
        self._z = rest[:2]
        context.fill(x, pattern.float_bits(pattern.FILL_X), workload.elements)
        context.fill(y, pattern.float_bits(pattern.FILL_Y), workload.elements)
        for other in rest:
            context.fill(other, _NEVER_WRITTEN, workload.elements)
        for block in self._blocks:
            context.write(x + block.start * block.x.itemsize, block.x)
            context.write(y + block.start * block.y.itemsize, block.y)
        module = context.load(ptx.PTX)
        self._launch = [
            module.launcher(ptx.ADD, z, x, y, workload.elements, elements=workload.elements) for z in self._z
        ]
        context.synchronize()

    def run_loop(self, workload: Workload) -> None:
        """Further adds, as many as this workload has, on the same matrices."""
        self._workload = workload
        self.loop()

    def loop(self) -> None:
        if self._workload.busy:
            self._busy_loop()
        else:
            self._idle_loop()

    def _busy_loop(self) -> None:
        """Launch far ahead of the card, but not without bound."""
        check = self._context.driver.check
        size = self._options.marks or BATCH
        marks = [self._context.mark() for _ in range(BATCHES_IN_FLIGHT)]
        progress = _Progress(self._workload.iterations, self._options)
        done = batch = 0
        while done < self._workload.iterations:
            mark = marks[batch % BATCHES_IN_FLIGHT]
            if batch >= BATCHES_IN_FLIGHT:
                mark.wait()
                self._reached((batch - BATCHES_IN_FLIGHT + 1) * size, progress)
            for iteration in range(done, min(done + size, self._workload.iterations)):
                code = self._launch[iteration % 2]()
                if code:
                    check("cuLaunchKernel", code)
            done += size
            mark.record()
            batch += 1
        self._context.synchronize()
        self._reached(self._workload.iterations, progress, last=True)

    def _reached(self, done: int, progress: _Progress, last: bool = False) -> None:
        if self._options.marks is not None:
            self.marks.append((time.monotonic(), done))
        progress.show(done, last)

    def _idle_loop(self) -> None:
        """One add, wait for it, pause. What a pause overran is taken off the next, so that their mean is kept."""
        check = self._context.driver.check
        mark = self._context.mark()
        progress = _Progress(self._workload.iterations, self._options)
        overrun = 0.0
        pauses = self._workload.sleeps(self._options.seed)
        for iteration in range(self._workload.iterations):
            check("cuLaunchKernel", self._launch[iteration % 2]())
            mark.record()
            mark.wait()
            progress.show(iteration + 1)
            before = time.monotonic()
            wanted = next(pauses) / self._options.time_scale - overrun
            time.sleep(max(0.0, wanted))
            overrun = time.monotonic() - before - wanted
        progress.show(self._workload.iterations, last=True)

    def check(self) -> tuple[bool, str]:
        """Whether sampled sums are right to the bit, and the checksum of the samples."""
        right = True
        checksum = pattern.Checksum()
        for z in self._z[: self._workload.iterations]:
            for block in pattern.samples(self._workload.elements, self._blocks, self._options.seed):
                found = array("f", bytes(block.x.itemsize * len(block.x)))
                self._context.read(z + block.start * block.x.itemsize, found)
                right = right and found.tobytes() == block.expected().tobytes()
                checksum.add(found)
        return right, checksum.text


class _Progress:
    """Lines like ``1280/4000 [25.80 it/s]``, a few per second, when asked for."""

    def __init__(self, iterations: int, options: Options) -> None:
        self._iterations = iterations
        self._options = options
        self._began = self._shown = time.monotonic()

    def show(self, done: int, last: bool = False) -> None:
        if not self._options.progress:
            return
        now = time.monotonic()
        if not last and now - self._shown < _PROGRESS_SECONDS:
            return
        self._shown = now
        seconds = max(now - self._began, 1e-9) * self._options.time_scale
        print(f"{done}/{self._iterations} [{done / seconds:.2f} it/s]", flush=True)


def _meet() -> None:
    """Say that set-up is over and wait for the word, so that several tasks begin their loops together."""
    print(READY, flush=True)
    sys.stdin.readline()


def run(workload: Workload, options: Options) -> int:
    """Run it and print the result; the exit status."""
    began = time.monotonic()
    with Context(Driver(), options.device) as context:
        program = Program(context, workload, options)
        program.set_up()
        setup = time.monotonic() - began
        if options.barrier:
            _meet()
        loop_began = time.monotonic()
        program.loop()
        loop = time.monotonic() - loop_began
        right, checksum = program.check()
        seconds = (setup + loop) * options.time_scale
        loop_seconds = loop * options.time_scale
        its = workload.iterations / loop_seconds
        print("PASS" if right else "FAIL: the sums are wrong", flush=True)
        print(f"{its:.2f} it/s, checksum {checksum}")
        print(f"--- {seconds:.2f} seconds ---", flush=True)
        if options.json:
            result = {
                "workload": workload.name,
                "seconds": seconds,
                "loop_seconds": loop_seconds,
                "iterations": workload.iterations,
                "its": its,
                "bytes": workload.bytes,
                "copied_h2d": context.copied_h2d,
                "copied_d2h": context.copied_d2h,
                "checksum": checksum,
                "uuid": context.uuid,
                "pid": os.getpid(),
                "passed": right,
                "marks": program.marks,
            }
            print(json.dumps(result), flush=True)
        if options.barrier:
            sys.stdin.readline()  # stay, so that the scheduler can still be asked about this task
    return 0 if right else 1


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not greater than zero")
        return value

    parse.__name__ = "number"
    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nvshare.bench.workloads",
        description="z = x + y on the GPU, again and again, with checked results",
    )
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--n", type=_positive(int), help="matrices are n x n float32")
    parser.add_argument("--iterations", type=_positive(int), help="how many adds")
    parser.add_argument("--sleep-ms", type=float, help="mean pause after each add")
    parser.add_argument("--device", type=int, default=0, help="ordinal among the visible GPUs (default 0)")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the pauses (default 1)")
    parser.add_argument(
        "--time-scale", type=_positive(float), default=1.0, help="how much faster than life the (simulated) card runs"
    )
    parser.add_argument("--progress", action="store_true", help="print NN/TOTAL [it/s] now and then")
    parser.add_argument(
        "--barrier",
        action="store_true",
        help=f"print {READY} after set-up and go on after a line of standard input, twice",
    )
    parser.add_argument("--json", action="store_true", help="print one final JSON line")
    parser.add_argument("--marks", type=_positive(int), help="note the time after so many adds, again and again")
    return parser


def _workload(arguments: argparse.Namespace) -> Workload:
    workload = WORKLOADS[arguments.workload]
    if arguments.n is not None:
        workload = replace(workload, n=arguments.n)
    if arguments.iterations is not None:
        workload = replace(workload, iterations=arguments.iterations)
    if arguments.sleep_ms is not None:
        workload = replace(workload, sleep=max(0.0, arguments.sleep_ms) / 1000)
    return workload


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    workload = _workload(arguments)
    options = Options(
        device=arguments.device,
        seed=arguments.seed,
        time_scale=arguments.time_scale,
        progress=arguments.progress,
        barrier=arguments.barrier,
        json=arguments.json,
        marks=arguments.marks,
    )
    try:
        return run(workload, options)
    except DriverMissing:
        print(NO_DRIVER.format(command=f"python -m nvshare.bench.workloads {workload.name}"), file=sys.stderr)
    except CudaError as error:
        print(f"FAIL: {error}", file=sys.stderr)
        if error.out_of_memory:
            print(
                f"out of memory: {workload.name} needs {workload.bytes / 2**20:.0f} MiB on the GPU; "
                "a smaller --n needs less, a memory quota or a smaller card allows less",
                file=sys.stderr,
            )
    except KeyboardInterrupt:
        return 130
    return 1
