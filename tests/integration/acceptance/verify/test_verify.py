"""``nvshare verify`` on a simulated node: it passes with our scheduler, and names the check with each broken one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nvshare import config
from nvshare.acceptance.verify.run import CARD_MEMORY, CHECKS, verify
from nvshare.bench import venues
from nvshare.gpu import sim

BROKEN = Path(__file__).with_name("broken.py")
SECONDS = 1.0
CAUGHT_BY = {  # which check, and what it sees
    "always-parallel": ("serial-memory", "2 on at once, 0 switches"),
    "never-parallel": ("parallel", "1 on at once"),
    "survivor-starved": ("survivor", "it stood still"),
    "memory-quota-ignored": ("memory-quota", "beyond: granted"),
    "compute-quota-ignored": ("compute-quota", "alone (1[0-9]{2}|[5-9][0-9])"),
    "all-on-one-card": ("spread", "0, 4 of 4|4, 0 of 4"),
    "change-ignored": ("change", "memory 512 MiB, then 512 MiB, .*: out of memory"),
}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "nvshare.cli.main", "verify", *map(str, arguments)]


def environment() -> dict[str, str]:
    return config.child_environment({"PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.simulated
def test_our_own_scheduler_passes_within_two_minutes(tmp_path: Path) -> None:
    result, page = tmp_path / "verify.json", tmp_path / "verify.html"
    before = set(sim.names())  # of others
    done = subprocess.run(
        command("--sim", "2xT4", "--seconds", SECONDS, "--json", result, "--html", page),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"PASSED: {len(CHECKS)} checks" in done.stdout
    assert "simulated" in done.stdout
    content = json.loads(result.read_text())
    assert (content["kind"], content["version"], content["passed"], content["simulated"]) == ("verify", 1, True, True)
    assert [row["check"] for row in content["rows"]] == list(CHECKS)
    assert all({"check", "expected", "seen", "ok", "seconds"} <= set(row) and row["ok"] for row in content["rows"])
    assert {"task 1", "task 2"} == set(content["rows"][0]["timeline"])
    assert all(check.title.replace("'", "&#x27;") in page.read_text() for check in CHECKS.values())
    assert not [name for name in set(sim.names()) - before if name.startswith("verify-")]


@pytest.mark.parametrize("what", CAUGHT_BY)
def test_a_broken_scheduler_fails_the_check_that_it_breaks(what: str) -> None:
    check, seen = CAUGHT_BY[what]
    with venues.simulated("2xT4", 1.0, "broken", card_memory=CARD_MEMORY) as venue:
        broken = replace(venue, scheduler=(str(BROKEN), what))
        (finding,) = verify(broken, checks=[check], seconds=SECONDS, attempts=1)
    assert (finding.check, finding.ok) == (check, False), finding.seen
    assert re.search(seen, finding.seen)


def until(process: subprocess.Popen[str], satisfied: Callable[[str], bool]) -> None:
    """Read what it says on standard error until a line is the one."""
    assert process.stderr is not None
    for line in process.stderr:
        if satisfied(line):
            return
    pytest.fail("it ended before that")


def test_ctrl_c_leaves_nothing_behind() -> None:
    process = subprocess.Popen(
        command("--sim", "T4", "--only", "memory-quota,restart", "--seconds", "30"),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(process, lambda line: line.startswith("[PASS] memory quota"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    assert f"verify-{process.pid}" not in sim.names()
