"""The measuring of ``nvshare bench fairness`` with real processes on a simulated card."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshare.bench import venues
from nvshare.bench.fairness import live
from nvshare.bench.fairness.tasks import RANDOM, parse_set
from nvshare.bench.processes import Venue
from nvshare.client.connection import Connection
from nvshare.model import attainable

pytestmark = pytest.mark.simulated

SECONDS = 0.5


@pytest.fixture(scope="module")
def venue() -> Iterator[Venue]:
    with venues.simulated("H200", 1.0, "fairness") as found:
        yield found


@pytest.fixture(scope="module")
def stage(venue: Venue) -> Iterator[live.LiveSets]:
    with live.on(venue, SECONDS, SECONDS / 2, attainable.measure, 2) as found:
        yield found


def test_a_set_is_measured_natively_and_under_nvshare(stage: live.LiveSets) -> None:
    found = stage.row(RANDOM, parse_set("20+10 20+0"))
    assert "not measured" not in found.note  # how long kernels took may be told: other programs have the processor too
    assert found.native is not None
    for shares in (found.got, found.native):
        assert len(shares) == 2
        assert all(share > 0 for share in shares)


def test_caps_hold_for_their_set_only(stage: live.LiveSets, venue: Venue) -> None:
    stage.row(RANDOM, parse_set("20+0 20+0"))
    without = quotas(venue)
    stage.row(RANDOM, parse_set("20+0@..30 20+0"))
    assert sum(now != before for now, before in zip(quotas(venue), without, strict=True)) == 1
    stage.row(RANDOM, parse_set("20+0 20+0"))
    assert quotas(venue) == without


def quotas(venue: Venue) -> list[object]:
    with Connection(venue.socket) as connection:
        return [client["core_limit"] for client in connection.status()["clients"]]


def test_a_task_that_is_killed_spoils_one_way_of_one_set(stage: live.LiveSets) -> None:
    (victim,) = stage._crew.of("nvshare", 1)
    victim.kill()
    found = stage.row(RANDOM, parse_set("20+0 20+0"))
    assert (found.got, found.ok) == ((), False)
    assert "nvshare was not measured: the worker task 1 (nvshare) ended" in found.note
    assert found.native
    assert stage.row(RANDOM, parse_set("20+0 20+0")).got


def test_the_process_that_measures_kernels_is_called_up_again(stage: live.LiveSets) -> None:
    (victim,) = stage._crew.of("native", 1)
    victim.kill()
    found = stage.row(RANDOM, parse_set("11+0 12+0"))
    assert (found.got, found.ok) == ((), False)
    assert "kernels were not measured alone: the worker task 1 (native) ended" in found.note
    assert stage.row(RANDOM, parse_set("11+0 12+0")).got


def test_the_command_writes_rows_of_a_simulated_card(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    options = ("--tasks", "20+0 20+0", "--seconds", "0.5", "--warm-up", "0.2", "--json", str(target))
    command = [sys.executable, "-m", "nvshare", "bench", "fairness", "--sim", "H200", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    content = json.loads(target.read_text())
    assert (content["source"], content["complete"], len(content["rows"])) == ("simulated", True, 1)
    assert "These figures are simulated" in done.stdout
