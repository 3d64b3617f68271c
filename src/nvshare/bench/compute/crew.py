"""Worker processes that stay up for a whole part of the bench: natively, under nvshare, or under MPS."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from nvshare.bench.compute.kinds import KINDS, LAUNCH
from nvshare.bench.compute.track import Track
from nvshare.bench.team import CLIENT_ID

NATIVE, NVSHARE, MPS = "native", "nvshare", "mps"
_PATIENCE = 120.0  # seconds for what has no known end: imports, memory, first kernels
_LATE = 15.0  # seconds after the end of its work that a worker has to answer
_CORES = 8  # from so many on a task may have one to itself
_GRACE = 3.0  # seconds between asking a worker to end and making it


class WorkerFailed(Exception):
    """A worker ended, or did not answer in time; the text says what it said last."""


@dataclass(frozen=True)
class Name:
    """Which worker: how it runs, what it computes, and the number among its equals."""

    how: str
    kind: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number + 1} ({self.how})"


class Worker:
    """One process and the line of commands to it."""

    def __init__(
        self, name: Name, kit: str, environment: Mapping[str, str], program: str = "nvshare.bench.compute.worker"
    ) -> None:
        self.name = name
        self.info: dict[str, Any] = {}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, kit],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._pending = b""

    @property
    def client(self) -> str | None:
        """Its id at the scheduler, once it has told; its process number may be another one there."""
        found = CLIENT_ID.findall(self._said())
        return found[-1] if found else None

    def send(self, **command: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("ended") from None

    def receive(self, seconds: float = _PATIENCE) -> dict[str, Any]:
        """The next answer; ``WorkerFailed`` when there is none within so many seconds."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        pieces = [self._pending]
        while b"\n" not in pieces[-1]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise self._failure(f"did not answer within {seconds:.0f} s")
            piece = self._process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
            if not piece:
                raise self._failure("ended")
            pieces.append(piece)
        line, _, self._pending = b"".join(pieces).partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, patience: float = _PATIENCE, **command: Any) -> dict[str, Any]:
        self.send(**command)
        return self.receive(patience)

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does; ``close`` waits for its end."""
        self._process.kill()

    def dismiss(self) -> None:
        """Tell it to end; ``close`` waits for that."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def close(self) -> None:
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


class Crew:
    """Use as a context: whatever happens inside, no process is left when it ends.

    ``steps``: seconds of one step of each kind, measured alone; known once the crew has been called up. ``reference``:
    how those run that are measured for it. ``size``: bytes that each worker computes with; None: as the kit has it.
    """

    def __init__(
        self,
        kit: str,
        environments: Mapping[str, Mapping[str, str]],
        reference: str = NATIVE,
        size: int | None = None,
    ) -> None:
        self._kit = kit
        self._environments = environments
        self._reference = reference
        self._size = size
        self._workers: dict[Name, Worker] = {}
        self.steps: dict[str, float] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.dismiss()
        for worker in self._workers.values():
            worker.close()

    @property
    def versions(self) -> dict[str, str]:
        """Of what the workers compute with."""
        info = next(iter(self._workers.values())).info if self._workers else {}
        return {name: value for name, value in info.items() if name != "pid"}

    def call_up(self, names: Iterable[Name], patience: float = _PATIENCE) -> None:
        """Start all of them, wait until each has loaded all it needs, and let them prepare: all at once, or, where it
        was said how much memory each takes, one after the other, because they may not fit. The length of a step is that
        of the first of its kind that runs as the reference does, while all others rest."""
        fresh = [name for name in dict.fromkeys(names) if name not in self._workers]
        for name in fresh:
            self._workers[name] = Worker(name, self._kit, self._environments[name.how])
        for name in fresh:
            self._workers[name].send(do="info")
        for name in fresh:
            self._workers[name].info = self._workers[name].receive(patience)
        for group in [fresh] if self._size is None else [[name] for name in fresh]:
            self._prepare(group, patience)
        for name in fresh:
            steps = KINDS[name.kind].steps
            if name.how == self._reference and steps not in self.steps:
                self.steps[steps] = _step_seconds(self._workers[name])

    def _prepare(self, names: Sequence[Name], patience: float) -> None:
        for name in names:
            self._workers[name].send(do="prepare", steps=KINDS[name.kind].steps, bytes=self._size)
        for name in names:
            self._workers[name].receive(patience)
            if name.how == NVSHARE:
                self.client(name)

    def client(self, name: Name) -> str:
        """The id at the scheduler of one that runs under nvshare."""
        client = self._workers[name].client
        if client is None:
            raise WorkerFailed(f"the worker {name} runs without nvshare: libnvshare.so was not loaded")
        return client

    def kill(self, name: Name) -> None:
        self._workers[name].kill()

    def forget(self, names: Iterable[Name]) -> None:
        """End them, whatever they do; who is called up again is a new one."""
        for name in names:
            worker = self._workers.pop(name, None)
            if worker is not None:
                worker.kill()
                worker.dismiss()
                worker.close()

    def begin(self, names: Sequence[Name], until: float) -> None:
        """Let them work until a moment of the monotonic clock."""
        one_core = any(KINDS[name.kind].gives_way for name in names)
        for seed, name in enumerate(names, start=1):
            kind = KINDS[name.kind]
            batch = kind.batch(self.steps[kind.steps])
            self._workers[name].send(
                do="work",
                until=until,
                batch=batch,
                sleep=kind.sleep,
                irregular=kind.irregular,
                period=kind.period,
                seed=seed,
                core=_core_of(name, one_core),
                gives_way=kind.gives_way,
            )

    def tracks(self, names: Sequence[Name], until: float, late: float = _LATE) -> list[Track]:
        """How it went, once all have come to the end of their work; ``WorkerFailed`` when one is too late for that."""
        answers = [self._workers[name].receive(max(0.0, until - time.monotonic()) + late) for name in names]
        return [
            Track(
                answer["times"],
                answer["counts"],
                [(at, took) for at, took in answer["bursts"]],
                answer["right"],
                answer["cpu"],
            )
            for answer in answers
        ]


def _core_of(name: Name, one_core: bool) -> int | None:
    """What a launch-bound task reaches is what its core does, and those of one machine differ: it has its own, the
    same natively and under nvshare, or all have one. None where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    if one_core:
        return cores[-1]
    alone = KINDS[name.kind].steps == LAUNCH and len(cores) >= _CORES
    return cores[-1 - 2 * name.number] if alone else None


def _step_seconds(worker: Worker) -> float:
    """Found by doubling until it takes long enough to tell."""
    steps = 1
    while True:
        seconds = float(worker.ask(do="time", steps=steps)["seconds"])
        if seconds >= 0.1:
            return seconds / steps
        steps *= 2
