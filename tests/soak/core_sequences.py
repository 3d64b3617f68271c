"""Long random runs of the scheduler core: seeded sequences of events, every invariant checked after each event.

``python tests/soak/core_sequences.py [--of core|joint] [--sequences 100000] [--seed N] [--jobs N]``. ``core``: clients
are made up, and odd sequences are about slices too. ``joint``: clients decide by the library's own state machine. A
failing sequence is printed with its seed; ``--sequences 1 --seed <that seed>`` repeats it.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.unit.core.core_compute_world import ComputeWorld  # noqa: E402
from tests.unit.core.core_world import STEP_RANGE, Step, World  # noqa: E402
from tests.unit.model.joint_world import JointWorld  # noqa: E402

STEPS = (10, 80)  # shortest and longest sequence
BATCH = 250
FAILURES_SHOWN = 3


def sequence(seed: int) -> list[Step]:
    rng = random.Random(seed)
    draw = rng.randrange
    return [
        (draw(STEP_RANGE), draw(STEP_RANGE), draw(STEP_RANGE), draw(STEP_RANGE)) for _ in range(rng.randint(*STEPS))
    ]


def run_core(seed: int) -> None:
    (ComputeWorld if seed % 2 else World)().run(sequence(seed))


def run_joint(seed: int) -> None:
    JointWorld(seed).run()


WORLDS = {"core": run_core, "joint": run_joint}


def run_batch(of: str, seeds: range) -> list[tuple[int, str]]:
    """The seeds that failed, each with its story."""
    failures = []
    for seed in seeds:
        try:
            WORLDS[of](seed)
        except Exception:
            failures.append((seed, traceback.format_exc()))
    return failures


def batches(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, BATCH):
        yield range(start, min(start + BATCH, first + count))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=WORLDS, default="core", help="which world (default: core)")
    parser.add_argument("--sequences", type=int, default=100_000, help="how many (default: 100000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first one; the others follow (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per CPU)")
    options = parser.parse_args()
    done = failed = 0
    began = shown = time.monotonic()
    work = list(batches(options.seed, options.sequences))
    with ProcessPoolExecutor(max_workers=max(1, min(options.jobs, len(work)))) as pool:
        for seeds, failures in zip(work, pool.map(functools.partial(run_batch, options.of), work), strict=True):
            done += len(seeds)
            for seed, story in failures:
                failed += 1
                if failed <= FAILURES_SHOWN:
                    print(f"--- sequence with seed {seed} failed\n{story}", flush=True)
            if time.monotonic() - shown >= 5.0 or done == options.sequences:
                shown = time.monotonic()
                print(f"{done}/{options.sequences} sequences, {failed} failed, {shown - began:.0f} s", flush=True)
    print(f"{done - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
