"""Start, stop and restart of the scheduler process, and the log lines that people grep for."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys

import pytest

from nvshare.client.connection import Connection, NoScheduler
from nvshare.wire import messages as wire
from tests.support.processes import environment

GIB = 1 << 30


def test_start_is_logged_in_the_known_words(scheduler):
    # WHEN a scheduler has started with no settings of its own
    lines = scheduler.log().splitlines()
    # THEN it says which it uses
    assert "[NVSHARE][INFO]: Scheduling mode: AUTO (default)" in lines
    assert "[NVSHARE][INFO]: Switch time mode: AUTO" in lines
    assert "[NVSHARE][INFO]: Max runtime per task: 300 seconds (default)" in lines


def test_client_life_is_logged_in_the_known_words(scheduler, connect):
    # GIVEN a client that runs and ends
    client = connect(scheduler)
    identity = f"{client.register(scheduler.gpus[0]):016x}"
    client.take_turn()
    client.close()
    scheduler.wait_until(lambda status: not status["clients"])
    # THEN each step is in the log
    log = scheduler.log()
    for text in (
        rf"Registered client {identity} on GPU {scheduler.gpus[0]} with Pod name = none, Pod namespace = none",
        rf"Sent SCHED_ON to client {identity}",
        rf"Sent LOCK_OK to client {identity}",
        rf"Removing client {identity}",
    ):
        assert re.search(re.escape(f"[NVSHARE][INFO]: {text}"), log), text


def test_system_socket_is_open_to_every_user(scheduler):
    assert stat.S_IMODE(scheduler.socket.stat().st_mode) == 0o666


def test_clean_stop_removes_the_socket_and_closes_connections(scheduler, connect):
    # GIVEN a registered client
    client = connect(scheduler)
    client.register(scheduler.gpus[0])
    # WHEN the scheduler is told to stop
    code = scheduler.stop()
    # THEN it ends well, leaves no socket, and the client sees the end of its connection, not a refusal
    assert code == 0
    assert not scheduler.socket.exists()
    assert client.ended()
    assert not any(isinstance(message, wire.Refused) for message in client.received)


def test_stale_socket_is_replaced(scheduler):
    # GIVEN a scheduler that was killed and left its socket file
    scheduler.kill()
    assert scheduler.socket.exists()
    # WHEN it is started again THEN it answers
    scheduler.start()
    assert len(scheduler.status()["gpus"]) == 2


def test_clients_come_back_with_what_they_hold(scheduler, connect):
    # GIVEN a client with memory and a grant
    client = connect(scheduler)
    identity = client.register(scheduler.gpus[0])
    client.request_memory(4 * GIB)
    grant = client.take_turn().grant
    # WHEN the scheduler is killed and started again, and the client registers with what it holds
    scheduler.kill()
    scheduler.start()
    again = connect(scheduler)
    entry = wire.GpuEntry(scheduler.gpus[0], allocated=4 * GIB, resident=4 * GIB, grant=grant)
    # THEN it is the same client, with its bytes and its grant
    assert again.register(entry, previous_id=identity) == identity
    (shown,) = scheduler.status()["clients"]
    assert shown["state"] == "running"
    assert shown["gpus"][0]["allocated"] == 4 * GIB


def test_id_of_another_live_client_is_not_given_away(scheduler, connect, tmp_path):
    # GIVEN a client of another process
    script = (
        "import sys, pathlib\n"
        "from tests.support.wire_client import WireClient\n"
        "client = WireClient(pathlib.Path(sys.argv[1]))\n"
        "print(client.register(sys.argv[2]), flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(scheduler.socket), scheduler.gpus[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert other.stdin is not None
    assert other.stdout is not None
    identity = int(other.stdout.readline())
    # WHEN we claim its id THEN we get one of our own, and it stays
    client = connect(scheduler)
    assert client.register(scheduler.gpus[0], previous_id=identity) != identity
    assert len(scheduler.status()["clients"]) == 2
    other.stdin.close()
    other.stdout.close()
    other.wait()


def test_killed_client_frees_its_grant_even_when_a_child_keeps_the_socket_open(scheduler, connect):
    # GIVEN one card in serial mode, held by a process whose forked child inherited the connection
    scheduler.ask("set", mode="serial")
    ready, told = os.pipe()
    holder = os.fork()
    if holder == 0:
        client = connect(scheduler)
        client.register(scheduler.gpus[0])
        client.take_turn()
        keeper = os.fork()
        if keeper:
            os.write(told, keeper.to_bytes(4, "little"))
        signal.pause()
        os._exit(0)
    keeper = int.from_bytes(os.read(ready, 4), "little")
    waiter = connect(scheduler)
    waiter.register(scheduler.gpus[0])
    waiter.send(wire.ReqLock(0))
    scheduler.wait_until(lambda status: len(status["gpus"][0]["waiting"]) == 1)
    # WHEN the holder is killed
    os.kill(holder, 9)
    # THEN the next one has the grant, though the connection itself is still open
    assert waiter.expect(wire.LockOk).gpu == 0
    os.waitpid(holder, 0)
    os.kill(keeper, 9)
    os.close(ready)
    os.close(told)


def test_ends_itself_when_nobody_is_connected(make_scheduler, connect):
    # GIVEN a scheduler that ends after a fifth of a second alone, and a client that keeps it
    scheduler = make_scheduler()
    scheduler.start(idle_exit=0.2)
    client = connect(scheduler)
    client.register(scheduler.gpus[0])
    # WHEN the client leaves
    client.close()
    # THEN the scheduler ends and leaves no socket
    assert scheduler.process.wait(10) == 0
    assert not scheduler.socket.exists()
    with pytest.raises(NoScheduler):
        Connection(scheduler.socket)


def test_second_scheduler_for_a_card_names_the_first(scheduler, make_scheduler):
    # GIVEN a scheduler, and another that wants one of its cards on another socket
    second = make_scheduler(name="second")
    second.gpus = scheduler.gpus[:1]
    # WHEN it starts THEN it refuses and says who has the card
    with pytest.raises(AssertionError, match="did not start"):
        second.start()
    assert second.process.wait(10) == 2
    assert f"process {scheduler.pid} of " in second.log()
    assert str(scheduler.socket) in second.log()
    # AND the first one goes on
    assert scheduler.status()["gpus"]


def test_holder_whose_socket_is_gone_is_to_be_stopped(scheduler, make_scheduler):
    # GIVEN a scheduler whose socket was removed while it runs, and another that wants one of its cards
    scheduler.socket.unlink()
    second = make_scheduler(name="second")
    second.gpus = scheduler.gpus[:1]
    # WHEN it starts THEN it does not advise to use what is gone
    with pytest.raises(AssertionError, match="did not start"):
        second.start()
    assert second.process.wait(10) == 2
    assert f"stop it first: kill {scheduler.pid}" in second.log()
    assert "NVSHARE_SOCK=" not in second.log()


def test_live_socket_is_not_taken_over(scheduler, make_scheduler):
    # GIVEN a second scheduler with cards of its own but the same socket
    second = make_scheduler(name="second")
    second.socket = scheduler.socket
    # WHEN it starts THEN it refuses, and the first still answers
    with pytest.raises(AssertionError, match="did not start"):
        second.start()
    assert "already listens on" in second.log()
    assert [gpu["uuid"] for gpu in scheduler.status()["gpus"]] == scheduler.gpus
