"""Every framework under nvshare.

    python -m nvshare.bench.gpu.frameworks [--only switching,alone,launches,quota,drift,ranks,ipc] [--with torch,jax]
                                           [--rounds 9] [--json FILE]

switching  each framework beside a neighbour on a card declared too small: results, accounting, launches held back
alone      what nvshare costs each framework alone, paired against native runs
launches   what it adds to one launch, from C
quota      4 GiB for PyTorch, JAX and CuPy: their own out-of-memory errors, and what they see
drift      ten tasks allocate and free for two minutes: accounting against NVML
ranks      two ranks of one job on one card beside a third task
ipc        a tensor that one process sends to another, beside a third task on a card declared too small

The card is never filled, only declared small. ``drift`` runs beside switching, quota and ranks, none of which depends
on speed, where that is possible (it takes root). On a simulated node (NVSHARE_SIM_NODE): ``--with c-linked,bindings``.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pynvml

from nvshare.bench.gpu.frameworks.alone import alone, launches
from nvshare.bench.gpu.frameworks.ipc import ipc
from nvshare.bench.gpu.frameworks.quota import drift, quota
from nvshare.bench.gpu.frameworks.ranks import ranks
from nvshare.bench.gpu.frameworks.switching import switching
from nvshare.bench.gpu.frameworks.tasks import FRAMEWORKS, build
from nvshare.bench.gpu.report import Report, Row, options, some_of
from nvshare.bench.gpu.scheduler import can_be_apart

TESTS: dict[str, Callable[[list[str], Path, int], Iterator[Row]]] = {
    "switching": switching,
    "alone": alone,
    "launches": launches,
    "quota": quota,
    "drift": drift,
    "ranks": ranks,
    "ipc": ipc,
}
BESIDE, BESIDE_WHAT = "drift", ("switching", "quota", "ranks")


def main() -> int:
    parser = options(__doc__, TESTS)
    known = ", ".join(FRAMEWORKS)
    parser.add_argument(
        "--with",
        dest="names",
        type=some_of(FRAMEWORKS),
        default=list(FRAMEWORKS),
        metavar="NAMES",
        help=f"which frameworks, of {known} (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=9, help="paired rounds per framework (default: 9)")
    arguments = parser.parse_args()
    pynvml.nvmlInit()
    report = Report(arguments.json)
    with tempfile.TemporaryDirectory(prefix="nvs-") as directory:
        build(Path(directory))

        def carry_out(test: str) -> None:
            report.take(test, partial(TESTS[test], arguments.names, Path(directory), arguments.rounds))

        for group in groups(arguments.only):
            beside = [threading.Thread(target=carry_out, args=[test]) for test in group if test == BESIDE]
            for thread in beside:
                thread.start()
            for test in group:
                if test != BESIDE:
                    carry_out(test)
            for thread in beside:
                thread.join()
    return 0 if report.ok else 1


def groups(tests: list[str]) -> list[list[str]]:
    """Tests that run at the same time are in one group: the one that may run beside others, and those."""
    together = [test for test in tests if test in (BESIDE, *BESIDE_WHAT)]
    if BESIDE not in tests or len(together) == 1 or not can_be_apart():
        return [[test] for test in tests]
    return [together, *([test] for test in tests if test not in together)]


if __name__ == "__main__":
    sys.exit(main())
