"""Files beside the socket that the next scheduler begins with: written whole or not at all, in a thread of their own,
and believed only when they are ours.

A file begins with a line that says what it is and how many lines follow, so that one that was cut is known; then one
JSON object a line. What cannot be used is named in one line of the log and passed over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nvshare.daemon.control import ControlError

_LOG = logging.getLogger("nvshare")

VERSION = 1
MAX_BYTES = 8 << 20  # of such a file: twice what all pods of the largest node take
T = TypeVar("T")
Told = Callable[[str | None], None]  # is told why it could not be written, or None


class Unusable(Exception):
    """A file is not what it should be; the text says how."""


class Loop(Protocol):
    """As much of an event loop as is needed here."""

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Any: ...

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: Any) -> Any: ...


class KeptFile:
    """``kind`` is what it says it is, ``what`` the same in words. ``lines`` are asked for in another thread: they must
    be there already, for a thread that makes much text at once keeps the loop waiting. ``path`` None: nothing is kept.
    """

    def __init__(
        self, loop: Loop, path: Path | None, kind: str, what: str, lines: Callable[[], Sequence[str]], period: float
    ) -> None:
        self._loop = loop
        self._path = path
        self._kind = kind
        self._what = what
        self._lines = lines
        self._period = period
        self._unsaved = False
        self._due = False  # a write is on its way
        self._told: list[Told] = []
        self._writing = threading.Lock()
        self._problem: str | None = None

    # --- reading, at the start

    def load(self, read: Callable[[Any], T]) -> list[T] | None:
        """What was kept, or None where nothing (of use) was. ``read`` makes an entry of what a line says;
        ``ValueError`` or ``ControlError`` when it makes no sense."""
        if self._path is None:
            return None
        try:
            return [read(entry) for entry in unpack(_own_bytes(self._path), self._kind)]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, ControlError, Unusable, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
            _LOG.warning("%s cannot be used, %s is lost: %s", self._path, self._what, reason)
            return None

    # --- writing

    def save(self, then: Told | None = None) -> None:
        """Soon; ``then`` hears when it has been done, or why not."""
        if self._path is None:
            if then is not None:
                then(None)
            return
        self._unsaved = True
        if then is not None:
            self._told.append(then)
        if not self._due:
            self._due = True
            self._loop.call_later(self._period, self._start, self._path)

    def close(self) -> None:
        """Write what is not written yet."""
        if self._path is not None and (self._unsaved or self._due):
            self._write(self._path)
            self._unsaved = False

    def remove(self) -> None:
        if self._path is not None:
            with self._writing, contextlib.suppress(OSError):
                self._unsaved = False
                self._path.unlink(missing_ok=True)

    def _start(self, path: Path) -> None:
        self._unsaved = False
        told, self._told = self._told, []
        threading.Thread(target=self._write_apart, args=(path, told), daemon=True).start()

    def _write_apart(self, path: Path, told: list[Told]) -> None:
        """In a thread of its own: a disk may take its time."""
        problem = self._write(path)
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self._loop.call_soon_threadsafe(self._saved, told, problem)

    def _saved(self, told: list[Told], problem: str | None) -> None:
        self._due = False
        if self._unsaved:
            self.save()
        for then in told:
            then(problem)

    def _write(self, path: Path) -> str | None:
        """None, or why it could not be written; the log has that once, until it is another."""
        with self._writing:
            problem = _replace(path, pack(self._kind, self._lines()))
            if problem is not None and problem != self._problem:
                _LOG.warning("%s cannot be kept for a restart: %s: %s", self._what.capitalize(), path, problem)
            self._problem = problem
            return problem


def pack(kind: str, lines: Sequence[str]) -> list[str]:
    """With the line that says what it is."""
    lines = list(lines)
    return [json.dumps({"nvshare": kind, "version": VERSION, "entries": len(lines)}) + "\n", *lines]


def unpack(data: bytes, kind: str) -> list[Any]:
    """What the lines say; ``Unusable`` or ``ValueError`` when this is no such file, or not all of it."""
    first, *lines = data.decode().split("\n")
    header = json.loads(first) if first.startswith("{") else None
    if not isinstance(header, dict) or header.get("nvshare") != kind:
        raise Unusable("it does not begin as such a file does")
    if header.get("version") != VERSION:
        raise Unusable(f"it is of version {header.get('version')!r:.20}, this scheduler knows {VERSION}")
    if not data.endswith(b"\n") or header.get("entries") != len(lines) - 1:
        raise Unusable("it is not complete")
    return [json.loads(line) for line in lines[:-1]]


def _own_bytes(path: Path) -> bytes:
    """The content of a plain file that nobody but us could have written."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise Unusable("it is not a plain file")
        if info.st_uid != os.geteuid():
            raise Unusable("it belongs to another user")
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable("others may write to it")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise Unusable(f"it is larger than {MAX_BYTES} bytes")
    return data


def _replace(path: Path, lines: Sequence[str]) -> str | None:
    """Whole or not at all; None, or why not."""
    fresh = path.with_name(path.name + "-new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fresh.unlink(missing_ok=True)
        try:
            with open(os.open(fresh, flags, 0o600), "w") as text:
                text.writelines(lines)
            fresh.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        return error.strerror or str(error)
    return None
