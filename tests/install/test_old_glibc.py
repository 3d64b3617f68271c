"""The library works in programs on an older C library, on x86-64 and on arm64 (emulated where it must be)."""

from __future__ import annotations

import json

from nvshare.bench.workloads import ptx
from tests.install.conftest import Shell
from tests.install.userland import Userland
from tests.support.processes import ROOT

LINKED = ROOT / "src" / "nvshare" / "bench" / "gpu" / "frameworks" / "linked.c"
PROBE = ROOT / "tests" / "integration" / "interposer" / "resolve_probe.c"
MIB = 1 << 20
OURS = "libnvshare.so"


def test_every_lookup_reaches_the_library(shell: Shell, userland: Userland) -> None:
    probe = userland.command(userland.link(PROBE, "-DLINKED", "-D_GNU_SOURCE"))
    done = shell.run("nvshare", "run", "--sim", "T4", "--", *probe)
    assert done.returncode == 0, done.stderr
    answers = {tuple(line.split()[:-1]): line.split()[-1] for line in done.stdout.splitlines()}
    assert answers["linked", "cuInit"] == OURS
    assert answers["dlsym", "cuLaunchKernel_ptsz"] == OURS
    assert answers["v1", "cuMemAlloc"] == OURS
    assert answers["v2-per-thread", "cuLaunchKernel"] == OURS
    assert answers["dlsym", "nvmlDeviceGetMemoryInfo"] == OURS
    assert answers["dlsym", "cuDeviceGetCount"] == OURS  # it has no hook: it only passes
    assert answers["dlsym", "cuNoSuchFunction"] == "none"
    assert answers["next", "malloc"] == "libc.so.6"


def test_two_programs_that_do_not_fit_take_turns(shell: Shell, userland: Userland) -> None:
    # GIVEN a card for 640 MiB, and two programs with 448 MiB each on the older C library
    (shell.directory / "kernels.ptx").write_text(ptx.PTX)
    command = userland.command(userland.link(LINKED), str(shell.directory / "kernels.ptx"))
    options = ("--sim", "T4", "--speed", "10", "--card-memory", "640MiB", "--")
    first, second = (shell.start("nvshare", "run", *options, *command) for _ in range(2))
    for task in (first, second):
        userland.check_libraries(task.ask("info")["pid"])
        assert task.ask("prepare 0.375") == {"pieces": 6}
    # WHEN each computes
    for task in (first, second, first):
        task.ask("steps 2")
    # THEN the scheduler has moved memory of theirs, which holds what was computed
    status = json.loads(shell.run("nvsharectl", "--sim", "1xT4", "status", "--json").stdout)
    assert [card["allocated"] for client in status["clients"] for card in client["gpus"]] == [7 * 64 * MIB] * 2
    assert status["counters"]["swapped_bytes"] > 0
    assert first.ask("check") == {"right": True, "wrong": 0, "steps": 4}
    assert second.ask("check") == {"right": True, "wrong": 0, "steps": 2}
    first.end()
    second.end()
