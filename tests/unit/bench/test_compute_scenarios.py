"""The scenarios of ``nvshare bench compute``, played in no time."""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nvshare.bench.compute import driver_kit
from nvshare.bench.compute.bench import scene_seconds
from nvshare.bench.compute.kinds import ADD, FILLING, GRAPH, KINDS, LAUNCH, PAUSING
from nvshare.bench.compute.rows import Row
from nvshare.bench.compute.scenarios import ALONE, PARTS, STORM_CHANGES, cast, free, title
from nvshare.bench.compute.stage import CONCURRENT, HIGH, Rehearsal, Scene, Seen
from nvshare.bench.compute.track import Track
from nvshare.bench.compute.workers import MPS, NATIVE, NVSHARE, Name
from nvshare.bench.worker import WorkerFailed
from nvshare.report.compute import compute_table, row_line, verdict

CALL_SECONDS = 540.0  # that a call on a real card may take
BEGIN_SECONDS = 90.0  # of which its processes may take so long to start


def played(part: str, stage: Rehearsal | None = None) -> list[Row]:
    return list(PARTS[part](stage or Rehearsal(8.0, 2.0)))


def test_two_tasks_are_compared_in_every_way_and_nothing_else() -> None:
    found = list(free(Rehearsal(8.0, 2.0), [(ADD, ADD)]))
    assert [(row.what, row.how) for row in found] == [("2 x add", how) for how in (NATIVE, NVSHARE, CONCURRENT, MPS)]


@pytest.mark.parametrize("part", PARTS)
def test_tasks_that_get_what_they_are_promised_pass(part: str) -> None:
    found = played(part)
    assert [row for row in found if row.ok is False] == []
    assert any(row.ok for row in found)
    assert {row.part for row in found} == {part}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_ends_before_its_call_does(part: str) -> None:
    assert scene_seconds(part, 8.0, with_mps=True) + BEGIN_SECONDS < CALL_SECONDS


def test_shorter_windows_make_shorter_parts() -> None:
    assert scene_seconds("pairs", 2.0, with_mps=False) == pytest.approx(scene_seconds("pairs", 8.0, False) / 4)


@dataclass
class Unlimited(Rehearsal):
    """Quotas are heard and not kept."""

    def play(self, scene: Scene) -> Seen:
        return super().play(replace(scene, quotas=(), changes=[replace(each, quota=None) for each in scene.changes]))


@pytest.mark.parametrize("part", ["quotas", "pairs", "change"])
def test_quotas_that_are_not_kept_fail(part: str) -> None:
    judged = [row for row in played(part, Unlimited(8.0, 2.0)) if row.ok is not None]
    kept = [row.quotas for row in judged if row.ok]
    assert set(kept) <= {(80, 80)}  # they would have the same without


@dataclass
class Dead(Rehearsal):
    """Nothing ever comes to an end."""

    def play(self, scene: Scene) -> Seen:
        seen = super().play(scene)
        return replace(seen, tracks=[Track([], []) for _ in seen.tracks])


@pytest.mark.parametrize("part", PARTS)
def test_without_a_reference_nothing_is_told_but_why(part: str) -> None:
    found: list[Row] = []
    with contextlib.suppress(WorkerFailed):  # of what all the rest needs
        found += PARTS[part](Dead(8.0, 2.0, mps=None))
    assert [row for row in found if row.ok or row.delivered or "use a larger --seconds" not in row.note] == []


@dataclass
class Crashing(Rehearsal):
    """Graphs end their process."""

    def play(self, scene: Scene) -> Seen:
        if any(task.kind == GRAPH for task in scene.tasks):
            raise WorkerFailed("the worker graph 1 (nvshare) ended")
        return super().play(scene)


def test_a_worker_that_fails_spoils_its_own_group_only() -> None:
    found = played("quotas", Crashing(8.0, 2.0))
    assert [(row.what, row.note) for row in found if row.ok is False] == [
        ("graph alone", "the worker graph 1 (nvshare) ended")
    ]
    assert {row.what for row in found if row.ok} == {f"{kind} alone" for kind in ALONE if kind != GRAPH}


@dataclass
class Stuck(Rehearsal):
    """Nothing comes to an end under nvshare."""

    def play(self, scene: Scene) -> Seen:
        seen = super().play(scene)
        if scene.tasks[0].how != NVSHARE:
            return seen
        return replace(seen, tracks=[Track([], []) for _ in seen.tracks])


@pytest.mark.parametrize("part", PARTS)
def test_tasks_that_do_nothing_fail_and_their_rows_can_be_written(part: str) -> None:
    found = played(part, Stuck(8.0, 2.0))
    assert [row for row in found if row.how == NVSHARE and row.ok] == []
    json.dumps([row.to_dict() for row in found], allow_nan=False)
    assert compute_table(found)


@dataclass
class Wrong(Rehearsal):
    """The tasks under nvshare compute nonsense."""

    def play(self, scene: Scene) -> Seen:
        seen = super().play(scene)
        if scene.tasks[0].how != NVSHARE:
            return seen
        return replace(seen, tracks=[replace(track, right=False) for track in seen.tracks])


