"""One scheduler per GPU, and one per socket path.

The claim on a GPU is an abstract unix socket named after it: the kernel lets one process hold the name and takes it
back however that process ends. Who connects to it is told who the holder is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nvshare.daemon.identity import peer_of

_ANSWER_LIMIT = 4096
_PATIENCE = 1.0  # seconds to wait for a holder's answer
_UNTOLD = "it did not say which (it may be starting or stopping right now: try again)"
_MAX_PATH = 107  # what a unix socket's address takes


class Unavailable(Exception):
    """A GPU or a socket cannot be had; the text says who has it, or what is wrong with it, and what to do."""


def _claim_name(gpu: str) -> str:
    return f"\0nvshare-gpu-{gpu}"


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


class GpuClaims:
    """The claims of this scheduler on its GPUs."""

    def __init__(self, gpus: Iterable[str]) -> None:
        """``Unavailable`` when another scheduler has one of them."""
        self._sockets: list[socket.socket] = []
        for gpu in gpus:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._sockets.append(claim)
            try:
                claim.bind(_claim_name(gpu))
            except OSError:
                self.close()
                holder = holder_of(gpu) or _UNTOLD
                raise Unavailable(f"GPU {gpu} already has a scheduler: {holder}") from None
            claim.listen(8)

    def answer(self, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """From now on tell who asks that we are the holder."""
        line = json.dumps(about).encode() + b"\n"
        for claim in self._sockets:
            loop.add_reader(claim, _answer_one, claim, line)

    def close(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        for claim in self._sockets:
            if loop is not None:
                loop.remove_reader(claim)
            claim.close()


def _answer_one(claim: socket.socket, line: bytes) -> None:
    with contextlib.suppress(OSError):
        connection, _ = claim.accept()
        with connection:
            connection.send(line, socket.MSG_DONTWAIT)


def holder_of(gpu: str) -> str | None:
    """Who holds the claim on a GPU, and what to do about it; None where nobody does. The process is named by the
    kernel, its socket by its own word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(_claim_name(gpu))
            holder = peer_of(connection)
        except ConnectionRefusedError:
            return None
        except OSError:
            return _UNTOLD
        try:
            path = json.loads(connection.recv(_ANSWER_LIMIT))["socket"]
        except (OSError, ValueError, KeyError, TypeError):
            path = "unknown"
    who = f"process {holder.pid} of {user_name(holder.uid)}, socket {path}"
    if answers(Path(path)):
        return f"{who}; use it (NVSHARE_SOCK={path}) or stop it first"
    return f"{who}, which does not answer any more; stop it first: kill {holder.pid}"


def answers(path: Path) -> bool:
    """Whether somebody listens on this unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PATIENCE)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # so many want to connect that we would have to wait
        except OSError:
            return False
        return True


def listen_at(path: Path, *, private: bool) -> socket.socket:
    """A listening socket at this path: for its own user when private, else for everybody.

    A socket file that nobody listens on is replaced; a live one, or a file that is no socket, is ``Unavailable``.
    """
    if len(os.fsencode(path)) > _MAX_PATH:
        raise Unavailable(f"the path {path} is longer than the {_MAX_PATH} bytes a unix socket may have: use --socket")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o755)
        if private:
            _require_own_directory(path.parent)
        _remove_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # Nobody can connect before listen, so that there is no moment at which the mode is wider than meant.
            listener.bind(str(path))
            path.chmod(0o600 if private else 0o666)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
    except PermissionError as error:
        raise Unavailable(
            f"cannot make {path} ({error.strerror}): be root, or use --user for a scheduler of your own"
        ) from error
    except OSError as error:
        raise Unavailable(f"cannot make {path} ({error.strerror}): use --socket with another path") from error
    return listener


def _require_own_directory(directory: Path) -> None:
    """A directory under /tmp that another user made first could hand our clients to that user."""
    info = directory.stat()
    trusted = info.st_uid in (0, os.getuid())
    shared = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not info.st_mode & stat.S_ISVTX
    if not trusted or shared:
        raise Unavailable(f"the directory {directory} belongs to or can be written by others: use --socket elsewhere")


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Unavailable(f"{path} exists and is not a socket: remove it or use --socket with another path")
    if answers(path):
        raise Unavailable(f"a scheduler already listens on {path}: use it, stop it, or use --socket with another path")
    path.unlink(missing_ok=True)


def remove_own(path: Path, listener: socket.socket, inode: int) -> None:
    """Remove the socket file at the end, unless another scheduler has put its own there meanwhile."""
    listener.close()
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()
