"""A worker under its supervisor, as the launcher sees it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nvshare.launch.address import PACKAGE_PARENT
from nvshare.launch.errors import CannotStart, CleanupFailed, LeaseLost, LeaseRefused, LeaseTimeout
from nvshare.launch.orders import Order, warn_if_inside

# Imported from its own directory: importing the package first would cost more than all the supervisor does.
_PATHS = [str(Path(__file__).resolve().parent), str(PACKAGE_PARENT)]
_SUPERVISOR = f"import sys; sys.path[:0] = {_PATHS!r}; import supervisor; supervisor.start()"
_LATE = 10.0  # seconds beyond its grace that an ending supervisor has before it is killed itself


@dataclass(frozen=True)
class Granted:
    """``lease`` is empty where the worker has no GPU."""

    lease: str
    gpus: tuple[str, ...]
    waited: float  # seconds
    inside: str | None = None  # the run or lease around it, whose quotas count instead


@dataclass(frozen=True)
class Ending:
    """How a worker ended: its exit code (negative: the signal), None when its supervisor was killed under it."""

    code: int | None
    why: str = ""  # it was made to end
    left: tuple[int, ...] = ()  # processes that could not be ended

    @property
    def signal(self) -> int | None:
        return -self.code if self.code is not None and self.code < 0 else None

    def __str__(self) -> str:
        if self.code is None:
            return self.why
        name = f"signal {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return f"{name} ({self.why})" if self.why else name


class Supervised:
    """One supervisor and its worker. Not for several threads at once, but for ``end``."""

    def __init__(
        self, order: Order, stdin: int | IO[Any] | None = None, stdout: int | IO[Any] | None = None, merge: bool = False
    ) -> None:
        """Start it. ``merge``: standard error goes where standard output goes."""
        self._grace = order.grace
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _SUPERVISOR, str(theirs.fileno())],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=subprocess.STDOUT if merge else None,
                    pass_fds=(theirs.fileno(), *order.fds),
                    start_new_session=True,
                    env=_plain_environment(order.address.environment),
                )
            unless_started.pop_all()
        self._lifeline = ours
        self._buffer = b""
        self._news: dict[str, dict[str, Any]] = {}
        self._told_to_end = False
        self._finished = False
        self.granted: Granted | None = None
        self.pid = 0  # of the worker
        ours.sendall(json.dumps(order.to_dict(os.getpid())).encode() + b"\n")

    def fileno(self) -> int:
        """Readable when there are news."""
        return self._lifeline.fileno()

    def wait_granted(self) -> Granted:
        """Until the worker has been started. The errors of a lease, or ``CannotStart``."""
        self._await("started")
        assert self.granted is not None
        return self.granted

    def wait(self, timeout: float | None = None) -> Ending | None:
        """Until the worker and all below it have ended; None when that takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._await("ended", deadline):
            return None
        last = self._news["ended"]
        self._finish()
        return Ending(last["code"], last["why"], tuple(last["left"]))

    def poll(self) -> Ending | None:
        return self.wait(0.0)

    def end(self, why: str = "its launcher ended it") -> None:
        """Ask it to end: SIGTERM, then SIGKILL. Does not wait."""
        if not self._told_to_end:
            self._told_to_end = True
            with contextlib.suppress(OSError):
                self._lifeline.sendall(json.dumps({"end": why}).encode() + b"\n")

    def close(self) -> Ending | None:
        """End it and wait for that. ``CleanupFailed`` when something of it cannot be ended."""
        if self._finished:
            return None
        self.end()
        try:
            ending = self.wait(self._grace + _LATE)
        except (LeaseRefused, LeaseTimeout, LeaseLost, CannotStart):
            return None  # it never began
        if ending is None:
            self._process.kill()
            self._finish()
            raise CleanupFailed(f"supervisor {self._process.pid} did not end and was killed")
        if ending.left:
            raise CleanupFailed(f"processes {', '.join(map(str, ending.left))} cannot be ended", ending.left)
        return ending

    def _await(self, state: str, deadline: float | None = None) -> bool:
        while state not in self._news:
            if "refused" in self._news:
                self._finish()
                refused = self._news["refused"]
                raise _REFUSALS[refused["kind"]](refused["error"])
            if "ended" in self._news:
                self._finish()
                raise LeaseLost(self._news["ended"]["why"])
            if not self._read(deadline):
                return False
        return True

    def _read(self, deadline: float | None) -> bool:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            return False
        try:
            data = self._lifeline.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:  # both of its processes were killed
            self._news.setdefault("ended", {"code": None, "why": "its supervisors were killed", "left": []})
        self._buffer += data
        for news in self._lines():
            self._news.setdefault(news["state"], news)
            if news["state"] == "granted":
                self.granted = Granted(news.get("lease", ""), tuple(news["gpus"]), news["waited"], news.get("inside"))
                warn_if_inside(self.granted.inside)
            elif news["state"] == "started":
                self.pid = news["pid"]
        return True

    def _lines(self) -> Iterator[dict[str, Any]]:
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            news: dict[str, Any] = json.loads(line)
            yield news

    def _finish(self) -> None:
        """The guard ends after the keeper, when nothing is left."""
        self._process.wait()
        self._lifeline.close()
        self._finished = True


_REFUSALS = {"refused": LeaseRefused, "late": LeaseTimeout, "command": CannotStart, "ended": LeaseLost}


def _plain_environment(environment: dict[str, str]) -> dict[str, str]:
    """Nothing is preloaded into a supervisor."""
    return {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
