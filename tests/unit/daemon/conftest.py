"""The daemon in memory: a loop whose clock is turned by hand, and transports that keep what was sent."""

from __future__ import annotations

import heapq
import itertools
import queue
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Settings
from nvshare.daemon.connection import ClientConnection
from nvshare.daemon.server import Daemon
from nvshare.gpu.cards import Card, ProcessMemory
from nvshare.wire import messages as wire
from nvshare.wire.codec import Decoder

GIB = 1 << 30
GPUS = tuple(f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(2))


class Handle:
    def __init__(self, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._callback: Callable[..., None] | None = callback
        self._args = args

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        if self._callback is not None:
            self._callback(*self._args)


class HandTurnedLoop:
    """As much of an event loop as the daemon uses."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = itertools.count()
        self._from_threads: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
        self.readers: dict[int, Callable[[], None]] = {}

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[..., None], *args: Any) -> Handle:
        handle = Handle(callback, args)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Handle:
        return self.call_at(self._now + delay, callback, *args)

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: Any) -> None:
        self._from_threads.put((callback, args))

    def run_next_from_thread(self) -> None:
        """Wait for a thread to hand something over, and run it."""
        callback, args = self._from_threads.get(timeout=10)
        callback(*args)

    def add_reader(self, descriptor: int, callback: Callable[[], None]) -> None:
        self.readers[descriptor] = callback

    def remove_reader(self, descriptor: int) -> None:
        self.readers.pop(descriptor, None)

    def advance(self, seconds: float) -> None:
        """Turn the clock, firing what falls due on the way."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, handle = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            handle.run()
        self._now = end


class KeepingTransport:
    """A transport that keeps what is sent; ``reads = False`` makes a peer that does not read."""

    def __init__(self, kernel_side: socket.socket) -> None:
        self._socket = kernel_side
        self.sent = bytearray()
        self.closed = False
        self.reading = True
        self.reads = True

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self._socket

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else len(self.sent)

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def messages(self) -> list[wire.Message]:
        return list(Decoder(limit=wire.MAX_REPLY).feed(bytes(self.sent)))  # type: ignore[arg-type]


class GivenCards:
    def __init__(self) -> None:
        self.taken: ProcessMemory = {}

    def cards(self) -> list[Card]:
        return [Card(uuid, "Test card", 16 * GIB) for uuid in GPUS]

    def process_memory(self) -> ProcessMemory:
        return self.taken


class InMemory:
    """A daemon with the real core, and connections to it."""

    def __init__(self, settings: Settings = Settings(), **options: Any) -> None:  # noqa: B008 (frozen)
        self.loop = HandTurnedLoop()
        self.core = Scheduler(settings)
        self.daemon = Daemon(self.core, GivenCards(), self.loop, **options)  # type: ignore[arg-type]
        self._pair = socket.socketpair()

    def connect(self) -> tuple[ClientConnection, KeepingTransport]:
        connection, transport = ClientConnection(self.daemon), KeepingTransport(self._pair[0])
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport

    def close(self) -> None:
        self.daemon.close()
        for end in self._pair:
            end.close()


@pytest.fixture
def in_memory() -> Iterator[Callable[..., InMemory]]:
    made: list[InMemory] = []

    def make(**options: Any) -> InMemory:
        made.append(InMemory(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()
