"""Training beside a busy neighbour on a real card, judged by the card's time for each step.

How long the card works for a step is measured alone, by CUDA events. What a task used of a window is the steps that
ended in it times that. The wall clock would count the host's hesitation too, which can double it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nvshare.bench.compute import kinds
from nvshare.bench.compute.bench import kit_for
from nvshare.bench.compute.track import Track
from nvshare.bench.compute.workers import NATIVE, NVSHARE
from nvshare.bench.fairness.live import AHEAD, LATE, TAIL, Crew, Quotas
from nvshare.bench.fairness.rows import TRAINING, Measure, Row, row
from nvshare.bench.fairness.tasks import Task, Tasks
from nvshare.bench.processes import Venue
from nvshare.bench.worker import Worker, WorkerFailed
from nvshare.client.connection import RequestRefused

PAIRS = ((kinds.RESNET, kinds.ADD), (kinds.TRANSFORMER, kinds.ADD))
CAPS: tuple[tuple[int | None, int | None], ...] = ((70, 20), (None, None))
SETS = len(PAIRS) * len(CAPS)
BEGIN_SECONDS = 30.0  # of one pair: PyTorch loads, and cuDNN tries its algorithms
_STEPS = 20  # of which the length is the median
_HOST_BOUND = 0.03  # part of a step's wall time: less than that is no host phase


def rows(venue: Venue, seconds: float, warm_up: float, measure: Measure) -> Iterator[Row]:
    """Each pair with caps and without, natively and under nvshare. ``NoTorch`` where PyTorch is missing."""
    kit = kit_for(venue)
    venue.ensure_scheduler()
    environments: Mapping[str, Mapping[str, str]] = {
        NATIVE: venue.plain_environment(),
        NVSHARE: venue.shared_environment(),
    }
    quotas = Quotas(venue.socket)
    for pair in PAIRS:
        with Crew(environments, pair, kit) as crew:
            alone = [_measured_alone(worker) for worker in crew.of(NATIVE, len(pair))]
            for caps in CAPS:
                tasks = tuple(replace(task, cap=cap) for task, cap in zip(alone, caps, strict=True))
                what = " ".join(f"{name}@..{cap}" if cap else name for name, cap in zip(pair, caps, strict=True))
                found: dict[str, list[float]] = {}
                notes = []
                for how in (NATIVE, NVSHARE):
                    workers = crew.of(how, len(pair))
                    try:
                        if how == NVSHARE:
                            quotas.set(workers, tasks)
                        found[how] = _play(workers, tasks, seconds, warm_up)
                    except (WorkerFailed, RequestRefused) as error:
                        crew.forget(how)
                        notes.append(f"{how} was not measured: {error}")
                yield row(
                    TRAINING,
                    tasks,
                    measure(tasks),
                    found.get(NVSHARE, []),
                    found.get(NATIVE),
                    what=what,
                    note="; ".join(notes),
                    on_card=True,
                )
    with contextlib.suppress(RequestRefused):
        quotas.set([], ())


def _measured_alone(worker: Worker) -> Task:
    """The task that it is: how long the card works for a step, and how long it waits for the host then."""
    gpu = float(worker.ask(do="gpu", steps=_STEPS)["seconds"])
    wall = float(worker.ask(do="time", steps=_STEPS)["seconds"]) / _STEPS
    host = max(0.0, wall - gpu)
    return Task(round(1000 * gpu, 3), round(1000 * host, 3) if host > _HOST_BOUND * wall else 0.0)


def _play(workers: Sequence[Worker], tasks: Tasks, seconds: float, warm_up: float) -> list[float]:
    begin = time.monotonic() + AHEAD + warm_up
    end = begin + seconds
    until = end + TAIL
    for worker in workers:
        worker.send(do="work", until=until, batch=1)
    answers = [worker.receive(max(0.0, until - time.monotonic()) + LATE) for worker in workers]
    tracks = [Track(answer["times"], answer["counts"]) for answer in answers]
    speeds = [track.speed(begin, end) for track in tracks]
    return [speed * task.gpu_ms / 10 for speed, task in zip(speeds, tasks, strict=True)]  # percent
