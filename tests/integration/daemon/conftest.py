"""A real scheduler process on a real socket, and clients made of wire messages."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from nvshare.client.connection import Connection
from nvshare.wire import messages as wire
from nvshare.wire.codec import Decoder, Encoder, Unknown

GIB = 1 << 30
PATIENCE = 10.0
ENTRY_POINT = Path(__file__).with_name("scheduler_with_cards.py")
SOURCE = Path(__file__).resolve().parents[3] / "src"

M = TypeVar("M", bound=wire.Message)


class SchedulerProcess:
    """One scheduler; start it again after ``kill`` or ``stop`` to have it restarted on the same socket."""

    def __init__(self, directory: Path, cards: int, size: int, environment: dict[str, str]) -> None:
        unique = secrets.token_hex(4)  # claims on cards are seen by the whole machine
        self.socket = directory / "scheduler.sock"
        self.gpus = [f"GPU-{unique}-0000-0000-0000-{index:012d}" for index in range(cards)]
        self._size = size
        self._environment = environment
        self._log = directory / "scheduler.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, idle_exit: float = 0.0) -> SchedulerProcess:
        ready, told = os.pipe()
        arguments = [str(self.socket), ",".join(self.gpus), str(self._size), str(told), str(idle_exit)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), **self._environment}
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ENTRY_POINT), *arguments], stderr=log, pass_fds=(told,), env=environment
            )
        os.close(told)
        listening = os.read(ready, 1)
        os.close(ready)
        assert listening, f"the scheduler did not start:\n{self.log()}"
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as a service manager would; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def ask(self, op: str, **fields: object) -> dict[str, object]:
        with Connection(self.socket) as connection:
            return connection.request(op, **fields)

    def status(self) -> dict[str, object]:
        return self.ask("status")["status"]

    def wait_until(self, holds: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        """Ask for the status until it shows what is expected; fails with the last one."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status = self.status()
            if holds(status):
                return status
            assert time.monotonic() < deadline, f"not reached: {status}"


class WireClient:
    """An application as the scheduler sees one: a connection and messages."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(path))
        self.encoder = Encoder()
        self.received: list[wire.Message] = []
        self._decoder = Decoder(limit=wire.MAX_REPLY)
        self._waiting: list[wire.Message] = []
        self.id = 0

    def send(self, *messages: wire.Message) -> None:
        self.send_bytes(b"".join(self.encoder.encode(message) for message in messages))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def register(self, *gpus: str | wire.GpuEntry, **fields: object) -> int:
        entries = tuple(gpu if isinstance(gpu, wire.GpuEntry) else wire.GpuEntry(gpu) for gpu in gpus)
        self.send(wire.Register(entries, **fields))
        self.id = self.expect(wire.SchedOn).client_id
        return self.id

    def expect(self, kind: type[M]) -> M:
        """The next message of this kind; others before it are passed over."""
        while True:
            while self._waiting:
                message = self._waiting.pop(0)
                if isinstance(message, kind):
                    return message
            data = self.socket.recv(65536)
            assert data, f"connection ended before {kind.__name__}; received {self.received}"
            for message in self._decoder.feed(data):
                assert not isinstance(message, Unknown)
                self.received.append(message)
                self._waiting.append(message)

    def ended(self) -> bool:
        """Read to the end; True when the scheduler closed the connection."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def request_memory(self, size: int, gpu: int = 0, request: int = 1) -> wire.Message:
        self.send(wire.MemRequest(gpu, request, size))
        while True:
            message = self.expect(wire.Message)
            if isinstance(message, (wire.MemAvailable, wire.MemDenied)):
                return message

    def take_turn(self, gpu: int = 0) -> wire.LockOk:
        self.send(wire.ReqLock(gpu))
        return self.expect(wire.LockOk)

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def make_scheduler(tmp_path: Path) -> Iterator[Callable[..., SchedulerProcess]]:
    made: list[SchedulerProcess] = []

    def make(cards: int = 2, size: int = 16 * GIB, name: str = "node", **environment: str) -> SchedulerProcess:
        directory = tmp_path / name
        directory.mkdir()
        made.append(SchedulerProcess(directory, cards, size, environment))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.kill()


@pytest.fixture
def scheduler(make_scheduler: Callable[..., SchedulerProcess]) -> SchedulerProcess:
    """A scheduler with two cards of 16 GiB."""
    return make_scheduler().start()


@pytest.fixture
def connect() -> Iterator[Callable[[SchedulerProcess], WireClient]]:
    made: list[WireClient] = []

    def make(scheduler: SchedulerProcess) -> WireClient:
        made.append(WireClient(scheduler.socket))
        return made[-1]

    yield make
    for client in made:
        client.close()
