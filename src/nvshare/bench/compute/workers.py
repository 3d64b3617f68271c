"""Worker processes that stay up for a whole part of the bench: natively, under nvshare, or under MPS."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvshare.bench.compute.kinds import KINDS, LAUNCH
from nvshare.bench.compute.track import Track
from nvshare.bench.worker import PATIENCE, Worker, WorkerFailed

NATIVE, NVSHARE, MPS = "native", "nvshare", "mps"
_LATE = 15.0  # seconds after the end of its work that a worker has to answer
PROGRAM = ("-m", "nvshare.bench.compute.program")
_CORES = 8  # from so many on a task may have one to itself


@dataclass(frozen=True)
class Name:
    """Which worker: how it runs, what it computes, and the number among its equals."""

    how: str
    kind: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number + 1} ({self.how})"


class Workers:
    """Use as a context: whatever happens inside, no process is left when it ends.

    ``steps``: seconds of one step of each kind, measured alone; known once they have been called up. ``reference``:
    how those run that are measured for it. ``size``: bytes that each worker computes with; None: as the kit has it.
    """

    def __init__(
        self, kit: str, environments: Mapping[str, Mapping[str, str]], reference: str = NATIVE, size: int | None = None
    ) -> None:
        self._kit = kit
        self._environments = environments
        self._reference = reference
        self._size = size
        self._workers: dict[Name, Worker] = {}
        self.steps: dict[str, float] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers.values():
            worker.dismiss()
        for worker in self._workers.values():
            worker.close()

    @property
    def versions(self) -> dict[str, str]:
        """Of what the workers compute with."""
        info = next(iter(self._workers.values())).info if self._workers else {}
        return {name: value for name, value in info.items() if name != "pid"}

    def call_up(self, names: Iterable[Name], patience: float = PATIENCE) -> None:
        """Start all of them, wait until each has loaded all it needs, and let them prepare: all at once, or, where it
        was said how much memory each takes, one after the other, because they may not fit. The length of a step is that
        of the first of its kind that runs as the reference does, while all others rest."""
        fresh = [name for name in dict.fromkeys(names) if name not in self._workers]
        for name in fresh:
            self._workers[name] = Worker(name, [sys.executable, *PROGRAM, self._kit], self._environments[name.how])
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
