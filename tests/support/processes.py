"""Processes under test: start a program or a scheduler, wait for what it says or shows, and leave nothing behind.

Every wait has a deadline. A wait that fails shows what the process wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from nvshare import native
from nvshare.client.connection import Connection, SchedulerError
from nvshare.gpu.sim import SimNode

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PATIENCE = 60.0  # seconds for anything that a process does by itself
_LOOK = 0.01  # seconds between two looks at something that cannot be waited for
READY = "{ready}"  # in a scheduler's command: the descriptor to write to once it listens

T = TypeVar("T")


def environment(**variables: str) -> dict[str, str]:
    """Our own environment for a child that imports ``nvshare`` and ``tests`` of this tree, with these variables."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{SOURCE}", **variables}


def preloaded(node: SimNode, **variables: str) -> dict[str, str]:
    """The environment of a task on a simulated node, under the library."""
    return {**os.environ, **node.env(), "LD_PRELOAD": str(native.interposer()), **variables}


def eventually(look: Callable[[], T], patience: float = PATIENCE) -> T:
    """Look until there is something to see, or patience ends: what was seen last."""
    deadline = time.monotonic() + patience
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(_LOOK)
    return seen


class Line(NamedTuple):
    at: float  # ``time.monotonic()`` when it came
    text: str


class Stream:
    """The lines of a pipe, read by a thread, so that the writer never waits for the test."""

    def __init__(self, pipe: IO[str]) -> None:
        self.lines: list[Line] = []
        self._next = 0  # the first line that ``next`` has not returned
        self._ended = False
        self._pipe = pipe
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._pipe:
            with self._changed:
                self.lines.append(Line(time.monotonic(), line.rstrip("\n")))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def next(self) -> str | None:
        """The next line in order; None when the stream has ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.has_next() or self._ended, PATIENCE)
            if not self.has_next():
                return None
            self._next += 1
            return self.lines[self._next - 1].text

    def has_next(self) -> bool:
        return self._next < len(self.lines)

    def rest(self) -> str:
        """All that ``next`` has not returned, once the stream has ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended, PATIENCE)
            lines, self._next = self.lines[self._next :], len(self.lines)
        return "".join(f"{line.text}\n" for line in lines)

    def find(self, text: str, count: int = 1) -> Line | None:
        """The count-th line with this text, as soon as there is one; None when there is none in time."""

        def enough() -> bool:
            return self._ended or len(self._with(text)) >= count

        with self._changed:
            self._changed.wait_for(enough, PATIENCE)
            found = self._with(text)
            return found[count - 1] if len(found) >= count else None

    def _with(self, text: str) -> list[Line]:
        return [line for line in self.lines if text in line.text]

    def close(self) -> None:
        self._reader.join(PATIENCE)
        if not self._reader.is_alive():  # else a grandchild in another session holds the other end
            self._pipe.close()


class Program:
    """A process that a test talks to by lines; it leads a session of its own, which ends with ``close``."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self._input = self.process.stdin
        self._output = Stream(self.process.stdout)
        self._errors = Stream(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> list[str]:
        """The lines of standard error so far."""
        return [line.text for line in self._errors.lines]

    def heard(self, text: str, count: int = 1) -> Line:
        """Wait until standard error has the count-th line with this text."""
        line = self._errors.find(text, count)
        assert line, (text, self.said)
        return line

    def tell(self, line: str = "") -> None:
        self._input.write(line + "\n")
        self._input.flush()

    def line(self) -> str:
        """The next line of standard output."""
        line = self._output.next()
        assert line is not None, (self.process.wait(PATIENCE), self.said)
        return line

    def has_line(self) -> bool:
        """Whether ``line`` would return at once."""
        return self._output.has_next()

    def line_with(self, text: str, count: int = 1) -> str:
        """The count-th line with this text on standard output, from here on."""
        while True:
            line = self.line()
            count -= text in line
            if count == 0:
                return line

    def answer(self) -> Any:
        """The next line, which is JSON."""
        return json.loads(self.line())

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def send(self, command: str, *arguments: Any) -> None:
        """Tell it a command as one JSON list."""
        self.tell(json.dumps([command, *arguments]))

    def call(self, command: str, *arguments: Any) -> Any:
        self.send(command, *arguments)
        return self.answer()

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash does, and wait until it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def result(self) -> tuple[int, str]:
        """End its input and wait for it: exit code, and what ``line`` has not returned."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        code = self.process.wait(PATIENCE * 3)
        self._errors.rest()
        return code, self._output.rest()

    def finish(self) -> str:
        """The same for a program that has to succeed: its output."""
        code, output = self.result()
        assert code == 0, (output, self.said)
        return output

    def end(self) -> list[str]:
        """The same: the lines of its standard error."""
        self.finish()
        return self.said

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
        self._errors.close()


Run = Callable[..., Program]


@contextlib.contextmanager
def programs() -> Iterator[Run]:
    """A function that starts a ``Program``; what it started ends with the context."""
    started: list[Program] = []

    def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Program:
        started.append(Program(command, env))
        return started[-1]

    try:
        yield run
    finally:
        for program in started:
            program.close()


S = TypeVar("S", bound="SchedulerProcess")


class SchedulerProcess:
    """A scheduler that can be ended and started again on the same socket. Its log goes to a file."""

    def __init__(self, command: Sequence[str | Path], socket: Path, log: Path, env: dict[str, str]) -> None:
        """``command`` contains ``READY`` where it wants the descriptor."""
        self.socket = socket
        self.command = command
        self._log = log
        self.env = env
        self.process: subprocess.Popen[bytes] | None = None

    def start(self: S, *options: str) -> S:
        """Return once it listens."""
        ready, told = os.pipe()
        command = [str(told) if part == READY else part for part in (*self.command, *options)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.env, stderr=log, pass_fds=(told,))
        os.close(told)
        listening = os.read(ready, 1)
        os.close(ready)
        assert listening, f"the scheduler did not start:\n{self.log()}"
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it as a service manager does: its exit code."""
        return self._end(number)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def ask(self, op: str, **fields: object) -> dict[str, Any]:
        with Connection(self.socket) as connection:
            return connection.request(op, **fields)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.ask("status")["status"]
        return status

    def set(self, **settings: object) -> None:
        self.ask("set", **settings)

    def wait_until(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first status that is as expected; fails with the last one."""
        deadline = time.monotonic() + PATIENCE
        status: dict[str, Any] = {}
        while True:
            with contextlib.suppress(SchedulerError):
                status = self.status()
                if holds(status):
                    return status
            assert time.monotonic() < deadline, f"not reached: {status}\n{self.log()}"
            time.sleep(_LOOK)


def node_scheduler(node: SimNode, env: dict[str, str], *options: str, log: Path | None = None) -> SchedulerProcess:
    """The scheduler of a simulated node, not started yet; ``env`` has the node's variables."""
    command = [sys.executable, "-m", "nvshare.cli.scheduler", "--socket", str(node.socket), "--ready-fd", READY]
    return SchedulerProcess([*command, *options], node.socket, log or node.directory / "test.log", env)
