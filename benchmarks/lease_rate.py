"""What leases cost: how many a second the scheduler gives out while many are held, and what one adds to a start.

    python benchmarks/lease_rate.py [--held 1000] [--seconds 10] [--json FILE]

Cards are simulated; the scheduler, its socket and the supervisors are real.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nvshare.client.connection import Connection
from nvshare.gpu import sim
from nvshare.launch.address import Address, find_cards
from nvshare.launch.leasing import Site, wish_for
from nvshare.launch.running import start

RATE = 100  # leases a second that must be sustained
STARTS = 40


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_lease(socket: Path) -> float:
    """Ask, get, give back; seconds until it was granted."""
    began = time.perf_counter()
    with Connection(socket) as connection:
        connection.request("lease", mem=1 << 20, cores=None, label="bench")
        return time.perf_counter() - began


def at_a_rate(socket: Path, pid: int, rate: float | None, seconds: float) -> dict[str, float]:
    """Leases one after the other, at a rate or as fast as can be."""
    waits: list[float] = []
    began, before = time.perf_counter(), cpu_seconds(pid)
    while (now := time.perf_counter()) < began + seconds:
        if rate is not None and (early := began + len(waits) / rate - now) > 0:
            time.sleep(early)
        waits.append(one_lease(socket))
    elapsed = time.perf_counter() - began
    return {
        "leases_per_s": len(waits) / elapsed,
        "scheduler_cpu_percent": 100 * (cpu_seconds(pid) - before) / elapsed,
        "median_ms": 1000 * statistics.median(waits),
        "p99_ms": 1000 * sorted(waits)[int(0.99 * len(waits))],
    }


def starts(site: Site) -> dict[str, float]:
    """What a lease and its supervisors add to starting an interpreter."""
    command = [sys.executable, "-I", "-S", "-c", "pass"]
    bare: list[float] = []
    supervised: list[float] = []
    leased: list[float] = []
    waits: list[float] = []
    for _ in range(STARTS):
        began = time.perf_counter()
        subprocess.run(command, check=True)
        bare.append(time.perf_counter() - began)
        for address, times in ((Site(site.address, None), supervised), (site, leased)):
            began = time.perf_counter()
            worker = start(command, address, wish_for(1 << 20, None))
            granted = worker.wait_granted()
            worker.wait()
            times.append(time.perf_counter() - began)
        waits.append(granted.waited)
    median = {name: 1000 * statistics.median(times) for name, times in (("bare", bare), ("supervised", supervised))}
    return {
        "interpreter_ms": median["bare"],
        "supervised_ms": median["supervised"],
        "supervised_with_lease_ms": 1000 * statistics.median(leased),
        "lease_adds_ms": 1000 * statistics.median(leased) - median["supervised"],
        "lease_wait_ms": 1000 * statistics.median(waits),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--held", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, arguments.held + 256)), hard))
    node = sim.up("8xT4", name=f"lease-rate-{os.getpid()}")
    held: list[Connection] = []
    try:
        address = Address(node.socket, node.env(), node.name)
        cards = find_cards(address)
        with Connection(node.socket) as connection:
            pid = connection.status()["scheduler"]["pid"]
        result: dict[str, Any] = {"start": starts(Site(address, cards))}
        for _ in range(arguments.held):
            held.append(Connection(node.socket))
            held[-1].request("lease", label="held")
        result["held"] = len(held)
        result["sustained"] = at_a_rate(node.socket, pid, RATE, arguments.seconds)
        result["as_fast_as_can_be"] = at_a_rate(node.socket, pid, None, arguments.seconds)
    finally:
        for connection in held:
            connection.close()
        sim.down(node.name)
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
