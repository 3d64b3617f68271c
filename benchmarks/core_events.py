"""How many events per second go through the scheduler core on one CPU, with 1000 clients on 8 GPUs.

``python benchmarks/core_events.py [--events 200000] [--json FILE]``. One line per kind of load; exit code 1 when one is
below the floor. Events are made beforehand where the answer does not decide them, so that mostly the core is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.policy.membership import Process
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Cores, Mode, Settings, SwitchTime

GPUS = 8
CLIENTS = 1000
GIB = 1 << 30
MIB = 1 << 20
FLOOR = 20_000  # events per second
MOVING = "locks, memory takes turns"
TURN_TAKERS = 8  # clients on a card that take compute turns
FLOOR_MOVING = 2_000  # where each event plans the memory of a card anew


def node(mode: Mode) -> Scheduler:
    scheduler = Scheduler(Settings(mode=mode))
    for index in range(GPUS):
        scheduler.handle(e.GpuAdded(0.0, gpu(index), 80 * GIB, "A100-80G"))
    for client in range(CLIENTS):
        scheduler.handle(
            e.ClientRegistered(
                0.0, client + 1, process(client, str(client // 2)), (e.HeldGpu(gpu(client)),), mem_limit=4 * GIB
            )
        )
        scheduler.handle(e.ContextMeasured(0.0, client + 1, gpu(client), 64 * MIB))
        scheduler.handle(e.MemoryRequested(0.0, client + 1, gpu(client), 0, 0))
    scheduler.handle(e.CardsSampled(0.0, CLIENTS))
    return scheduler


def process(client: int, pod: str | None = None) -> Process:
    return Process(client, (client,), pod)


def gpu(client: int) -> str:
    return f"GPU-{client % GPUS:08x}"


def free_running(count: int) -> Iterator[e.Event]:
    """Auto mode, everything fits: clients ask, are granted at once, and release; grants count up with the requests."""
    for i in range(count // 2):
        client, grant, now = 1 + i % CLIENTS, i + 1, i * 1e-4
        yield e.LockRequested(now, client, gpu(client - 1))
        yield e.LockReleased(now, client, gpu(client - 1), grant)


def memory(count: int) -> Iterator[e.Event]:
    """Clients allocate and free, and report what they use."""
    released = [0] * CLIENTS
    for i in range(count // 3):
        client, now = i % CLIENTS, i * 1e-4
        yield e.MemoryRequested(now, client + 1, gpu(client), i, 2 * MIB)
        released[client] += 2 * MIB
        yield e.MemoryUpdated(now, client + 1, gpu(client), released[client], 0)
        yield e.UsageReported(now, client + 1, gpu(client), now, i, 1024)


def replay(mode: Mode, events: Callable[[int], Iterator[e.Event]], count: int) -> float:
    scheduler, prepared = node(mode), list(events(count))
    handle = scheduler.handle
    began = time.perf_counter()
    for event in prepared:
        handle(event)
    elapsed = time.perf_counter() - began
    scheduler.validate()
    return len(prepared) / elapsed


def turns(count: int) -> float:
    """Serial mode, everybody always waits: whoever is granted releases and asks again, timers and all."""
    scheduler = node(Mode.SERIAL)
    handle = scheduler.handle
    holders: deque[c.Grant] = deque()
    now, handled = 0.0, 0

    def send(event: e.Event) -> None:
        for command in handle(event):
            if type(command) is c.Grant and not (holders and holders[-1].grant == command.grant):
                holders.append(command)

    for client in range(CLIENTS):
        send(e.LockRequested(now, client + 1, gpu(client)))
    last: dict[str, int] = {}
    began = time.perf_counter()
    while handled < count:
        grant = holders.popleft()
        if last.get(grant.gpu) == grant.grant:
            continue
        last[grant.gpu] = grant.grant
        now += 1e-4
        send(e.LockReleased(now, grant.client, grant.gpu, grant.grant, drain=0.002))
        send(e.LockRequested(now, grant.client, grant.gpu))
        handled += 2
    elapsed = time.perf_counter() - began
    scheduler.validate()
    return handled / elapsed


def memory_turns(count: int) -> float:
    """Auto mode, 10 clients of 12 GiB on each card of 80: sets that fit take turns and their memory moves."""
    scheduler = Scheduler(Settings(quantum=30.0, switch_time=SwitchTime.FIXED))
    queue: deque[e.Event] = deque(e.GpuAdded(0.0, gpu(index), 80 * GIB, "A100-80G") for index in range(GPUS))
    for client in range(1, 10 * GPUS + 1):
        uuid = gpu(client)
        queue.append(e.ClientRegistered(0.0, client, process(client), (e.HeldGpu(uuid),), can_swap=True))
        queue.append(e.MemoryRequested(0.0, client, uuid, 1, 12 * GIB))
        queue.append(e.LockRequested(0.0, client, uuid))
    now, wake, handled = 0.0, 0.0, 0
    began = time.perf_counter()
    while handled < count:
        if not queue:
            now = wake
            queue.append(e.TimerFired(now))
        for command in scheduler.handle(queue.popleft()):
            if type(command) is c.SetResidency:
                client, uuid, target = command.client, command.gpu, command.target
                queue.append(e.MemoryUpdated(now, client, uuid, 0, target, 12 * GIB - target, 0, command.number))
            elif type(command) is c.Drop:
                queue.append(e.LockReleased(now, command.client, command.gpu, command.grant))
                queue.append(e.LockRequested(now, command.client, command.gpu))
            elif type(command) is c.SampleCards:
                queue.appendleft(e.CardsSampled(now, command.sample))
            elif type(command) is c.WakeAt and command.at is not None:
                wake = command.at
        handled += 1
    elapsed = time.perf_counter() - began
    scheduler.validate()
    return handled / elapsed


def compute_turns(count: int) -> float:
    """Everybody has a quota and always wants more: turns are given, end, and are asked for anew; timers and all."""
    scheduler = Scheduler(Settings())
    queue: deque[e.Event] = deque(e.GpuAdded(0.0, gpu(index), 80 * GIB, "A100-80G") for index in range(GPUS))
    for client in range(1, TURN_TAKERS * GPUS + 1):
        uuid = gpu(client)
        quota = 10 + client % 7 * 15
        queue.append(e.ClientRegistered(0.0, client, process(client), (e.HeldGpu(uuid),), core_limit=Cores(cap=quota)))
        queue.append(e.LockRequested(0.0, client, uuid))
        queue.append(e.SliceRequested(0.0, client, uuid))
    now, wake, handled = 0.0, 0.0, 0
    ends: dict[tuple[int, str], tuple[float, c.GiveSlice]] = {}
    began = time.perf_counter()
    while handled < count:
        if not queue:
            due = min(((at, key) for key, (at, _) in ends.items()), default=(wake, None))
            now = max(now, min(due[0], wake))
            if due[1] is not None and due[0] <= now:
                turn = ends.pop(due[1])[1]
                queue.append(e.SliceOver(now, turn.client, turn.gpu, turn.number, turn.length or 0.0, 0.04, wants=True))
            else:
                queue.append(e.TimerFired(now))
        for command in scheduler.handle(queue.popleft()):
            if type(command) is c.GiveSlice and command.length is not None:
                ends[command.client, command.gpu] = (now + command.length, command)
            elif type(command) is c.EndSlice:
                turn = ends[command.client, command.gpu][1]
                ends[command.client, command.gpu] = (now, turn)
            elif type(command) is c.WakeAt and command.at is not None:
                wake = command.at
        handled += 1
    elapsed = time.perf_counter() - began
    scheduler.validate()
    return handled / elapsed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000, help="per kind of load (default: 200000)")
    parser.add_argument("--json", type=Path, help="write the rates to this file too")
    options = parser.parse_args()
    rates = {
        "locks, all running freely": replay(Mode.AUTO, free_running, options.events),
        "locks, all waiting for turns": turns(options.events),
        MOVING: memory_turns(options.events // 10),
        "compute turns with quotas": compute_turns(options.events // 2),
        "memory and usage": replay(Mode.AUTO, memory, options.events),
    }
    floors = {load: FLOOR_MOVING if load == MOVING else FLOOR for load in rates}
    print(f"scheduler core, {CLIENTS} clients on {GPUS} GPUs, one CPU (80 where memory, 64 where compute takes turns)")
    for load, rate in rates.items():
        print(f"  {load:<30} {rate:>10,.0f} events/s (at least {floors[load]:,})")
    if options.json:
        options.json.write_text(json.dumps({"clients": CLIENTS, "gpus": GPUS, "events_per_s": rates}, indent=2) + "\n")
    return 0 if all(rate >= floors[load] for load, rate in rates.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
