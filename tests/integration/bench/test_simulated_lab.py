"""The workloads, the mission and the demo with real processes on a simulated node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvshare import config
from nvshare.bench import eviction, linkspeed, swap, venues
from nvshare.bench.columns import GIB
from nvshare.bench.eviction import DECLARED, kernel_bytes
from nvshare.bench.mission import SCENARIOS, TESTS, Mission, compare_with_model, shortening
from nvshare.bench.outcome import RunPlan, TaskPlan, ignore_progress
from nvshare.bench.processes import ProcessBackend, Venue
from nvshare.bench.workloads.spec import WORKLOADS
from nvshare.gpu import sim
from nvshare.gpu.profiles import load
from nvshare.model.run import ModelBackend

pytestmark = pytest.mark.simulated

SPEED = 10.0
SOLO_WALL_SECONDS = 2.0
TURNS_WALL_SECONDS = 4.0
Recorded = Callable[..., None]


@pytest.fixture(scope="module")
def venue() -> Iterator[Venue]:
    with venues.simulated("2xT4", SPEED, "test") as found:
        yield found


def run_workload(variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nvshare.bench.workloads", *arguments],
        env=config.child_environment({"PYTHONPATH": os.pathsep.join(sys.path), **variables}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_workload_ends_with_pass_and_its_seconds(venue: Venue) -> None:
    result = run_workload(
        dict(venue.variables), "add-small", "--iterations", "70", "--time-scale", "10", "--progress", "--json"
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "70/70 [" in result.stdout
    assert "PASS" in lines
    assert any(line.startswith("--- ") and line.endswith(" seconds ---") for line in lines)
    last = json.loads(lines[-1])
    assert last["uuid"] == venue.uuids[0]
    assert last["bytes"] == WORKLOADS["add-small"].bytes
    assert last["copied_h2d"] > 0


def test_too_big_a_workload_says_out_of_memory(venue: Venue) -> None:
    result = run_workload(dict(venue.variables), "add", "--n", "40000", "--iterations", "1")
    assert result.returncode == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY" in result.stderr
    assert "out of memory: add needs" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_driver_a_workload_says_how_to_go_on() -> None:
    result = run_workload({"LD_LIBRARY_PATH": ""}, "add", "--iterations", "1")
    if result.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert result.returncode == 1
    assert "nvshare run --sim 2xT4" in result.stderr
    assert "Traceback" not in result.stderr


def test_tasks_that_fit_move_nothing_as_in_the_model(venue: Venue) -> None:
    # GIVEN the same shortened scenarios
    profile = load("T4")
    parts = shortening(profile, SOLO_WALL_SECONDS * SPEED, in_turns=0.0)
    fitting = [test for test in TESTS if test != 2]
    model = Mission(ModelBackend(2, profile, speed=SPEED), parts).rows(fitting)
    # WHEN real processes run them under the library and the daemon
    rows = compare_with_model(Mission(ProcessBackend(venue), parts).rows(fitting), model)
    # THEN all sums are right, nothing was moved, and every row has the model's to be compared with
    assert [row.messages for row in rows if not row.passed] == []
    assert {(row.swapped_bytes, row.switches) for row in (*rows, *model)} == {(0, 0)}
    assert all(row.model_ratio for row in rows)
    # AND each task under nvshare was known to the scheduler
    for row in rows:
        assert all(bool(task.client) == (row.mode != "plain") for task in row.details)
    assert {task.gpu for row in rows for task in row.details} == set(venue.uuids)


@pytest.mark.parametrize("variant", ["serial", "auto"])
def test_tasks_that_do_not_fit_take_turns(venue: Venue, variant: str) -> None:
    # GIVEN two tasks on each card, together larger than it
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.name == f"2 {variant}")
    mission = Mission(ProcessBackend(venue), shortening(load("T4"), 0.0, TURNS_WALL_SECONDS * SPEED))
    # WHEN they take turns
    row = mission.run(scenario)
    # THEN memory moves between turns, and all of them computed what they should
    assert row.messages == ()
    assert row.passed
    assert row.switches >= 2
    assert row.swapped_bytes > 0
    # AND the timeline has both tasks of each card with it in turn, and memory on the host meanwhile
    assert [card.gpu for card in row.timeline] == list(venue.uuids)
    for card in row.timeline:
        assert all(task.held for task in card.tasks)
        assert sum(end - begin for task in card.tasks for begin, end in task.held) <= card.seconds + card.resolution_s
        assert all(any(host for _, _, host in task.memory) for task in card.tasks)


@pytest.mark.skipif(not os.environ.get("NVSHARE_SOAK"), reason="half a minute at the speed of life; part of make soak")
def test_a_survivor_is_back_at_its_solo_speed() -> None:
    # GIVEN two tasks that do not fit together, on a card as fast as life
    profile = load("T4")
    with venues.simulated("T4", 1.0, "survivor", profile) as venue:
        mission = Mission(ProcessBackend(venue))
        # WHEN one of them exits, or is killed
        rows = mission.survivors(profile)
        if not all(row.recovered for row in rows):
            rows = mission.survivors(profile)  # on a quieter machine, perhaps
    # THEN the other is at full speed within a second
    for row in rows:
        assert row.passed, row.messages
        assert row.recovered, row.survivor_s


def test_a_quota_stops_the_greedy_task_and_not_its_neighbour(venue: Venue) -> None:
    workload = WORKLOADS["add-small"].shortened(0.002)
    tasks = (TaskPlan("greedy", workload, mem_limit=2**30, expected="OOM"), TaskPlan("neighbour", workload, seed=2))
    outcome = ProcessBackend(venue).run(RunPlan(tasks))
    assert [task.status for task in outcome.tasks] == ["OOM", "PASS"]


@pytest.fixture(scope="module")
def declared() -> Iterator[Venue]:
    """One card of which 16 GiB are declared, as fast as life."""
    with venues.simulated("A100-40G", 1.0, "declared", card_memory=DECLARED) as found:
        yield found


def test_tasks_that_do_not_fit_change_places_no_faster_than_the_link(declared: Venue) -> None:
    # GIVEN the link's own speed, by plain copies
    profile = load("A100-40G")
    link = linkspeed.measure(declared.plain_environment())
    assert 0 < link.h2d <= profile.link_h2d * 1.01
    assert 0 < link.duplex_d2h <= profile.link_duplex * 1.01
    # WHEN two tasks of 12 GiB take turns on 16 GiB
    its = 1 / profile.kernel_seconds(kernel_bytes(GIB))
    row = swap.measure(ProcessBackend(declared), link, 12 * GIB, DECLARED, its, 1.0, ignore_progress)
    # THEN all sums are right, and a switch takes no less than the link needs for what it moves
    assert row.messages == ()
    assert row.passed, row
    assert 0 < row.of_limit <= 1.01


@pytest.mark.slow
@pytest.mark.parametrize("sizes", eviction.CASES)
def test_switches_move_what_does_not_fit_and_no_more(declared: Venue, sizes: tuple[int, ...]) -> None:
    profile = load("A100-40G")
    its = 1 / profile.kernel_seconds(kernel_bytes(GIB))
    row = eviction.measure(ProcessBackend(declared), sizes, DECLARED, its, 1.0, ignore_progress)
    assert row.messages == ()
    assert row.switches >= 4
    assert row.passed, row


def nvshare(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nvshare", *arguments],
        env=config.child_environment({"PYTHONPATH": os.pathsep.join(sys.path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_behind(name: str) -> list[str]:
    """Nodes of that name, and processes that have it on their command line."""
    found = [node.name for node in sim.nodes() if node.name == name]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [command] if name in command else []
    return found


@pytest.mark.slow
def test_the_demo_shows_four_scenes_and_leaves_nothing_behind(tmp_path: Path, recorded: Recorded) -> None:
    target = tmp_path / "demo.json"
    process = nvshare("demo", "--json", str(target))
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, output + errors
    content = json.loads(target.read_text())
    recorded("nvshare demo --json ROWS", process.returncode, content)
    assert [row["test"] for row in content["rows"]] == [1, 2, 3, 4]
    if content["simulated"]:
        assert "simulated" in output
    assert [task["status"] for task in content["rows"][3]["details"]] == ["OOM", "PASS"]
    assert left_behind(f"demo-{process.pid}") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_takes_its_node_down(number: signal.Signals) -> None:
    process = nvshare("demo")
    assert process.stdout is not None
    assert "nvshare demo on" in process.stdout.readline()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert left_behind(f"demo-{process.pid}") == []
