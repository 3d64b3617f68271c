"""The plugin's sockets in the kubelet's directory: one plugin at a time, whatever was left behind by the last."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

_PATIENCE = 1.0  # seconds for somebody who listens to accept
_VENDOR_SOCKETS = "nvidia*.sock"


class Occupied(Exception):
    """The socket cannot be had; the text says who has it and what to do."""


class Busy(Exception):
    """Somebody else is about to bind a socket here: try again in a moment."""


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One plugin at a time looks and binds. The kubelet removes all files here, so the directory itself is locked."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"{directory} is locked by another process") from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def claim(path: Path) -> Iterator[None]:
    """While inside, bind the socket: what nobody answers on is out of the way, and nobody else binds meanwhile. Not to
    be held over anything that takes time."""
    with _alone(path.parent):
        _make_way(path)
        yield


def _make_way(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise Occupied(f"{path} is a directory: remove it")
    holder = _holder(path) if stat.S_ISSOCK(mode) else None
    if holder is not None:
        who = f"process {holder}" if holder else "in another container"
        raise Occupied(f"another nvshare-device-plugin serves {path} ({who}): stop it first, one per node is enough")
    path.unlink(missing_ok=True)


def _holder(path: Path) -> int | None:
    """The process that listens there, 0 when it has no number here; None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PATIENCE)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return 0  # somebody listens, with a queue so full that we would have to wait to know more
        except OSError:
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])


def mark(path: Path) -> tuple[int, int] | None:
    """Tells a file from a later one of the same name; None when there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def vendor_sockets(directory: Path) -> list[str]:
    """Sockets of the card maker's device plugin, which gives out the same cards as a whole."""
    return sorted(path.name for path in directory.glob(_VENDOR_SOCKETS))
