"""A blocking connection to a scheduler, for the commands."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

from nvshare import procfs
from nvshare.wire import messages as wire
from nvshare.wire.codec import Decoder, Encoder, ProtocolError, VersionMismatch

_BUSY_PAUSE = 0.005  # seconds
_CREDENTIALS = struct.Struct("3i")  # as the kernel tells them: process, user, group


class SchedulerError(Exception):
    """Base of all that can go wrong with a scheduler; the text says what to do."""


class NoScheduler(SchedulerError):
    """Nobody answers on the socket, or the connection broke."""


class RequestRefused(SchedulerError):
    """The scheduler said no; its reason is the text."""


class OtherVersion(SchedulerError):
    """The scheduler speaks another version of the protocol."""


class Connection:
    """One connection. Requests are answered in order; not for several threads at once."""

    def __init__(self, path: Path, timeout: float = 5.0) -> None:
        """Connect; ``NoScheduler`` when nobody listens there."""
        self.path = path
        self._encoder = Encoder()
        self._decoder = Decoder(limit=wire.MAX_REPLY)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            self._connect(time.monotonic() + timeout)
        except OSError as error:
            self._socket.close()
            raise NoScheduler(
                f"no scheduler answers on {path} ({error.strerror or error}); start one with: nvshare-scheduler --user"
                " (or as root: nvshare-scheduler), or let `nvshare run` do it"
            ) from error

    def _connect(self, deadline: float) -> None:
        while True:
            try:
                self._socket.connect(str(self.path))
                return
            except BlockingIOError:  # its queue of new connections is full: it is there, and busy
                if time.monotonic() > deadline:
                    raise
                time.sleep(_BUSY_PAUSE)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def patience(self, timeout: float | None) -> None:
        """How many seconds an answer may take from now on; None: as long as it takes."""
        self._socket.settimeout(timeout)

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask and wait for the answer; ``RequestRefused`` carries the scheduler's reason."""
        body = json.dumps({"op": op, **fields}).encode()
        try:
            # It may have said why before it hung up.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall(self._encoder.encode(wire.Control(body)))
            answer = self._read_reply()
        except TimeoutError as error:
            raise NoScheduler(f"the scheduler on {self.path} does not answer ({self._why_silent()})") from error
        except OSError as error:
            raise NoScheduler(f"the scheduler on {self.path} does not answer ({error})") from error
        if not answer.get("ok"):
            raise RequestRefused(str(answer.get("error", "refused without a reason")))
        return answer

    @property
    def listener(self) -> int:
        """The process on the other side; 0 where the kernel does not tell."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(credentials)[0])

    def _why_silent(self) -> str:
        pid = self.listener
        if procfs.is_stopped(pid):
            return f"its process {pid} was stopped; let it go on: kill -CONT {pid}"
        return f"not within {self._socket.gettimeout():g} s; `nvshare doctor` tells more"

    def status(self) -> dict[str, Any]:
        """The scheduler's snapshot."""
        snapshot = self.request("status").get("status")
        if not isinstance(snapshot, dict):
            raise SchedulerError(f"what listens on {self.path} is not an nvshare scheduler (it has no status)")
        return snapshot

    def wait_for_end(self) -> None:
        """Block until the scheduler ends this connection."""
        self._socket.settimeout(None)
        with contextlib.suppress(OSError):
            while self._socket.recv(4096):
                pass

    def interrupt(self) -> None:
        """Let ``wait_for_end`` in another thread return."""
        with contextlib.suppress(OSError):  # ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read_reply(self) -> dict[str, Any]:
        while True:
            try:
                data = self._socket.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                raise NoScheduler(f"the scheduler on {self.path} ended the connection; try again")
            try:
                for message in self._decoder.feed(data):
                    if isinstance(message, wire.Refused):
                        raise RequestRefused(message.reason)
                    if isinstance(message, wire.ControlReply):
                        return _json_object(message.body)
            except VersionMismatch as error:
                raise OtherVersion(
                    f"the scheduler on {self.path} speaks protocol version {error.version}, this command version "
                    f"{wire.VERSION}: use the same nvshare release on both sides"
                ) from error
            except ProtocolError as error:
                raise SchedulerError(f"what listens on {self.path} is not an nvshare scheduler ({error})") from error


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise ProtocolError(f"the answer is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise ProtocolError("the answer is not a JSON object")
    return answer
