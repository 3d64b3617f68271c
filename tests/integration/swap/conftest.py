"""A real process on a simulated node whose memory is moved by a scheduler that does what the test says."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nvshare.gpu import sim
from nvshare.wire.codec import Decoder, Encoder
from nvshare.wire.messages import (
    DropLock,
    LockOk,
    LockReleased,
    MemAvailable,
    MemRequest,
    MemUpdate,
    Message,
    PrepareSwapOut,
    Register,
    ReqLock,
    Residency,
    SchedOn,
    UpdateLimit,
    Usage,
)
from tests.support.nodes import MakeNode
from tests.support.processes import Program, Run, preloaded

PROGRAM = Path(__file__).with_name("swap_program.py")
CLIENT = 0x0077_0000_0000_0001
CARD = 13904 << 20
UNLIMITED = (1 << 64) - 1
PATIENCE = 30.0

T = TypeVar("T")


class Mover:
    """A scheduler for one client. Requests for memory are granted at once; turns and targets come from the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory = MemUpdate(0, 0, 0)
        self.updates: list[MemUpdate] = []
        self.usage = Usage(0, 0, 0, 0)
        self.hello: Register | None = None
        self.allocated = 0
        self.release: LockReleased | None = None  # the last one
        self.waits = False  # the client asked for a turn and has none
        self.grant_number = 0
        self.target_number = 0
        self._granted = False
        self._changed = threading.Condition()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._client: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                with self._changed:
                    self._client, self._encoder = client, Encoder()
                decoder = Decoder()
                while data := client.recv(65536):
                    for message in decoder.feed(data):
                        self._handle(message)

    def _handle(self, message: Any) -> None:
        with self._changed:
            if isinstance(message, Register):
                self.hello = message
                self.allocated = message.gpus[0].allocated
                self.memory = MemUpdate(0, 0, message.gpus[0].resident)
                self._send(SchedOn(CLIENT), UpdateLimit(0, 0, CARD))
            elif isinstance(message, MemRequest):
                self.allocated += message.bytes
                self._send(MemAvailable(0, message.request))
            elif isinstance(message, MemUpdate):
                self.allocated -= message.released - self.memory.released
                self.memory = message
                self.updates.append(message)
            elif isinstance(message, ReqLock):
                self.waits = True
            elif isinstance(message, LockReleased):
                assert message.grant == self.grant_number, message
                self._granted, self.release = False, message
            elif isinstance(message, Usage):
                self.usage = message
            self._changed.notify_all()

    def _send(self, *messages: Message) -> None:
        assert self._client is not None
        self._client.sendall(b"".join(map(self._encoder.encode, messages)))

    def until(self, condition: Callable[[], T]) -> T:
        """Wait until what the client said makes it true."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), f"last heard: {self.memory}, {self.allocated} allocated"
            return condition()

    def set_target(self, target: int) -> None:
        with self._changed:
            self.target_number += 1
            self._send(Residency(0, self.target_number, target))

    def swap_out(self, target: int = 0) -> None:
        """Take the turn away if there is one, then the memory, and wait until it is gone."""
        self.drop()
        self.set_target(target)
        self.until(lambda: self.memory.applied == self.target_number and self.memory.resident <= target)

    def swap_in(self) -> None:
        self.set_target(UNLIMITED)
        self.until(lambda: self.memory.applied == self.target_number and self.memory.resident == self.allocated)

    def grant(self) -> None:
        with self._changed:
            self.grant_number += 1
            self._granted, self.waits = True, False
            self._send(LockOk(0, self.grant_number))

    def prepare(self, size: int) -> None:
        with self._changed:
            self._send(PrepareSwapOut(0, size))

    def drop(self, deadline_ms: int = 10_000) -> None:
        with self._changed:
            if self._granted:
                self._send(DropLock(0, self.grant_number, deadline_ms=deadline_ms))
        self.until(lambda: not self._granted)

    def in_turn(self, task: Program, command: str, *arguments: Any) -> Any:
        """Let the task do something for which it has to ask for a turn; its answer."""
        task.send(command, *arguments)
        self.until(lambda: self.waits)
        self.grant()
        return task.answer()

    def close(self) -> None:
        """As if killed."""
        self.path.unlink(missing_ok=True)
        self._listening.close()
        if self._client is not None:
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)
            self._client.close()


@pytest.fixture
def node(simulated: MakeNode) -> sim.SimNode:
    return simulated("1xT4", 20)


@pytest.fixture
def held(node: sim.SimNode) -> Callable[[], int]:
    """Bytes of allocations on the card: all but what contexts take."""

    def count() -> int:
        gpu = node.counters()[0]
        contexts = sum(bool(each["context"]) for each in gpu["contexts"])
        return int(gpu["memory_used"]) - contexts * (1009 << 20)

    return count


@pytest.fixture
def mover(node: sim.SimNode) -> Iterator[Mover]:
    mover = Mover(node.socket)
    yield mover
    mover.close()


@pytest.fixture
def start(node: sim.SimNode, run_program: Run) -> Callable[..., Program]:
    """Start swap_program.py under the library, with these variables."""

    def begin(**variables: str) -> Program:
        return run_program([sys.executable, PROGRAM], preloaded(node, **variables))

    return begin
