"""After ``pip install`` of the wheel everything works, from any directory."""

from __future__ import annotations

import json
from pathlib import Path

from tests.install.conftest import Shell


def test_doctor_finds_the_installed_library(shell: Shell, installed: Path) -> None:
    done = shell.run("nvshare", "doctor", "--json")
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["library"]["state"] == "ok", findings
    assert findings["library"]["seen"].startswith(str(installed))


def test_a_run_on_a_simulated_card_keeps_its_quota(shell: Shell) -> None:
    grow = ("python", "-m", "nvshare.bench.workloads.grow", "--until", "1Gi", "--patience", "0")
    done = shell.run("nvshare", "run", "--sim", "T4", "--mem", "512MiB", "--", *grow)
    assert done.returncode == 1
    assert "HELD 512 MiB" in done.stdout
    assert "LIMIT at 512 MiB: cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2)" in done.stdout


def test_the_demo_runs(shell: Shell) -> None:
    done = shell.run("nvshare", "demo", "--json", "demo.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((shell.directory / "demo.json").read_text())["rows"]
    assert [row["test"] for row in rows] == [1, 2, 3, 4]


def test_the_service_runs_the_installed_scheduler(shell: Shell, installed: Path) -> None:
    done = shell.run("nvshare", "install", "--system", "--print")
    assert f'ExecStart="{installed}/bin/nvshare-scheduler" ' in done.stdout


def test_bash_completes_commands_and_options(shell: Shell) -> None:
    """As docs/workstation.md says; bash has no completion of its own here."""
    lines = ("nvshare do", "nvshare run --car", "nvsharectl sta")
    found = [complete(shell, line) for line in lines]
    assert found == [["doctor"], ["--card-memory"], ["status"]]


def complete(shell: Shell, line: str) -> list[str]:
    program, *words = line.split()
    script = f"""
        eval "$(_{program.upper()}_COMPLETE=bash_source {program})"
        COMP_WORDS=({line}) COMP_CWORD={len(words)}
        _{program}_completion {program} && printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return shell.run("bash", "-c", script).stdout.split()


def test_env_names_what_a_plain_shell_needs(shell: Shell, installed: Path) -> None:
    done = shell.run("nvshare", "env")
    assert f"export LD_PRELOAD={installed}" in done.stdout