@pytest.mark.parametrize("part", PARTS)
def test_wrong_results_fail_whatever_the_speed(part: str) -> None:
    found = [row for row in played(part, Wrong(8.0, 2.0)) if row.how in (NVSHARE, CONCURRENT)]
    assert {(row.ok, row.note) for row in found} == {(False, "wrong results")}


@dataclass
class Disturbed(Rehearsal):
    """The host is slow when the first task is looked at natively, and steady from then on."""

    right: bool = True

    def play(self, scene: Scene) -> Seen:
        first = not self.scenes
        seen = super().play(scene)
        slow = 0.98 if first else 1.0
        right = self.right or len(self.scenes) > 5
        tracks = [replace(one, counts=[slow * done for done in one.counts], right=right) for one in seen.tracks]
        return replace(seen, tracks=tracks)


@pytest.mark.parametrize("part", ["quotas", "pairs"])
def test_a_group_of_rows_between_native_runs_that_differ_is_measured_again_and_the_steadier_one_counts(
    part: str,
) -> None:
    found = [row for row in played(part, Disturbed(8.0, 2.0)) if row.how != NATIVE]
    plain = [row for row in played(part) if row.how != NATIVE]
    aside = [row for row in found if row.how == "nvshare, host unsteady"]
    assert {(row.what.split()[-1 if part == "pairs" else 0], row.ok) for row in aside} == {("add", None)}
    assert [row for row in found if row.how == NVSHARE] == plain


def test_what_went_wrong_in_a_group_that_is_measured_again_is_not_forgotten() -> None:
    found = played("quotas", Disturbed(8.0, 2.0, right=False))
    assert {row.note for row in found if row.ok is False} == {"wrong results"}


def test_without_mps_the_rest_is_measured_and_the_reason_told() -> None:
    found = played("free", Rehearsal(8.0, 2.0, mps="there is none"))
    assert [row.note for row in found if row.how == MPS] == ["not measured: there is none"]
    assert {row.how for row in found} == {NATIVE, NVSHARE, CONCURRENT, MPS}


@dataclass
class WithoutMpsWorkers(Rehearsal):
    def call_up(self, names: Iterable[Name]) -> None:
        if any(name.how == MPS for name in names):
            raise WorkerFailed("no connection to the server")


def test_mps_that_starts_and_does_not_work_is_left_out() -> None:
    found = played("free", WithoutMpsWorkers(8.0, 2.0))
    assert [row.note for row in found if row.how == MPS] == ["not measured: no connection to the server"]


def test_ways_to_share_a_card_lie_between_two_looks_at_the_reference() -> None:
    stage = Rehearsal(8.0, 2.0)
    list(free(stage, [(ADD, ADD)]))
    assert [(len(scene.tasks), scene.tasks[0].how, scene.mode, scene.seconds) for scene in stage.scenes] == [
        (1, NATIVE, "auto", 2.0),
        (2, NATIVE, "auto", 2.0),
        (2, NVSHARE, "auto", 8.0),
        (2, NVSHARE, "concurrent", 2.0),
        (2, MPS, "auto", 2.0),
        (1, NATIVE, "auto", 2.0),
    ]


def test_launch_bound_tasks_alternate_with_native_ones_for_equal_times() -> None:
    stage = Rehearsal(8.0, 2.0)
    list(free(stage, [(LAUNCH, LAUNCH)]))
    run_in, rounds = (
        [scene for scene in stage.scenes if len(scene.tasks) == 2 and scene.start == start] for start in (1.0, 0.1)
    )
    assert [scene.tasks[0].how for scene in run_in] == [NATIVE, NVSHARE] * 3
    assert [(scene.tasks[0].how, scene.seconds) for scene in rounds] == [
        (NATIVE, 0.4),
        (NVSHARE, 0.4),
        (NVSHARE, 0.4),
        (NATIVE, 0.4),
    ] * 15


def test_other_processes_take_part_after_every_third_of_the_rounds_and_it_is_told_what_each_had() -> None:
    stage = Rehearsal(8.0, 2.0)
    found = list(free(stage, [(ADD, LAUNCH)]))
    rounds = [scene.tasks for scene in stage.scenes if len(scene.tasks) == 2 and scene.start == 0.1]
    assert [[task.number for task in tasks] for tasks in rounds] == [[who] * 2 for who in (0, 1, 2) for _ in range(20)]
    assert {(task.kind, task.number) for tasks in rounds for task in tasks} == {
        (kind, number) for kind in (ADD, LAUNCH) for number in range(3)
    }
    assert [row.figures["by_process"] for row in found if row.how in (NATIVE, NVSHARE)] == [[[1.0, 1.0]] * 3] * 2


