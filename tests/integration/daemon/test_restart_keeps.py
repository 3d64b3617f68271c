"""What was set with ``nvsharectl``, over kill -9 of a real scheduler on a real socket."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from nvshare.client.connection import Connection, RequestRefused
from tests.support.processes import Program, environment

if TYPE_CHECKING:
    from tests.integration.daemon.conftest import SchedulerProcess

GIB = 1 << 30

TASK = """
import sys, pathlib
from tests.support.wire_client import WireClient
from nvshare.wire import messages as wire
for line in sys.stdin:
    what, *arguments = line.split()
    if what == "register":  # as often as it is told, as the library does when a scheduler comes back
        client = WireClient(pathlib.Path(sys.argv[1]))
        print(f"{client.register(sys.argv[2]):016x}", flush=True)
    else:
        print(type(client.request_memory(int(arguments[0]))).__name__, flush=True)
"""


class Task(Program):
    """A process that registers when it is told to."""

    def __init__(self, scheduler: SchedulerProcess, *under: str) -> None:
        command = [*under, sys.executable, "-c", TASK, str(scheduler.socket), scheduler.gpus[0]]
        super().__init__(command, environment(NVSHARE_SOCK=str(scheduler.socket)))
        self.register()

    def register(self) -> None:
        self.tell("register")
        self.client = self.line()
        assert len(self.client) == 16

    def allocate(self, size: int) -> str:
        self.tell(f"allocate {size}")
        return self.line()


@pytest.fixture
def task(scheduler: SchedulerProcess) -> Iterator[Callable[..., Task]]:
    with contextlib.ExitStack() as tasks:

        def make(*under: str) -> Task:
            return tasks.enter_context(contextlib.closing(Task(scheduler, *under)))

        yield make


def ctl(scheduler, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "nvshare.cli.ctl", *arguments],
        env=environment(NVSHARE_SOCK=str(scheduler.socket)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert not result.stderr
    return result.stdout


def restart(scheduler) -> str:
    """Kill it and start it again; what the new one logs at its start."""
    scheduler.kill()
    before = len(scheduler.log())
    scheduler.start()
    return scheduler.log()[before:]


def groups(scheduler) -> dict[str, dict[str, Any]]:
    return {group["id"]: group for group in scheduler.status()["groups"]}


def test_settings_and_quotas_of_two_groups_outlive_a_kill(scheduler, task):
    # GIVEN two tasks with quotas of their own, another mode and a fixed quantum
    first, second = task(), task()
    ctl(scheduler, "set", "--pid", str(first.pid), "--mem", "1GiB", "--priority", "high")
    ctl(scheduler, "set", "--client", second.client, "--cores", "30")
    ctl(scheduler, "set", "--mode", "concurrent")
    ctl(scheduler, "-T", "25")
    # WHEN the scheduler is killed and both come back to the next one
    log = restart(scheduler)
    first.register()
    second.register()
    # THEN each has what was set for it, and nothing of the other
    shown = groups(scheduler)
    one, two = shown[f"process:{first.pid}"], shown[f"process:{second.pid}"]
    assert (one["mem_limit"], one["mem_limit_from"], one["core_limit"]) == (GIB, "operator", 100)
    assert (one["priority"], one["priority_from"]) == ("high", "operator")
    assert (two["mem_limit"], two["core_limit"], two["core_limit_from"]) == (None, 30, "operator")
    assert first.allocate(2 * GIB) == "MemDenied"
    assert second.allocate(2 * GIB) == "MemAvailable"
    # AND the settings are in force, which status and the log say
    for setting in ("mode concurrent", "quantum 25 s"):
        assert f"[NVSHARE][INFO]: Kept from before the restart: {setting} (set with nvsharectl" in log
        assert f"{setting} (operator)" in ctl(scheduler, "status")
    assert f"process {first.pid} has memory 1.0 GiB, priority high set by an operator" in ctl(scheduler, "status")


def test_turns_that_were_switched_off_stay_off(scheduler):
    ctl(scheduler, "-S", "off")
    assert "Kept from before the restart: anti-thrash off" in restart(scheduler)
    assert "anti-thrash off (operator)" in ctl(scheduler, "status")


def test_reset_outlives_a_kill_too(scheduler, task):
    one = task()
    ctl(scheduler, "set", "--pid", str(one.pid), "--mem", "1GiB")
    ctl(scheduler, "set", "--mode", "serial")
    assert ctl(scheduler, "reset", "--pid", str(one.pid)).startswith(f"process:{one.pid}: memory without limit")
    assert ctl(scheduler, "reset", "--settings") == "mode auto, quantum auto, anti-thrash on\n"
    log = restart(scheduler)
    one.register()
    assert one.allocate(2 * GIB) == "MemAvailable"
    assert "Kept from before" not in log
    assert scheduler.status()["settings"]["operator"] == []


def test_quota_of_a_run_is_found_by_its_name_and_outlives_a_kill(scheduler, task):
    # GIVEN an `nvshare run` with a quota of its own, and a smaller one that was set by its name
    one = task(sys.executable, "-m", "nvshare", "run", "--name", "trial-7", "--mem", "4GiB", "--")
    assert ctl(scheduler, "set", "--run", "trial-7", "--mem", "1GiB").startswith(f"run:{one.pid}: memory 1.0 GiB")
    restart(scheduler)
    # WHEN its process is back, whether or not `nvshare run` itself is THEN the smaller one holds
    one.register()
    assert one.allocate(2 * GIB) == "MemDenied"
    scheduler.wait_until(lambda status: [group["label"] for group in status["groups"]] == ["trial-7"])
    assert groups(scheduler)[f"run:{one.pid}"]["mem_limit_from"] == "operator"
    # AND what the run was started with is below it
    assert "memory 4.0 GiB (from nvshare run --mem)" in ctl(scheduler, "reset", "--run", str(one.pid))


def test_name_that_two_runs_have_is_refused_with_their_numbers(scheduler, task):
    both = [task(sys.executable, "-m", "nvshare", "run", "--name", "twin", "--") for _ in range(2)]
    with pytest.raises(RequestRefused) as refusal:
        scheduler.ask("limit", target={"run": "twin"}, cores=30)
    numbers = ", ".join(sorted(str(one.pid) for one in both))
    assert f"2 are called twin: name one by its number ({numbers})" in str(refusal.value)


def test_entry_of_a_process_that_has_gone_is_dropped(scheduler, task):
    one = task()
    ctl(scheduler, "set", "--pid", str(one.pid), "--mem", "1GiB")
    scheduler.kill()
    one.end()
    log = restart(scheduler)
    assert f"Forgot what was set for process:{one.pid} (memory 1024 MB): its process is gone" in log
    assert ctl(scheduler, "reset", "--all") == "mode auto, quantum auto, anti-thrash on\n"


def test_file_is_closed_to_others_and_a_damaged_one_is_one_line(scheduler):
    file = scheduler.socket.with_suffix(".kept")
    ctl(scheduler, "set", "--mode", "serial")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # WHEN it is cut short THEN the scheduler starts as it is configured, and says so
    scheduler.kill()
    file.write_bytes(file.read_bytes()[:-10])
    log = restart(scheduler)
    assert log.count(str(file)) == 1
    assert f"[NVSHARE][WARN]: {file} cannot be used, what was set with nvsharectl is lost: it is not complete" in log
    assert scheduler.status()["settings"]["mode"] == "auto"
    # AND what is set from then on is kept
    ctl(scheduler, "set", "--mode", "serial")
    restart(scheduler)
    assert scheduler.status()["settings"]["mode"] == "serial"


@pytest.mark.skipif(os.getuid() != 0, reason="needs to give a file away")
def test_file_of_another_user_is_not_believed(scheduler):
    file = scheduler.socket.with_suffix(".kept")
    ctl(scheduler, "set", "--mode", "serial")
    scheduler.kill()
    os.chown(file, 65534, 65534)
    assert "it belongs to another user" in restart(scheduler)
    assert scheduler.status()["settings"]["mode"] == "auto"


def test_configuration_that_changed_since_is_newer_than_what_was_set(make_scheduler):
    scheduler = make_scheduler(NVSHARE_SCHEDULING_MODE="auto").start()
    ctl(scheduler, "set", "--mode", "serial")
    # WHEN it is started as before THEN what was set counts
    restart(scheduler)
    assert scheduler.status()["settings"]["mode"] == "serial"
    # WHEN it is started with something else THEN that counts, also when it is started so again
    scheduler.env["NVSHARE_SCHEDULING_MODE"] = "concurrent"
    forgot = "Forgot mode serial, which was set with nvsharectl: the scheduler is started with mode concurrent now"
    assert forgot in restart(scheduler)
    assert scheduler.status()["settings"]["mode"] == "concurrent"
    assert "serial" not in restart(scheduler)


def test_directory_that_takes_no_file_is_told_to_the_operator(scheduler):
    # GIVEN something in the way of the file that cannot be replaced
    (scheduler.socket.with_suffix(".kept") / "full").mkdir(parents=True)
    result = subprocess.run(
        [sys.executable, "-m", "nvshare.cli.ctl", "set", "--mode", "serial"],
        env=environment(NVSHARE_SOCK=str(scheduler.socket)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "[NVSHARE][WARN]: in force, but not kept for a restart of the scheduler: Is a directory" in result.stderr
    assert scheduler.status()["settings"]["mode"] == "serial"
    assert "What was set with nvsharectl cannot be kept for a restart" in scheduler.log()


def test_scheduler_that_ends_because_nobody_is_left_takes_it_with_it(make_scheduler, connect):
    scheduler = make_scheduler()
    scheduler.start(idle_exit=0.2)
    with Connection(scheduler.socket) as operator:
        operator.request("set", mode="serial")
    assert scheduler.process.wait(10) == 0
    scheduler.start()
    assert scheduler.status()["settings"]["mode"] == "auto"


def test_scheduler_that_is_stopped_keeps_it(scheduler):
    ctl(scheduler, "set", "--mode", "serial")
    assert scheduler.stop() == 0
    scheduler.start()
    assert scheduler.status()["settings"]["mode"] == "serial"


def test_stopped_process_has_its_quota_however_late_it_comes_back(scheduler, task):
    # GIVEN a task that is stopped while the scheduler is restarted
    one = task()
    ctl(scheduler, "set", "--pid", str(one.pid), "--mem", "1GiB")
    os.kill(one.pid, signal.SIGSTOP)
    restart(scheduler)
    restart(scheduler)
    os.kill(one.pid, signal.SIGCONT)
    one.register()
    assert one.allocate(2 * GIB) == "MemDenied"
