"""What logs of pods and schedulers come to: parsed, judged, and reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvshare.acceptance.kube_test.evidence import Evidence, pod_state, status_of
from nvshare.acceptance.kube_test.holding import holdings, meetings, switches
from nvshare.acceptance.kube_test.logs import lines, pod_log, scheduler_log
from nvshare.acceptance.kube_test.plan import MIB, Request
from nvshare.acceptance.kube_test.verdicts import judge
from nvshare.bench.workloads.spec import WORKLOADS
from nvshare.report.kube import KIND, SOURCE, NoBaseline, read_baseline, result
from nvshare.report.page.kinds import stamped
from tests.unit.acceptance.kube_evidence import (
    BOTH,
    CARDS,
    GIB,
    IN_TURNS,
    PARALLEL,
    REQUEST,
    SHORTAGE,
    client,
    clock,
    gone,
    log,
    off,
    on,
    pods,
    registered,
    said_by,
    seen,
)


def verdicts(request: Request, evidence: Evidence) -> dict[str, bool | None]:
    return {verdict.check: verdict.ok for verdict in judge(request, evidence)}


class TestLogs:
    def test_times_have_any_number_of_digits_and_any_zone(self) -> None:
        found = lines("2026-05-04T10:00:00Z a\n2026-05-04T12:00:00.25+02:00 b\nno time at all\n")
        assert [line.text for line in found] == ["a", "b", "no time at all"]
        assert found[1].at - found[0].at == pytest.approx(0.25)

    def test_a_pod_without_our_json_is_read_by_what_it_prints(self) -> None:
        found = pod_log(f"{clock(1)} PASS\n{clock(1)} 25.80 it/s\n{clock(1)} --- 163.20 seconds ---\n")
        assert (found.said_pass, found.its, found.seconds) == (True, 25.8, 163.2)

    def test_a_log_with_a_date_in_the_prefix_is_ours_too(self) -> None:
        found = pod_log(f"[NVSHARE][INFO][2026-05-04 10:00:00]: Client ID = {client(7)}\n")
        assert found.client == client(7)

    def test_cut_json_is_no_result(self) -> None:
        assert pod_log(f'{clock(1)} {{"passed": tr').result == {}

    def test_foreign_lines_are_passed_over(self) -> None:
        assert scheduler_log("Error from server\n\x00\n").tasks == {}

    def test_grown_memory_is_read_with_its_times(self) -> None:
        found = pod_log(f"{clock(1)} HELD 128 MiB\n{clock(2)} LIMIT at 128 MiB: cuMemAlloc failed\n")
        assert [size for _, size in found.held] == [size for _, size in found.limits] == [128 * MIB]
        assert found.limits[0][0] - found.held[0][0] == pytest.approx(1.0)


class TestHolding:
    def test_turns_end_by_word_by_themselves_and_by_death(self) -> None:
        had = holdings(scheduler_log(IN_TURNS))
        assert [round(span.end - span.begin, 3) for span in had[client(1)].spans] == [3.0, 2.0]
        assert [round(span.end - span.begin, 3) for span in had[client(2)].spans] == [2.0, 0.9]

    def test_what_has_no_end_lasts_as_long_as_the_log(self) -> None:
        had = holdings(scheduler_log(log(on(1, 1), on(1, 2), gone(5, 2))))
        assert round(had[client(1)].life.end - had[client(1)].life.begin, 3) == 4.0

    def test_a_switch_is_from_one_to_another_and_not_beside_it(self) -> None:
        def of(text: str) -> int:
            return switches(list(holdings(scheduler_log(text)).values()))

        assert of(IN_TURNS) == 3
        assert of(PARALLEL) == 0
        assert of(ONE_AFTER_THE_OTHER) == 1

    def test_those_who_never_lived_together_did_not_meet(self) -> None:
        had = holdings(scheduler_log(log(on(1, 1), gone(2, 1), on(3, 2), gone(4, 2))))
        assert meetings(list(had.values())) == []


ONE_AFTER_THE_OTHER = log(
    registered(0, 1, "GPU-0"), on(1, 1), registered(2, 2, "GPU-0"),
    (2, f"Client {client(2)} moved to wait queue (serial mode: one task at a time)"), gone(6, 1), on(6, 2), gone(9, 2),
)  # fmt: skip


class TestParallel:
    def test_a_task_that_waits_for_the_other_to_end_fails(self) -> None:
        assert verdicts(REQUEST, seen(REQUEST, BOTH, ONE_AFTER_THE_OTHER))["parallel"] is False

    def test_tasks_that_work_at_the_same_time_pass(self) -> None:
        assert verdicts(REQUEST, seen(REQUEST, BOTH, PARALLEL))["parallel"] is True

    def test_tasks_that_take_turns_although_they_fit_fail(self) -> None:
        assert verdicts(REQUEST, seen(REQUEST, BOTH, IN_TURNS))["parallel"] is False

    def test_one_drop_lock_is_enough_to_fail(self) -> None:
        text = PARALLEL + log(off(8.9, 1))
        assert verdicts(REQUEST, seen(REQUEST, BOTH, text))["parallel"] is False

    def test_tasks_that_do_not_fit_may_take_turns(self) -> None:
        assert verdicts(REQUEST, seen(REQUEST, BOTH, SHORTAGE + IN_TURNS))["parallel"] is None

    def test_a_shortage_that_the_pods_do_not_make_is_not_believed(self) -> None:
        text = SHORTAGE.replace("7480 > 6000", "16000 > 12000") + IN_TURNS
        assert verdicts(REQUEST, seen(REQUEST, BOTH, text))["parallel"] is False

    def test_pods_that_never_met_prove_nothing(self) -> None:
        text = log(registered(0, 1, "GPU-0"), on(1, 1), gone(2, 1), registered(3, 2, "GPU-0"), on(3, 2), gone(4, 2))
        assert verdicts(REQUEST, seen(REQUEST, BOTH, text))["parallel"] is None


class TestSerial:
    REQUEST = replace(REQUEST, serial=True)

    def test_one_at_a_time_passes(self) -> None:
        assert verdicts(self.REQUEST, seen(self.REQUEST, BOTH, IN_TURNS))["serial"] is True

    def test_one_that_waits_for_the_other_to_end_passes(self) -> None:
        assert verdicts(self.REQUEST, seen(self.REQUEST, BOTH, ONE_AFTER_THE_OTHER))["serial"] is True

    def test_two_at_once_fail(self) -> None:
        assert verdicts(self.REQUEST, seen(self.REQUEST, BOTH, PARALLEL))["serial"] is False


class TestSpread:
    def placed(self, *gpus: str, others: dict[str, int] | None = None, placement: str = "spread") -> bool | None:
        said = [said_by(number, gpu) for number, gpu in enumerate(gpus, start=1)]
        scheduler = log(*(registered(number, number, gpu) for number, gpu in enumerate(gpus, start=1)))
        evidence = seen(REQUEST, said, scheduler, cards=CARDS, others=others or {}, placement=placement)
        return verdicts(REQUEST, evidence)["spread"]

    def test_even_passes(self) -> None:
        assert self.placed("GPU-0", "GPU-1") is True
        assert self.placed("GPU-0", "GPU-1", "GPU-0") is True

    def test_all_on_one_fails(self) -> None:
        assert self.placed("GPU-0", "GPU-0") is False

    def test_what_others_had_there_counts(self) -> None:
        assert self.placed("GPU-1", "GPU-1", others={"GPU-0": 2}) is True
        assert self.placed("GPU-0", "GPU-1", others={"GPU-0": 2}) is False

    def test_a_plugin_that_packs_is_not_blamed(self) -> None:
        assert self.placed("GPU-0", "GPU-0", placement="pack") is None


class TestShared:
    def verdict(self, said: str, scheduler: str) -> bool | None:
        request = replace(REQUEST, count=1)
        return verdicts(request, seen(request, [said], scheduler, cards=CARDS))["shared"]

    def test_a_task_that_no_scheduler_knows_fails(self) -> None:
        assert self.verdict(said_by(1, "GPU-0"), "") is False

    def test_a_task_on_another_gpu_than_the_scheduler_says_fails(self) -> None:
        assert self.verdict(said_by(1, "GPU-1"), log(registered(0, 1, "GPU-0"))) is False

    def test_a_task_that_goes_by_another_pods_name_fails(self) -> None:
        assert self.verdict(said_by(1, "GPU-0"), log(registered(0, 1, "GPU-0", "somebody-else"))) is False

    def test_a_task_that_never_told_its_id_is_known_by_its_pod(self) -> None:
        silent = said_by(1, "GPU-0").replace("Client ID", "Something")
        assert self.verdict(silent, log(registered(0, 1, "GPU-0"))) is True


class TestMemory:
    REQUEST = replace(REQUEST, mem=GIB)
    OOM = f"{clock(1)} FAIL: cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2)\n"

    def verdict(self, *said: str, phases: tuple[str, ...]) -> dict[str, bool | None]:
        scheduler = log(registered(0, 1, "GPU-0"), registered(0, 2, "GPU-0"))
        return verdicts(self.REQUEST, seen(self.REQUEST, list(said), scheduler, phases=phases))

    def test_the_large_one_gets_the_error_and_the_small_one_passes(self) -> None:
        found = self.verdict(self.OOM, said_by(2, "GPU-0"), phases=("Failed", "Succeeded"))
        assert found["memory limit"] is True
        assert found["finished"] is True

    def test_a_limit_that_is_not_kept_fails(self) -> None:
        found = self.verdict(*BOTH, phases=("Succeeded", "Succeeded"))
        assert found["memory limit"] is False
        assert found["finished"] is False

    def test_a_limit_that_hits_the_small_one_fails(self) -> None:
        assert self.verdict(self.OOM, self.OOM, phases=("Failed", "Failed"))["memory limit"] is False


class TestDynamic:
    REQUEST = replace(REQUEST, count=1, dynamic=True)

    def grown(self, *, limit: int = 1024, changed: float | None = 5.0, felt: float = 5.2) -> dict[str, bool | None]:
        said = log((0, f"Client ID = {client(1)}"))
        said += f"{clock(1)} HELD {limit} MiB\n{clock(1)} LIMIT at {limit} MiB: CUDA_ERROR_OUT_OF_MEMORY\n"
        if felt:
            said += f"{clock(felt)} HELD {limit + 128} MiB\n{clock(9)} PASS\n"
        scheduler = log(registered(0, 1, "GPU-0"))
        if changed is not None:
            text = "Memory limit changed for pod default/nvshare-small-1: 1024 MB -> 3072 MB"
            scheduler += log((0.5, text.replace("1024 MB -> 3072", "none -> 1024")), (changed, text))
        return verdicts(self.REQUEST, seen(self.REQUEST, [said], scheduler))

    def test_a_raised_limit_that_is_felt_at_once_passes(self) -> None:
        found = self.grown()
        assert (found["memory limit"], found["raised live"]) == (True, True)

    def test_one_that_is_felt_late_or_never_fails(self) -> None:
        assert self.grown(felt=7.0)["raised live"] is False
        assert self.grown(felt=0)["raised live"] is False

    def test_growth_that_no_scheduler_allowed_fails(self) -> None:
        assert self.grown(changed=None)["raised live"] is False

    def test_a_first_limit_that_is_not_where_it_should_be_fails(self) -> None:
        assert self.grown(limit=2048)["memory limit"] is False
        assert self.grown(limit=768)["memory limit"] is False


class TestPods:
    def test_why_a_pod_does_not_run_is_told(self) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no nvshare.com/gpu",
        }
        state = pod_state({"metadata": {"name": "a"}, "status": {"phase": "Pending", "conditions": [condition]}})
        assert (state.problem, state.hopeless) == ("Unschedulable: no nvshare.com/gpu", False)

    def test_an_image_that_cannot_be_had_is_hopeless(self) -> None:
        waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
        state = pod_state({"metadata": {"name": "a"}, "status": {"phase": "Pending", "containerStatuses": [waiting]}})
        assert state.hopeless

    def test_pass_takes_a_pod_that_ended_well(self) -> None:
        (pod,) = pods(REQUEST, said_by(1, "GPU-0"), phases=("Failed",))
        assert status_of(pod) == "FAIL"
        (pod,) = pods(REQUEST, said_by(1, "GPU-0", passed=False))
        assert status_of(pod) == "FAIL"


class TestReport:
    def test_it_reads_as_users_know_it(self) -> None:
        text = result(REQUEST, seen(REQUEST, BOTH, PARALLEL), None).text()
        assert f"nvshare-small-1                | {client(1)}   | GPU-0" in text
        assert "nvshare-small-1                | PASS     | 10.0s        | 50.00 it/s   | 64" in text
        assert "Total: 2, Pass: 2, Fail: 0" in text
        assert text.endswith("PASSED")

    def test_a_verdict_that_fails_fails_the_test(self) -> None:
        report = result(REQUEST, seen(REQUEST, BOTH, IN_TURNS), None)
        assert not report.passed
        assert report.text().endswith("FAILED")

    def test_the_timeline_names_pods(self) -> None:
        timeline = result(REQUEST, seen(REQUEST, BOTH, PARALLEL), None).timeline
        (card,) = timeline
        assert (card["gpu"], card["capacity"], card["seconds"]) == ("GPU-0", 13 * GIB, 9.0)
        assert {task["task"]: task["held"] for task in card["tasks"]} == {
            "nvshare-small-1": [(0.0, 8.0)],
            "nvshare-small-2": [(1.0, 9.0)],
        }

    def test_the_timeline_says_who_waited_and_on_which_node(self) -> None:
        (card,) = result(REQUEST, seen(REQUEST, BOTH, IN_TURNS), None).timeline
        assert card["node"] == "node-1"
        assert {task["task"]: task["waited"] for task in card["tasks"]} == {
            "nvshare-small-1": [(3.0, 6.0)],
            "nvshare-small-2": [(6.0, 8.1)],
        }

    def test_tasks_of_different_gpus_do_not_switch(self) -> None:
        scheduler = log(
            registered(0, 1, "GPU-0"), registered(0, 2, "GPU-1"), on(1, 1), gone(2, 1), on(3, 2), gone(4, 2)
        )
        evidence = seen(REQUEST, [said_by(1, "GPU-0"), said_by(2, "GPU-1")], scheduler, cards=CARDS)
        assert result(REQUEST, evidence, None).to_dict()["measured"]["switches"] == 0

    def test_verdicts_are_written_as_checks(self) -> None:
        content = result(REQUEST, seen(REQUEST, BOTH, IN_TURNS), None).to_dict()
        assert [(row["check"], row["ok"]) for row in content["rows"]][-1] == ("parallel", False)
        assert all(row["expected"] and row["seen"] for row in content["rows"])

    def test_findings_compare_with_a_baseline_only_where_there_is_one(self) -> None:
        evidence = seen(REQUEST, BOTH, PARALLEL)
        assert not any("Density" in one for one in result(REQUEST, evidence, None).sentences)
        assert any("Density: 2 add-small per GPU" in one for one in result(REQUEST, evidence, 5.0).sentences)


class TestBaseline:
    REQUEST = replace(REQUEST, count=1, baseline=True)

    def written(self, path: Path, **changes: Any) -> Path:
        evidence = Evidence(pods(self.REQUEST, said_by(1, "GPU-0")))
        content = stamped(KIND, {"source": SOURCE, **result(self.REQUEST, evidence, None).to_dict()})
        path.write_text(json.dumps({**content, **changes}))
        return path

    def test_it_passes_without_any_scheduler_and_is_read_again(self, tmp_path: Path) -> None:
        assert read_baseline(self.written(tmp_path / "a.json"), REQUEST) == 10.0

    @pytest.mark.parametrize("changes", [{"kind": "bench"}, {"version": 2}, {"passed": False}, {"measured": None}])
    def test_what_is_none_is_refused(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        with pytest.raises(NoBaseline):
            read_baseline(self.written(tmp_path / "a.json", **changes), REQUEST)

    def test_that_of_another_workload_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(NoBaseline, match="another workload"):
            read_baseline(self.written(tmp_path / "a.json"), replace(REQUEST, workload=WORKLOADS["add"]))

    def test_a_file_that_is_no_json_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text("{")
        with pytest.raises(NoBaseline, match="it is not JSON, or was cut off"):
            read_baseline(tmp_path / "a.json", REQUEST)

    def test_a_result_of_another_command_is_refused(self, tmp_path: Path, mission_file: Path) -> None:
        with pytest.raises(NoBaseline, match="a result of nvshare bench mission: --against takes one of"):
            read_baseline(mission_file, REQUEST)

    def test_what_cannot_be_read_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_bytes(b"\xff")
        for path, why in ((tmp_path / "a.json", "it is not text"), (tmp_path / "none", "No such file")):
            with pytest.raises(NoBaseline, match=why):
                read_baseline(path, REQUEST)
