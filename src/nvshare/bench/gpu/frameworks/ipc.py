"""A tensor that one process sends to another by CUDA IPC, while a neighbour on a card declared too small makes both
leave it: both results right, what is shared in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvshare.bench.gpu.frameworks.tasks import LINKED, LONG, Task, nvml_bytes, tasks
from nvshare.bench.gpu.frameworks.worker import PIECE, SHARING
from nvshare.bench.gpu.report import Row
from nvshare.bench.gpu.scheduler import GIB, OwnScheduler
from nvshare.bench.worker import WorkerFailed

DECLARED = 4.0  # GiB
MEMORY = 1.5  # GiB of each of the two, a quarter of which they share
NEIGHBOUR = 3.25  # GiB: what it leaves is enough for neither of the two
SWITCHES = 24


def ipc(names: list[str], build: Path, rounds: int) -> Iterator[Row]:
    """One row for each way to send it."""
    with OwnScheduler(build / "ipc", DECLARED) as small:
        small.set_quantum(5)
        for name in SHARING:
            if name.removesuffix("-sharing") not in names:
                continue
            with tasks(Task(LINKED, build, small), Task(name, build, small)) as (rival, pair):
                try:
                    rival.ask("prepare", NEIGHBOUR)
                    yield _row(pair, rival, small)
                except WorkerFailed as failure:
                    yield {"test": f"ipc {name}", "error": str(failure), "ok": False}


def _row(pair: Task, rival: Task, small: OwnScheduler) -> Row:
    pair.ask("prepare", MEMORY, within=LONG)
    about = pair.ask("info")
    pids = (about["pid"], about["other_pid"])
    pair.ask("steps", 2)
    before = _swapped_in(small, pids)
    outs, wrong = [0, 0], 0
    for turn in range(SWITCHES):
        rival.ask("steps", 2)
        for index, pid in enumerate(pids):
            place = small.attachment(pid)
            outs[index] += place["resident"] < place["allocated"]
        pair.ask("steps", 2)
        if turn % 6 == 5:
            wrong += not pair.ask("check")["right"]
    neighbour_right = rival.ask("check")["right"]
    wrong += not pair.ask("check")["right"]
    swapped = [after - was for after, was in zip(_swapped_in(small, pids), before, strict=True)]
    owner, other = (small.attachment(pid) for pid in pids)
    return {
        "test": f"ipc {pair.framework}",
        "version": about["version"],
        "switched_out": min(outs),
        "swapped_in_gib": round(sum(swapped) / GIB, 2),
        "swapped_in_gib_each": [round(each / GIB, 2) for each in swapped],
        "pinned_mib": [owner["pinned"] >> 20, other["pinned"] >> 20],
        "nvml_beyond_mib": [(nvml_bytes(pid) - small.attachment(pid)["resident"]) >> 20 for pid in pids],
        "wrong": wrong,
        "neighbour_right": neighbour_right,
        "ok": min(outs) >= 20
        and min(swapped) > 0
        and wrong == 0
        and neighbour_right
        and owner["pinned"] >= PIECE
        and other["pinned"] == 0,
    }


def _swapped_in(small: OwnScheduler, pids: tuple[int, int]) -> list[int]:
    return [small.attachment(pid)["swapped_in"] for pid in pids]
