"""Control requests: settings, quotas, and groups made by ``nvshare run``."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from nvshare.client.connection import Connection, RequestRefused
from nvshare.wire import messages as wire
from tests.support.processes import Program, environment

if TYPE_CHECKING:
    from tests.integration.daemon.conftest import SchedulerProcess

GIB = 1 << 30

CHILD = """
import sys, pathlib
from tests.support.wire_client import WireClient
client = WireClient(pathlib.Path(sys.argv[1]))
client.register(sys.argv[2])
for line in sys.stdin:
    print(type(client.request_memory(int(line))).__name__, flush=True)
"""


class Task(Program):
    """A registered process below this one."""

    def allocate(self, size: int) -> str:
        self.tell(str(size))
        return self.line()


@pytest.fixture
def task(scheduler: SchedulerProcess) -> Iterator[Callable[[], Task]]:
    with contextlib.ExitStack() as tasks:

        def make() -> Task:
            command = [sys.executable, "-c", CHILD, str(scheduler.socket), scheduler.gpus[0]]
            return tasks.enter_context(contextlib.closing(Task(command, environment())))

        yield make


def test_settings_change_and_are_shown(scheduler, connect):
    settings = scheduler.ask("set", mode="serial", quantum=20)["settings"]
    assert (settings["mode"], settings["switch_time"], settings["quantum_s"]) == ("serial", "fixed", 20)
    assert scheduler.status()["settings"] == settings


def test_quantum_beyond_the_max_runtime_is_refused_with_the_range(scheduler):
    with pytest.raises(RequestRefused, match="1 to 300 s"):
        scheduler.ask("set", quantum=301)
    assert scheduler.status()["settings"]["quantum_s"] == 30


def test_anti_thrash_off_sets_clients_free(scheduler, connect):
    client = connect(scheduler)
    client.register(scheduler.gpus[0])
    scheduler.ask("set", anti_thrash=False)
    assert client.expect(wire.SchedOff).client_id == client.id


def test_messages_of_older_control_programs_still_work(scheduler, connect):
    # WHEN a control program sends SET_TQ and SCHED_OFF as messages
    control = connect(scheduler)
    control.send(wire.SetTq(25), wire.SchedOff())
    # THEN both are in force
    settings = scheduler.wait_until(lambda status: not status["settings"]["anti_thrash"])["settings"]
    assert settings["quantum_s"] == 25


@pytest.mark.parametrize("by", ["client", "pid"])
def test_quota_reaches_the_client_at_once(scheduler, connect, by):
    client = connect(scheduler)
    client.register(scheduler.gpus[0])
    name = f"{client.id:016x}" if by == "client" else os.getpid()
    group = scheduler.ask("limit", target={by: name}, mem=GIB, cores=30)["group"]
    assert (group["mem_limit"], group["core_limit"]) == (GIB, 30)
    while client.expect(wire.UpdateLimit).mem_limit != GIB:
        pass
    assert client.expect(wire.UpdateCoreLimit).percent == 30
    assert isinstance(client.request_memory(2 * GIB), wire.MemDenied)
    # AND null takes it away again
    scheduler.ask("limit", target={by: name}, mem=None)
    assert isinstance(client.request_memory(2 * GIB), wire.MemAvailable)


def test_quota_for_somebody_who_is_not_there_says_so(scheduler):
    with pytest.raises(RequestRefused, match="there is no pid 1; nvsharectl status"):
        scheduler.ask("limit", target={"pid": 1}, mem=GIB)


def test_processes_below_a_run_share_its_quota(scheduler, task):
    # GIVEN a run of this process with 1 GiB, and two processes below it
    with Connection(scheduler.socket) as run:
        opened = run.request("run", label="trial", mem=GIB)
        assert opened["run"] == str(os.getpid())
        first, second = task(), task()
        # WHEN both allocate THEN what is over the sum is denied
        assert first.allocate(600 << 20) == "MemAvailable"
        assert second.allocate(600 << 20) == "MemDenied"
        (group,) = scheduler.status()["groups"]
        assert (group["id"], group["label"], len(group["clients"])) == (f"run:{os.getpid()}", "trial", 2)
        # AND the run's quota can be changed by its id
        scheduler.ask("limit", target={"run": opened["run"]}, mem=2 * GIB)
        assert second.allocate(600 << 20) == "MemAvailable"
        first.end()
        second.end()
    # AND with the connection the group is gone
    scheduler.wait_until(lambda status: not status["groups"])


def test_group_is_by_kernel_not_by_word(scheduler, connect):
    # GIVEN a process that claims to be a pod, but lives in none
    client = connect(scheduler)
    client.register(scheduler.gpus[0], pod_name="victim", pod_namespace="default")
    (shown,) = scheduler.status()["clients"]
    assert (shown["pod"], shown["group"]) == ("", f"process:{os.getpid()}")


def test_client_that_registered_before_its_run_came_back_registers_again(scheduler, connect):
    # GIVEN a client that registered while its run was not known (the scheduler was restarted)
    client = connect(scheduler)
    client.register(scheduler.gpus[0])
    with Connection(scheduler.socket) as run:
        # WHEN the run opens its group again
        run.request("run", label="back")
        # THEN the client is asked to register again, and then belongs to it
        assert client.ended()
        again = connect(scheduler)
        again.register(scheduler.gpus[0], previous_id=client.id)
        assert scheduler.status()["clients"][0]["group"] == f"run:{os.getpid()}"


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_another_user_may_look_but_not_change(scheduler):
    # GIVEN a process of another user
    script = (
        "import os, sys, pathlib\n"
        "from nvshare.client.connection import Connection, RequestRefused\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "os.chdir(path.parent)  # while we may: the directories above are root's own\n"
        "os.setuid(65534)\n"
        "path = pathlib.Path(path.name)\n"
        "print('status' in Connection(path).request('status'))\n"
        "for op, fields in (('set', {'mode': 'serial'}), ('limit', {'target': {'pid': 1}, 'mem': 1})):\n"
        "    try:\n"
        "        print(Connection(path).request(op, **fields))\n"
        "    except RequestRefused as error:\n"
        "        print(error)\n"
    )
    scheduler.socket.parent.chmod(0o755)
    run = subprocess.run(
        [sys.executable, "-c", script, str(scheduler.socket)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    # THEN it sees the status, and no more
    looked, *refused = run.stdout.splitlines()
    assert looked == "True"
    assert len(refused) == 2
    assert all("only root or the scheduler's own user" in line for line in refused)
    assert scheduler.status()["settings"]["mode"] == "auto"
