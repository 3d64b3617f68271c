"""``nvshare launch`` as users call it: what it says, what workers see, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.launch.launch_node import PATIENCE, LaunchNode
from tests.support.processes import eventually


def launch(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nvshare.cli.main", "launch", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def together(directory: Path, workers: int, then: str) -> tuple[str, ...]:
    """A command whose workers wait for each other, so that they hold their leases at the same time."""
    wait = f"touch {directory}/{{worker}}; while [ $(ls {directory} | wc -l) -lt {workers} ]; do sleep 0.02; done"
    return ("sh", "-c", f"{wait}; {then}")


def test_it_says_what_it_uses_and_means_it(node: LaunchNode, tmp_path: Path) -> None:
    done = launch("--workers", "4", "--", *together(tmp_path, 4, "echo {worker}:{gpu}:$CUDA_VISIBLE_DEVICES"))
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "Using GPUs: [0, 1, 2, 3]",
        "GPU Setup Validation:",
        "CUDA_VISIBLE_DEVICES: 0,1,2,3",
        "GPU validation successful",
    ]
    workers = [line.split(":") for line in lines[4:-1]]
    assert sorted(number for number, _, _ in workers) == ["0", "1", "2", "3"]
    assert sorted(uuid for _, _, uuid in workers) == sorted(node.uuids)
    assert all(node.uuids[int(index)] == uuid for _, index, uuid in workers)
    assert lines[-1].startswith("Total: 4, Pass: 4, Fail: 0")
    assert done.returncode == 0
    node.await_clean()


def test_a_choice_of_two_of_eight_lands_on_those(make_node: Callable[[str], LaunchNode], tmp_path: Path) -> None:
    node = make_node("8xT4")
    done = launch("--gpus", "4,5", "--workers", "6", "--", *together(tmp_path, 6, "echo on:$CUDA_VISIBLE_DEVICES"))
    seen = [line[3:] for line in done.stdout.splitlines() if line.startswith("on:")]
    assert sorted(seen) == sorted([node.uuids[4], node.uuids[5]] * 3)
    assert "Using GPUs: [4, 5]" in done.stdout


def test_an_outer_bound_is_kept(node: LaunchNode, tmp_path: Path) -> None:
    command = together(tmp_path, 4, "echo on:$CUDA_VISIBLE_DEVICES")
    done = launch("--workers", "4", "--", *command, CUDA_VISIBLE_DEVICES="0,2")
    seen = {line[3:] for line in done.stdout.splitlines() if line.startswith("on:")}
    assert seen == {node.uuids[0], node.uuids[2]}
    assert "CUDA_VISIBLE_DEVICES: 0,2" in done.stdout
    done = launch("--gpus", "1", "--", "true", CUDA_VISIBLE_DEVICES="0,2")
    assert done.returncode == 2
    assert "outside of CUDA_VISIBLE_DEVICES, which allows 0, 2" in done.stderr


def test_without_a_gpu_it_falls_back_to_the_cpu_unless_one_was_asked_for(node: LaunchNode) -> None:
    done = launch("--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]", CUDA_VISIBLE_DEVICES="")
    assert "No GPUs detected - falling back to CPU mode" in done.stdout
    assert "[]" in done.stdout.splitlines()
    assert done.returncode == 0
    assert launch("--gpus", "0", "--", "true", CUDA_VISIBLE_DEVICES="").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--gpus", "9", "--", "true"), "GPU 9 does not exist: there are 0, 1, 2, 3"),
        (("--gpus", "1,1", "--", "true"), "GPU 1 is named twice"),
        (("--gpus", "x", "--", "true"), "GPU x does not exist"),
        (("--mem", "1TiB", "--", "true"), "the largest GPU has"),
        (("--mem", "0", "--", "true"), "not a usable size"),
        (("--cores", "101", "--", "true"), "--cores"),
        (("--cores", "0", "--", "true"), "--cores"),
        (("--workers", "0", "--", "true"), "--workers"),
        (("--gpus-per-worker", "5", "--", "true"), "there are 4 GPUs"),
        (("--gpus", "cpu", "--mem", "4GiB", "--", "true"), "--mem is a quota on a GPU, and --gpus cpu leaves none"),
        (("--gpus", "cpu", "--cores", "25", "--", "true"), "--cores is a quota on a GPU, and --gpus cpu leaves none"),
        (("--gpus", "cpu", "--gpus-per-worker", "2", "--", "true"), "--gpus-per-worker 2: --gpus cpu leaves none"),
        (("--", "no-such-command"), "no-such-command: command not found"),
        ((), "there is no command"),
        (("--journal", "x", "--", "true"), "--journal needs --jobs"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_started(
    node: LaunchNode, arguments: tuple[str, ...], text: str
) -> None:
    done = launch(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_failing_worker_is_named_and_the_others_pass(node: LaunchNode) -> None:
    done = launch("--workers", "3", "--", "sh", "-c", "test {worker} != 1 || kill -SEGV $$")
    assert "worker 1): signal SIGSEGV" in done.stderr
    assert "Total: 3, Pass: 2, Fail: 1" in done.stdout
    assert done.returncode == 1


def test_a_list_of_jobs_is_gone_through_once_although_begun_twice(node: LaunchNode, tmp_path: Path) -> None:
    jobs, flag = tmp_path / "jobs.txt", tmp_path / "flag"
    jobs.write_text("1\n2\n# no job\n3\n")
    script = f"echo did-{{job}}; test {{job}} != 2 || test -e {flag}"
    first = launch("--workers", "2", "--jobs", str(jobs), "--", "sh", "-c", script)
    assert first.returncode == 1
    assert "Total: 3, Pass: 2, Fail: 1" in first.stdout
    flag.touch()
    second = launch("--workers", "2", "--jobs", str(jobs), "--", "sh", "-c", script)
    assert second.returncode == 0
    assert "2 of 3 jobs are done already" in second.stdout
    assert [line for line in second.stdout.splitlines() if line.startswith("did-")] == ["did-2"]
    entries = [json.loads(line) for line in (tmp_path / "jobs.txt.journal").read_text().splitlines()]
    assert [entry["job"] for entry in entries if entry["code"] == 0 and entry["job"] == "2"] == ["2"]


@pytest.mark.parametrize("content", [None, "no line of a journal\n"], ids=["nowhere", "another file"])
def test_a_journal_that_cannot_be_used_ends_it_before_anything_starts(
    node: LaunchNode, tmp_path: Path, content: str | None
) -> None:
    jobs, journal = tmp_path / "jobs.txt", tmp_path / "nowhere" / "journal"
    jobs.write_text("1\n")
    if content is not None:
        journal = tmp_path / "journal"
        journal.write_text(content)
    done = launch("--jobs", str(jobs), "--journal", str(journal), "--", "touch", str(tmp_path / "did"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("[NVSHARE][FATAL]: --journal: ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("did*"))


def test_no_gpu_in_time_is_a_deadlock_and_names_who_has_it(make_node: Callable[[str], LaunchNode]) -> None:
    from nvshare.launch import lease

    make_node("1xT4")
    with lease(cores=100, label="greedy"):
        done = launch("--cores", "50", "--timeout", "0.5", "--", "true")
    assert done.returncode == 1
    assert "GPU allocation deadlock detected" in done.stdout
    assert "held by greedy" in done.stdout


def test_ctrl_c_ends_everything(node: LaunchNode) -> None:
    command = ["launch", "--workers", "3", "--", "sh", "-c", "sleep 600 & sleep 600"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nvshare.cli.main", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert eventually(lambda: len(node.leases()) == 3, PATIENCE)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    node.await_clean()


def test_a_job_past_its_deadline_is_ended(node: LaunchNode) -> None:
    done = launch("--workers", "1", "--deadline", "0.3", "--grace", "0.2", "--", "sleep", "60")
    assert done.returncode == 1
    assert "not finished within 0.3 s" in done.stderr


def test_output_goes_to_files_where_asked(node: LaunchNode, tmp_path: Path) -> None:
    done = launch("--workers", "2", "--log-dir", str(tmp_path / "logs"), "--", "sh", "-c", "echo out; echo err >&2")
    assert done.returncode == 0
    assert (tmp_path / "logs" / "job-1.log").read_text() == "out\nerr\n"
