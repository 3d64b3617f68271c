"""``--gpu-log``: a line per card and second, and a disk that is full is told once."""

from __future__ import annotations

import csv
from pathlib import Path

from nvshare.acceptance.stress.meter import gpu_log


class Meter:
    def memory(self) -> dict[str, int]:
        return {"a": 3 << 20, "b": 0}

    def processes(self) -> dict[str, set[int]]:
        return {}

    def utilization(self) -> dict[str, int]:
        return {"a": 50, "b": 0}


def test_every_card_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lost: list[str] = []
    path.write_text("of an earlier run\n")
    with gpu_log(path, Meter(), ("a", "b"), lost.append):
        pass
    heading, first, second, *_ = csv.reader(path.read_text().splitlines())
    assert heading == ["timestamp", "index", "utilization", "memory"]
    assert (first[1:], second[1:]) == (["0", "50", "3"], ["1", "0", "0"])
    assert lost == []


def test_a_full_disk_is_told_once_and_ends_nothing() -> None:
    lost: list[str] = []
    with gpu_log(Path("/dev/full"), Meter(), ("a", "b"), lost.append):
        pass
    assert lost == ["No space left on device"]
