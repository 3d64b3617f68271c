"""The inside of a pool's worker: a fresh interpreter that takes pickled tasks from a socket and sends results back."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import struct
import sys
import traceback
from multiprocessing import spawn
from typing import Any

LENGTH = struct.Struct("<Q")
preparing = False  # the launcher's main module is being imported


def send(connection: socket.socket, payload: bytes) -> None:
    connection.sendall(LENGTH.pack(len(payload)) + payload)


def receive(connection: socket.socket) -> bytes | None:
    """One message; None at the end."""
    header = _exactly(connection, LENGTH.size)
    return None if header is None else _exactly(connection, LENGTH.unpack(header)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        data = connection.recv(min(1 << 20, size - len(parts)))
        if not data:
            return None
        parts += data
    return bytes(parts)


class RemoteTraceback(Exception):
    """The cause of an exception that comes from a worker: where it happened there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def _outcome(payload: bytes) -> bytes:
    """Do one task; the pickled answer: (True, result) or (False, (exception, traceback))."""
    try:
        function, arguments, keywords = pickle.loads(payload)  # noqa: S301 (from our own launcher)
        answer: tuple[bool, Any] = (True, function(*arguments, **keywords))
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise
        text = traceback.format_exc()
        told = _as_ours(error)
        try:
            return pickle.dumps((False, (told, text)), pickle.HIGHEST_PROTOCOL)
        except Exception:  # an exception that cannot be pickled
            return pickle.dumps((False, (RuntimeError(f"{type(error).__name__}: {error}"), text)))


def _as_ours(error: BaseException) -> BaseException:
    """A framework's out-of-memory error as ours, where the scheduler knows what it refused."""
    text = f"{type(error).__name__} {error}".lower().replace("_", " ")
    if not any(mark in text for mark in ("out of memory", "outofmemory", "resource exhausted")):
        return error
    from nvshare import config
    from nvshare.launch.checking import look_up
    from nvshare.launch.errors import DeviceOutOfMemory, LaunchError, QuotaOutOfMemory

    lease = config.child_environment({}).get(config.LEASE_VARIABLE, "")
    try:
        denied = (look_up(lease) or {}).get("denied") if lease else None
    except LaunchError:
        return error
    if denied is None:
        return error
    kind = QuotaOutOfMemory if denied["reason"] == "quota" else DeviceOutOfMemory
    limit = {"quota": "the memory quota of the lease", "card": "the card", "host": "the host memory for swapping"}
    return kind(
        f"{denied['bytes']} bytes were asked for beyond {limit[denied['reason']]}, {denied['limit']} bytes ({error})"
    )


def main(descriptor: int) -> None:
    connection = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    preparation = receive(connection)
    if preparation is None:
        return
    global preparing  # noqa: PLW0603 (asked by GpuPool in that very module)
    preparing = True
    spawn.prepare(pickle.loads(preparation))  # noqa: S301
    preparing = False
    while (payload := receive(connection)) is not None:
        send(connection, _outcome(payload))


if __name__ == "__main__":
    # The module that tasks unpickle from is nvshare.launch.worker, not this __main__.
    importlib.import_module("nvshare.launch.worker").main(int(sys.argv[1]))