def test_quotas_are_judged_over_whole_windows_after_a_whole_start() -> None:
    stage = Rehearsal(8.0, 2.0)
    rows = [*played("quotas", stage), *played("pairs", stage)]
    assert len([row for row in rows if row.how == NVSHARE]) == 4 * 6 + 3 + 3 * 8
    judged = [scene for scene in stage.scenes if scene.quotas and scene.tasks[0].kind != LAUNCH]
    assert len(judged) == 4 * 6 + 3 * 8
    assert {(scene.seconds, scene.start) for scene in judged} == {(8.0, 2.0)}


def test_a_launch_bound_task_is_compared_with_a_native_one_that_has_its_core_in_the_pauses() -> None:
    stage = Rehearsal(8.0, 2.0)
    found: list[Any] = [row for row in played("quotas", stage) if row.what == f"{LAUNCH} alone"]
    assert [(row.quotas, row.delivered, row.ok) for row in found] == [
        ((quota,), (pytest.approx(quota / 100),), True) for quota in (25, 50, 75)
    ]
    scenes = [scene for scene in stage.scenes if scene.tasks[0].kind == LAUNCH]
    assert [(scene.tasks[1].how, scene.tasks[1].kind, scene.seconds) for scene in scenes] == [
        (NATIVE, FILLING, 16.0)
    ] * 3


@dataclass
class Crowded(Rehearsal):
    """Nobody leaves the core to the native task, when the one before it is of this kind."""

    before: str = LAUNCH

    def play(self, scene: Scene) -> Seen:
        seen = super().play(scene)
        if scene.tasks[0].kind != self.before or len(scene.tasks) < 2:
            return seen
        return replace(seen, tracks=[seen.tracks[0], Track([], [])])


@pytest.mark.parametrize("before", [LAUNCH, PAUSING[25]])
def test_a_native_task_that_never_had_the_core_is_told(before: str) -> None:
    found = [row for row in played("quotas", Crowded(8.0, 2.0, before=before)) if row.ok is False]
    assert [row.note for row in found] == [
        "launch-bound did not end a step natively in the pauses: use a larger --seconds"
    ]


def test_beside_a_launch_bound_quota_stands_what_a_native_task_has_that_pauses_by_itself() -> None:
    found = [row for row in played("quotas", Rehearsal(8.0, 2.0)) if row.how == NATIVE]
    assert [(row.quotas, row.ok) for row in found] == [((25,), None), ((50,), None), ((75,), None)]


def test_all_parts_take_hardly_more_than_the_windows_that_are_asked_for() -> None:
    asked = 10.0 * (4 * 6 + 3 + 3 * 8) + 60.0  # quotas, and the storm of changes
    assert sum(scene_seconds(part, 8.0, with_mps=True) for part in PARTS) < 1.8 * asked


def test_only_the_interactive_task_has_high_priority() -> None:
    stage = Rehearsal(8.0, 2.0)
    played("idle", stage)
    assert {scene.tasks[0].kind for scene in stage.scenes if scene.priority == HIGH} == {"interactive"}


def test_the_storm_has_all_its_changes_within_its_time() -> None:
    stage = Rehearsal(8.0, 2.0)
    played("change", stage)
    storm = stage.scenes[-1]
    assert (len(storm.changes), storm.seconds, len(storm.tasks)) == (STORM_CHANGES, 60.0, 4)
    assert {change.who for change in storm.changes} == {0, 1, 2, 3}
    moments = [change.at for change in storm.changes]
    assert moments == sorted(moments)
    assert moments[-1] < storm.seconds


def test_every_kind_of_step_can_be_made_in_both_ways() -> None:
    wanted = {kind.steps for kind in KINDS.values()}
    assert set(driver_kit.STEPS) == wanted
    # PyTorch is not here: read what its kit prepares
    source = Path(driver_kit.__file__).with_name("torch_kit.py").read_text()
    (table,) = (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_PREPARE"
    )
    assert isinstance(table, ast.Dict)
    kinds = sys.modules["nvshare.bench.compute.kinds"]
    assert {getattr(kinds, key.attr) for key in table.keys if isinstance(key, ast.Attribute)} == wanted


def test_tasks_of_one_kind_are_numbered_and_titles_keep_the_order() -> None:
    kinds = ("add", "matmul", "add")
    assert [(task.kind, task.number) for task in cast(NVSHARE, kinds)] == [("add", 0), ("matmul", 0), ("add", 1)]
    assert title(kinds) == "add + matmul + add"
    assert title(("add", "add")) == "2 x add"
    assert title(("add",)) == "add"


def test_the_table_has_a_line_for_each_row() -> None:
    found = [row for part in PARTS for row in played(part)]
    lines = compute_table(found).splitlines()
    assert len(lines) == len(found) + 1
    assert lines[0].split()[:4] == ["part", "what", "how", "quotas"]
    scaled = next(line for line in lines if "2 x add" in line and "50/60" in line)
    assert "45.5/54.5" in scaled
    assert " ok" in scaled
    assert row_line(found[0]).startswith("quotas  add alone  nvshare  10  10.0")
    assert verdict(found).startswith(f"{sum(row.ok is True for row in found)} of ")
