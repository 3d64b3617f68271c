"""How one scheduler fares with a thousand clients: memory, throughput, and the time from request to grant.

The scheduler is the real process on a real socket (its log goes nowhere); clients are connections of this process.

    python benchmarks/daemon_scale.py [--clients 1000] [--gpus 8] [--seconds 5] [--json FILE|-]

- latency: clients ask at a modest rate, spread evenly; each grant is possible at once. Measured from just before the
  request is written to just after the answer was read.
- echo: the same round trip with a process that only answers, for what the machine itself adds under its present load.
- throughput: clients send request and release as fast as the scheduler takes them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nvshare.client.connection import Connection
from nvshare.wire import messages as wire
from nvshare.wire.codec import Decoder, Encoder

ROOT = Path(__file__).resolve().parents[1]
ENTRY_POINT = ROOT / "tests" / "integration" / "daemon" / "scheduler_with_cards.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
CARD = 80 << 30
RATE = 500  # requests per second in the latency measurement
WARM_UP = 200  # requests before measuring


class Client:
    def __init__(self, path: Path, gpu: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(path))
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.send(wire.Register((wire.GpuEntry(gpu),), name="scale"))
        self.expect(wire.UpdateCoreLimit)
        self.send(wire.MemRequest(0, 1, 1 << 20))
        self.expect(wire.MemAvailable)

    def send(self, *messages: wire.Message) -> None:
        self.socket.sendall(b"".join(self.encoder.encode(message) for message in messages))

    def expect(self, kind: type[wire.Message]) -> wire.Message:
        while True:
            for message in self.decoder.feed(self.socket.recv(65536)):
                if isinstance(message, kind):
                    return message

    def turn(self) -> float:
        """Ask for a turn and give it back; seconds from request to grant."""
        request = self.encoder.encode(wire.ReqLock(0))
        begin = time.perf_counter()
        self.socket.sendall(request)
        grant = self.expect(wire.LockOk)
        taken = time.perf_counter() - begin
        assert isinstance(grant, wire.LockOk)
        self.send(wire.LockReleased(0, grant.grant, wire.ReleaseReason.IDLE))
        return taken


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def paced(once: Callable[[int], float], seconds: float) -> list[float]:
    """What ``once`` returns, called at an even rate; sorted."""
    for number in range(WARM_UP):
        once(number)
    taken = []
    start = time.perf_counter()
    for number in range(int(seconds * RATE)):
        pause = start + number / RATE - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        taken.append(once(number))
    return sorted(taken)


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


class Echo:
    """The same round trip with a process that only answers: what this machine, as loaded as it is, adds to any."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._child = os.fork()
        if self._child == 0:
            self._socket.close()
            while data := theirs.recv(64):
                theirs.sendall(data)
            os._exit(0)
        theirs.close()

    def once(self, _: int) -> float:
        begin = time.perf_counter()
        self._socket.sendall(b"x" * 32)
        self._socket.recv(64)
        return time.perf_counter() - begin

    def close(self) -> None:
        self._socket.close()
        os.waitpid(self._child, 0)


def echo_latency(seconds: float) -> list[float]:
    echo = Echo()
    taken = paced(echo.once, seconds)
    echo.close()
    return taken


def throughput(clients: list[Client], seconds: float) -> int:
    """Events handled within so many seconds: every client always has one request on its way."""
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.send(wire.ReqLock(0))
    handled = len(clients)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in selector.select(1.0):
            client = key.data
            for message in client.decoder.feed(client.socket.recv(65536)):
                if isinstance(message, wire.LockOk):
                    client.send(wire.LockReleased(0, message.grant, wire.ReleaseReason.IDLE), wire.ReqLock(0))
                    handled += 2
    return handled


def start_scheduler(path: Path, gpus: list[str]) -> subprocess.Popen[bytes]:
    """A scheduler with these cards that listens on the socket."""
    ready, told = os.pipe()
    scheduler = subprocess.Popen(
        [sys.executable, ENTRY_POINT, path, ",".join(gpus), str(CARD), str(told)],
        pass_fds=(told,),
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
    os.close(told)
    with os.fdopen(ready, "rb") as answer:
        if not answer.read(1):
            raise SystemExit("the scheduler did not start")
    return scheduler


def measure(count: int, gpus: int, seconds: float) -> dict[str, float]:
    echo = echo_latency(seconds)
    names = [f"GPU-{secrets.token_hex(4)}-0000-0000-0000-{index:012d}" for index in range(gpus)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scheduler.sock"
        scheduler = start_scheduler(path, names)
        try:
            clients = [Client(path, names[index % gpus]) for index in range(count)]
            taken = paced(lambda number: clients[number % count].turn(), seconds)
            begin = processor_seconds(scheduler.pid)
            handled = throughput(clients, seconds)
            busy = processor_seconds(scheduler.pid) - begin
            with Connection(path) as connection:
                asked = time.perf_counter()
                connection.request("status")
                status = time.perf_counter() - asked
            return {
                "clients": count,
                "gpus": gpus,
                "rss_mb": resident(scheduler.pid) / 1e6,
                "events_per_second": handled / seconds,
                "events_per_processor_second": handled / busy,
                "request_to_grant_p50_ms": statistics.median(taken) * 1e3,
                "request_to_grant_p99_ms": quantile(taken, 0.99) * 1e3,
                "echo_p99_ms": quantile(echo, 0.99) * 1e3,
                "request_to_grant_max_ms": taken[-1] * 1e3,
                "status_ms": status * 1e3,
            }
        finally:
            scheduler.terminate()
            scheduler.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there, - for standard output")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, arguments.clients + 256), hard))
    figures = measure(arguments.clients, arguments.gpus, arguments.seconds)
    if arguments.json == "-":
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:30} {value:12.2f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
