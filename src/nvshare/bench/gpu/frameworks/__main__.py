"""On a real NVIDIA GPU: every framework under nvshare.

    python benchmarks/gpu/frameworks [--only switching,alone,launches,quota,drift,ranks,ipc] [--with torch,jax]
                                     [--rounds 9] [--json FILE]

switching  each framework beside a neighbour on a card declared too small: results, accounting, launches held back
alone      what nvshare costs each framework alone, paired against native runs
launches   what it adds to one launch, from C
quota      4 GiB for PyTorch, JAX and CuPy: their own out-of-memory errors, and what they see
drift      ten tasks allocate and free for two minutes: accounting against NVML
ranks      two ranks of one job on one card beside a third task
ipc        a tensor that one process sends to another, beside a third task on a card declared too small

Rows are merged into FILE: those of a test that is run again are replaced. The card is never filled, only declared
small. Starts schedulers of its own and ends everything it started. ``drift`` runs beside switching, quota and ranks,
none of which depends on speed, where that is possible (it takes root). Where there is no GPU, a simulated node
(NVSHARE_SIM_NODE) carries ``--with c-linked,bindings``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2] / "src")]

import pynvml  # noqa: E402
from alone import alone, launches  # noqa: E402
from cast import CAN_BE_APART, NAMES, build  # noqa: E402
from ipc import ipc  # noqa: E402
from quota import drift, quota  # noqa: E402
from ranks import ranks  # noqa: E402
from switching import switching  # noqa: E402

from nvshare.bench.machine import conditions, source_of_cards  # noqa: E402

Row = dict[str, Any]
PARTS: dict[str, Callable[[list[str], Path, int], Iterator[Row]]] = {
    "switching": switching,
    "alone": alone,
    "launches": launches,
    "quota": quota,
    "drift": drift,
    "ranks": ranks,
    "ipc": ipc,
}
BESIDE, BESIDE_WHAT = "drift", ("switching", "quota", "ranks")
ALWAYS_SHOWN = ("test", "ok")


class Report:
    """Rows as they come: printed, and merged into the file, so that a run that is cut short keeps what it found."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is not None and path.exists():
            self._rows = {row["test"]: row for row in json.loads(path.read_text())["rows"]}
        self._about = conditions(source_of_cards())
        self._began = time.monotonic()
        self._one_at_a_time = threading.Lock()
        self.ok = True

    def add(self, row: Row) -> None:
        with self._one_at_a_time:
            self._add(row)

    def _add(self, row: Row) -> None:
        self.ok = self.ok and row["ok"]
        self._rows[row["test"]] = row
        details = ", ".join(f"{key} {value}" for key, value in row.items() if key not in ALWAYS_SHOWN)
        elapsed = time.monotonic() - self._began
        print(f"[{elapsed:5.0f} s] {'ok  ' if row['ok'] else 'FAIL'} {row['test']}: {details}", flush=True)
        if self._path is not None:
            whole = {**self._about, "rows": list(self._rows.values())}
            self._path.write_text(json.dumps(whole, indent=1) + "\n")


def one_of(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}: there are {', '.join(known)}")
        return names

    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = tuple(PARTS)
    parser.add_argument("--only", type=one_of(parts), default=list(parts), help="which parts (default: all)")
    parser.add_argument("--with", dest="names", type=one_of(NAMES), default=list(NAMES), help="which frameworks")
    parser.add_argument("--rounds", type=int, default=9, help="paired rounds per framework (default: 9)")
    parser.add_argument("--json", type=Path, help="merge the results into this file")
    arguments = parser.parse_args()
    pynvml.nvmlInit()
    report = Report(arguments.json)
    with tempfile.TemporaryDirectory(prefix="nvs-") as directory:
        build(Path(directory))

        def carry_out(part: str) -> None:
            try:
                for row in PARTS[part](arguments.names, Path(directory), arguments.rounds):
                    report.add(row)
            except Exception as error:  # of one part; those after it are worth as much
                report.add({"test": part, "error": repr(error)[-3000:], "ok": False})

        for group in groups(arguments.only):
            beside = [threading.Thread(target=carry_out, args=[part]) for part in group if part == BESIDE]
            for thread in beside:
                thread.start()
            for part in group:
                if part != BESIDE:
                    carry_out(part)
            for thread in beside:
                thread.join()
    return 0 if report.ok else 1


def groups(parts: list[str]) -> list[list[str]]:
    """Parts that run at the same time are in one group: the one that may run beside others, and those."""
    together = [part for part in parts if part in (BESIDE, *BESIDE_WHAT)]
    if BESIDE not in parts or len(together) == 1 or not CAN_BE_APART:
        return [[part] for part in parts]
    return [together, *([part] for part in parts if part not in together)]


if __name__ == "__main__":
    sys.exit(main())
