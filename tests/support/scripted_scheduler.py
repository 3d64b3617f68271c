"""A scheduler that a test plays, message by message."""

from __future__ import annotations

import socket
from collections import deque
from pathlib import Path
from typing import TypeVar

from nvshare.wire.codec import Decoder, Encoder, Unknown
from nvshare.wire.messages import Message, Sleepable, Usage
from tests.support.processes import Program

PATIENCE = 20.0
AT_ANY_TIME = (Usage, Sleepable)

M = TypeVar("M", bound=Message)


class ScriptedScheduler:
    """A scheduler that does what a test says, message by message, for one client at a time.

    ``expect`` fails when another message comes. USAGE may come at any time and is skipped, and so is SLEEPABLE, unless
    it is expected.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.settimeout(PATIENCE)
        self._listening.bind(str(path))
        self._listening.listen()
        self._client: socket.socket | None = None

    def accept(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client, _ = self._listening.accept()
        self._client.settimeout(PATIENCE)
        self._encoder, self._decoder = Encoder(), Decoder()
        self._messages: deque[Message | Unknown] = deque()

    def send(self, *messages: Message) -> None:
        assert self._client is not None
        self._client.sendall(b"".join(map(self._encoder.encode, messages)))

    def receive(self) -> Message | Unknown | None:
        """The next message; None when the client hung up."""
        assert self._client is not None
        while not self._messages:
            data = self._client.recv(65536)
            if not data:
                return None
            self._messages.extend(self._decoder.feed(data))
        return self._messages.popleft()

    def expect(self, kind: type[M]) -> M:
        while True:
            message = self.receive()
            if isinstance(message, kind):
                return message
            assert isinstance(message, AT_ANY_TIME), f"expected {kind.__name__}, got {message}"

    def poll(self, seconds: float) -> Message | Unknown | None:
        """The next message, if one comes in time."""
        assert self._client is not None
        self._client.settimeout(seconds)
        try:
            return self.receive()
        except TimeoutError:
            return None
        finally:
            self._client.settimeout(PATIENCE)

    def ended(self) -> bool:
        """Does the client hang up?"""
        while isinstance(message := self.receive(), AT_ANY_TIME):
            pass
        return message is None

    def quiet(self, seconds: float) -> bool:
        """Does nothing but USAGE come for a while?"""
        assert self._client is not None
        self._client.settimeout(seconds)
        try:
            while isinstance(self.receive(), AT_ANY_TIME):
                pass
        except TimeoutError:
            return True
        finally:
            self._client.settimeout(PATIENCE)
        return False

    def asked_before(self, program: Program) -> bool:
        """Does the client ask for a turn before the program answers?"""
        while not program.has_line():
            if not self.quiet(0.01):
                return True
        return False

    def close(self) -> None:
        """As if killed."""
        if self._client is not None:
            self._client.close()
        self._listening.close()
        self.path.unlink(missing_ok=True)
