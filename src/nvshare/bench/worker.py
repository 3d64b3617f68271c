"""A process that does what it is told: native, under nvshare or under MPS."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

from nvshare.bench.team import CLIENT_ID

PATIENCE = 120.0  # seconds for what has no known end: imports, memory, first kernels
_GRACE = 3.0  # seconds between asking a worker to end and making it
AnyWorker = TypeVar("AnyWorker", bound="Worker")


class WorkerFailed(Exception):
    """A worker ended, or did not answer in time; the text says what it said last."""


class Worker:
    """A process that answers each command on its standard input with one line of JSON.

    ``name`` is what errors call it. It is started at once, and ends with ``close`` or the context.
    """

    def __init__(self, name: object, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.info: dict[str, Any] = {}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._pending = b""

    @property
    def client(self) -> str | None:
        """Its id at the scheduler, once it has told; its process number may be another one there."""
        found = CLIENT_ID.findall(self._said())
        return found[-1] if found else None

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self: AnyWorker) -> AnyWorker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, *words: object, **command: Any) -> None:
        """A command: words as they are, else JSON."""
        assert self._process.stdin is not None
        line = " ".join(map(str, words)) if words else json.dumps(command)
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("ended") from None

    def receive(self, within: float = PATIENCE) -> dict[str, Any]:
        """The next answer; ``WorkerFailed`` when there is none within so many seconds."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + within
        pieces = [self._pending]
        while b"\n" not in pieces[-1]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise self._failure(f"did not answer within {within:.0f} s")
            piece = self._process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
            if not piece:
                raise self._failure("ended")
            pieces.append(piece)
        line, _, self._pending = b"".join(pieces).partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, *words: object, within: float = PATIENCE, **command: Any) -> dict[str, Any]:
        self.send(*words, **command)
        return self.receive(within)

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does; ``close`` waits for its end."""
        self._process.kill()

    def dismiss(self) -> None:
        """Tell it to end; ``close`` waits for that."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        """Wait for its end, which comes by force where it does not come by itself."""
        if self._errors.closed:
            return
        self.dismiss()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _said(self) -> str:
        """On standard error, read without moving the place where it writes."""
        number = self._errors.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def _failure(self, what: str) -> WorkerFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5 if what == "ended" else 0)
        said = [line for line in self._said().splitlines() if line.strip() and "][INFO]" not in line]
        return WorkerFailed(f"the worker {self.name} {what}: {'; '.join(said[-3:]) or 'it said nothing'}")


@contextlib.contextmanager
def ending(workers: Sequence[AnyWorker]) -> Iterator[list[AnyWorker]]:
    """All of them end with the context, at the same time."""
    try:
        yield list(workers)
    finally:
        for worker in workers:
            worker.dismiss()
        for worker in workers:
            worker.close()
