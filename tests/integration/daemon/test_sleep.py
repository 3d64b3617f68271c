"""Sleep over the socket: a real scheduler, ``nvsharectl``, and tasks made of wire messages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nvshare.client.connection import RequestRefused
from nvshare.wire import messages as wire
from tests.support.processes import environment

GIB = 1 << 30


def sleepable(client, scheduler, **fields):
    """Registers, and says that it can sleep."""
    client.register(scheduler.gpus[0], flags=wire.FLAG_CAN_SWAP, **fields)
    client.send(wire.Sleepable())
    return client


def fall_asleep(client) -> wire.Sleep:
    """Gives its memory up, as it is told, and sleeps."""
    target = client.expect(wire.Residency)
    assert target.target == 0
    client.send(wire.MemUpdate(0, 0, 0, applied=target.number))
    order = client.expect(wire.Sleep)
    client.send(wire.Slept(order.order))
    return order


def ctl(scheduler, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "nvshare.cli.ctl", *arguments]
    env = environment(NVSHARE_SOCK=str(scheduler.socket))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_task_is_put_to_sleep_and_wakes_when_it_wants_its_card(scheduler, connect):
    # GIVEN a task that can sleep
    client = sleepable(connect(scheduler), scheduler)
    # WHEN nvsharectl puts it to sleep
    code, out, _ = ctl(scheduler, "sleep", "--pid", str(os.getpid()))
    assert (code, out) == (
        0,
        f"client {client.id:016x} (pid {os.getpid()}) sleeps when its memory has left its GPUs\n",
    )
    order = fall_asleep(client)
    assert (order.order, order.lock_ms) == (1, 5000)
    # THEN status shows it with nothing on its card
    shown = scheduler.status()["clients"][0]
    assert (shown["state"], shown["sleep"], shown["gpus"][0]["context"]) == ("asleep", "asleep", 0)
    # AND it is woken when it asks
    client.send(wire.ReqWake(order.order))
    assert client.expect(wire.Wake).order == 1
    client.send(wire.Awake(1))
    client.expect(wire.LockOk)
    assert scheduler.status()["clients"][0]["sleep"] == "awake"
    assert f"Client {client.id:016x} is awake" in scheduler.log()


def test_nvsharectl_wakes_it(scheduler, connect):
    client = sleepable(connect(scheduler), scheduler)
    scheduler.ask("sleep", target={"client": f"{client.id:016x}"})
    fall_asleep(client)
    assert scheduler.status()["clients"][0]["sleep"] == "asleep"
    code, out, _ = ctl(scheduler, "wake", "--client", f"{client.id:016x}")
    assert (code, out) == (0, f"client {client.id:016x} (pid {os.getpid()}) wakes\n")
    client.expect(wire.Wake)


@pytest.mark.parametrize(
    ("bar", "why"),
    [
        (wire.BarReason.MANAGED, "it has managed memory"),
        (200, "its library says why, and this scheduler is too old to know"),
        (None, "its library does not know how, or has not said yet"),
    ],
)
def test_why_a_task_cannot_sleep_is_said(scheduler, connect, bar, why):
    client = connect(scheduler)
    client.register(scheduler.gpus[0], flags=wire.FLAG_CAN_SWAP)
    if bar is not None:
        client.send(wire.Sleepable(bar))
    with pytest.raises(RequestRefused, match=f"client {client.id:016x} cannot sleep: {why}"):
        scheduler.ask("sleep", target={"pid": os.getpid()})
    assert scheduler.status()["clients"][0]["cannot_sleep"] == why


def test_nobody_by_that_name_is_an_error(scheduler):
    code, out, err = ctl(scheduler, "sleep", "--pid", "1")
    assert (code, out) == (2, "")
    assert err == "[NVSHARE][FATAL]: there is no pid 1; nvsharectl status shows who is there\n"
    assert ctl(scheduler, "sleep")[0] == 2


def test_a_sleeper_sleeps_on_when_the_scheduler_is_restarted(scheduler, connect):
    # GIVEN a scheduler that is new to a task
    gpu = wire.GpuEntry(scheduler.gpus[0], GIB, 0)
    client = connect(scheduler)
    client.register(gpu, flags=wire.FLAG_CAN_SWAP | wire.FLAG_ASLEEP)
    client.send(wire.Sleepable(0, GIB // 2))
    assert scheduler.status()["clients"][0]["state"] == "asleep"
    # WHEN it wants its card
    client.send(wire.ReqWake(0))
    # THEN its context comes first, then its memory, then its turn
    assert client.expect(wire.Wake).order == 0
    client.send(wire.Awake(0))
    target = client.expect(wire.Residency)
    assert target.target == GIB
    client.send(wire.MemUpdate(0, 0, GIB, applied=target.number))
    client.expect(wire.LockOk)


def test_idle_tasks_sleep_after_the_time_that_is_set(make_scheduler, connect):
    scheduler = make_scheduler(NVSHARE_SLEEP_AFTER="1s").start()
    client = sleepable(connect(scheduler), scheduler)
    fall_asleep(client)


def test_settings_of_sleep_are_logged(make_scheduler):
    scheduler = make_scheduler(
        NVSHARE_SLEEP_AFTER="off", NVSHARE_CARD_MEMORY="13GiB", NVSHARE_CONTEXTS_INSIDE="1"
    ).start()
    assert "Sleep after: off" in scheduler.log()
    assert "Declared memory per card: 13312 MiB, contexts inside" in scheduler.log()
    assert [gpu["contexts_inside"] for gpu in scheduler.status()["gpus"]] == [True, True]


def test_messages_that_cannot_be_meant_end_the_connection(scheduler, connect):
    client = sleepable(connect(scheduler), scheduler)
    client.send(wire.Slept(1, outcome=9))
    assert "SLEPT with outcome 9" in client.expect(wire.Refused).reason
