"""An application made of wire messages."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, TypeVar

from nvshare.wire import messages as wire
from nvshare.wire.codec import Decoder, Encoder, Unknown

PATIENCE = 10.0

M = TypeVar("M", bound=wire.Message)


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

    def register(self, *gpus: str | wire.GpuEntry, **fields: Any) -> int:
        entries = tuple(gpu if isinstance(gpu, wire.GpuEntry) else wire.GpuEntry(gpu) for gpu in gpus)
        self.send(wire.Register(entries, **fields))
        self.id = self.expect(wire.SchedOn).client_id
        return self.id

    def expect(self, kind: type[M]) -> M:
        """The next message of this kind; others before it are passed over."""
        while True:
            while self._waiting:
                first = self._waiting.pop(0)
                if isinstance(first, kind):
                    return first
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
