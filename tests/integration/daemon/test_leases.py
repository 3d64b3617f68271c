"""Leases on a real socket: who gets one, who belongs to it, and when its place is free again."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from nvshare.client.connection import Connection, NoScheduler, RequestRefused
from nvshare.wire import messages as wire
from tests.support.processes import environment

GIB = 1 << 30
PATIENCE = 10.0

CHILD = """
import sys, time
from tests.support.wire_client import WireClient
from pathlib import Path
client = WireClient(Path(sys.argv[1]))
client.register(sys.argv[2])
print(client.expect(__import__('nvshare.wire.messages').wire.messages.UpdateLimit).mem_limit, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(scheduler):
    """A process of ours that is a client: the memory quota it was told, and a way to end it."""
    made: list[subprocess.Popen[str]] = []

    def start(gpu: str, **variables: str) -> tuple[int, Callable[[], None]]:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(scheduler.socket), gpu],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(**variables),
        )
        made.append(process)
        assert process.stdout
        limit = int(process.stdout.readline())

        def end() -> None:
            process.kill()
            process.wait()

        return limit, end

    yield start
    for process in made:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream
            stream.close()


def _ask_in_vain(waiter: Connection) -> None:
    with pytest.raises(NoScheduler):
        waiter.request("lease", cores=50)


def states(status: dict[str, object]) -> list[str]:
    return [lease["state"] for lease in status["leases"]]  # type: ignore[attr-defined]


def test_a_lease_lives_as_long_as_its_connection(scheduler) -> None:
    with Connection(scheduler.socket) as holder:
        answer = holder.request("lease", mem=GIB, cores=25, gpus=1, label="trial")
        assert answer["gpus"][0] in scheduler.gpus
        assert answer["inside"] is None
        (lease,) = scheduler.status()["leases"]
        assert (lease["id"], lease["label"], lease["state"]) == (answer["lease"], "trial", "held")
        assert holder.request("status")["status"]["leases"]  # the connection still answers
    scheduler.wait_until(lambda status: status["leases"] == [])


def test_who_waits_is_answered_when_there_is_room(scheduler) -> None:
    holders = [Connection(scheduler.socket) for _ in range(2)]
    for holder in holders:
        holder.request("lease", cores=100)
    with Connection(scheduler.socket, PATIENCE) as waiter, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(waiter.request, "lease", cores=50)
        scheduler.wait_until(lambda status: "waiting" in states(status))
        holders[1].close()
        assert answer.result(PATIENCE)["gpus"]
    holders[0].close()


def test_who_gives_up_waits_no_more(scheduler) -> None:
    with Connection(scheduler.socket) as one, Connection(scheduler.socket) as two:
        one.request("lease", cores=100)
        two.request("lease", cores=100)
        waiter = Connection(scheduler.socket)
        thread = threading.Thread(target=_ask_in_vain, args=(waiter,))
        thread.start()
        scheduler.wait_until(lambda status: "waiting" in states(status))
        waiter.interrupt()
        thread.join()
        waiter.close()
        scheduler.wait_until(lambda status: states(status) == ["held", "held"])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mem": 17 * GIB}, "largest GPU to choose from"),
        ({"gpus": 3}, "3 GPUs are asked for, and there are 2"),
        ({"gpus": 0}, "gpus is how many GPUs"),
        ({"cores": 101}, "from 1 to 100"),
        ({"among": ["GPU-nobody"]}, "unknown GPU GPU-nobody"),
        ({"among": []}, "among is a list"),
        ({"among": "GPU-x"}, "among is a list"),
        ({"among": [7]}, "by UUID"),
        ({"mem": -1}, "mem is a whole number"),
        ({"again": {"id": "x"}}, "again is"),
        ({"again": {"id": "x", "gpus": ["y"]}}, "16 hexadecimal digits"),
        ({"colour": 1}, "knows no colour"),
    ],
)
def test_what_can_never_be_is_refused_at_once(scheduler, fields: dict[str, object], reason: str) -> None:
    with Connection(scheduler.socket) as connection:
        with pytest.raises(RequestRefused, match=reason):
            connection.request("lease", **fields)
        assert connection.request("lease")["gpus"]


def test_a_second_lease_or_request_on_a_waiting_connection_is_refused(scheduler, connect) -> None:
    with Connection(scheduler.socket) as connection:
        connection.request("lease", cores=100, gpus=2)
        with pytest.raises(RequestRefused, match="has a lease already"):
            connection.request("lease")
        waiter = connect(scheduler)
        waiter.send(wire.Control(b'{"op":"lease","cores":10}'), wire.Control(b'{"op":"status"}'))
        assert "one request at a time" in waiter.expect(wire.Refused).reason
        scheduler.wait_until(lambda status: states(status) == ["held"])


def test_processes_below_the_holder_have_the_quota_of_the_lease_that_they_name(scheduler, child) -> None:
    with Connection(scheduler.socket) as one, Connection(scheduler.socket) as two:
        first = one.request("lease", mem=GIB, among=[scheduler.gpus[0]])["lease"]
        second = two.request("lease", mem=2 * GIB, among=[scheduler.gpus[0]])["lease"]
        assert child(scheduler.gpus[0], NVSHARE_LEASE=first)[0] == GIB
        assert child(scheduler.gpus[0], NVSHARE_LEASE=second)[0] == 2 * GIB
        # one that names none, or somebody else's, belongs to the oldest
        assert child(scheduler.gpus[0], NVSHARE_LEASE="0" * 16)[0] == GIB


def test_the_place_is_kept_until_the_processes_are_gone(scheduler, child) -> None:
    with Connection(scheduler.socket) as holder:
        holder.request("lease", cores=80, among=[scheduler.gpus[0]])
        _, end = child(scheduler.gpus[0])
    status = scheduler.wait_until(lambda status: states(status) == ["quarantined"])
    assert "has not left the GPU" in status["leases"][0]["reason"]
    end()
    scheduler.wait_until(lambda status: status["leases"] == [])


def test_a_lease_is_held_on_after_a_restart_and_newcomers_wait_for_that(scheduler) -> None:
    request = {"cores": 80, "among": [scheduler.gpus[1]]}
    holder = Connection(scheduler.socket)
    granted = holder.request("lease", **request)
    marker = scheduler.socket.with_suffix(".leases")
    assert marker.exists()
    scheduler.kill()
    holder.close()
    scheduler.start()
    with Connection(scheduler.socket, PATIENCE) as newcomer, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(newcomer.request, "lease", **request)
        with Connection(scheduler.socket) as again:
            back = again.request("lease", **request, again={"id": granted["lease"], "gpus": granted["gpus"]})
            assert (back["lease"], back["gpus"]) == (granted["lease"], granted["gpus"])
            scheduler.wait_until(lambda status: states(status) == ["held", "waiting"])
        assert waiting.result(PATIENCE)["lease"] != granted["lease"]
    scheduler.wait_until(lambda status: status["leases"] == [])
    assert not marker.exists()


def test_a_run_around_a_lease_is_named(scheduler) -> None:
    with Connection(scheduler.socket) as run, Connection(scheduler.socket) as holder:
        number = run.request("run", label="outer")["run"]
        assert holder.request("lease", mem=GIB)["inside"] == f"run:{number}"
