"""What rows mean, in plain sentences with numbers. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from nvshare.bench.columns import seconds_text
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import TaskResult
from nvshare.bench.survivor import FULL_SPEED, IN_TIME


def findings(rows: Sequence[Row]) -> list[str]:
    """All sentences that these rows support."""
    parts: tuple[Callable[[Sequence[Row]], Iterator[str]], ...] = (
        _overhead,
        _efficiency,
        _density,
        _fairness,
        _spread,
        _movement,
        _survivors,
        _agreement,
        _failures,
    )
    return [sentence for part in parts for sentence in part(rows)]


def pod_findings(row: Row, has_baseline: bool) -> list[str]:
    """The sentences on a test on a cluster. Moved bytes are not known there, and a baseline is not always."""
    compared = (_overhead, _efficiency, _density) if has_baseline else ()
    return [sentence for part in (*compared, _fairness, _spread, _failures) for sentence in part([row])]


def _shared(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.mode != "plain" and row.passed]


def _together(rows: Sequence[Row]) -> list[Row]:
    return [row for row in _shared(rows) if row.tasks > row.gpus and not row.has_survivor]


def _finished(row: Row) -> list[TaskResult]:
    return [task for task in row.details if task.status == "PASS"]


def _last_end(row: Row) -> float:
    return max(task.loop_seconds for task in _finished(row))


def _serial(row: Row) -> float:
    """Serial theory: the seconds of one GPU's tasks one after the other, plain."""
    return row.tasks / row.gpus * row.baseline_s


def _overhead(rows: Sequence[Row]) -> Iterator[str]:
    for row in _shared(rows):
        if row.tasks == 1:
            yield (
                f"Overhead: {row.workload} alone under nvshare takes {100 * (row.ratio - 1):+.2f} % against plain "
                f"({row.duration_s:.2f} s, plain {row.baseline_s:.2f} s; {row.source})."
            )


def _efficiency(rows: Sequence[Row]) -> Iterator[str]:
    for row in _together(rows):
        yield (
            f"Efficiency of concurrency: {row.title}: all done after {seconds_text(_last_end(row))}, one after the "
            f"other would take {seconds_text(_serial(row))}: {100 * _serial(row) / _last_end(row):.0f} % of serial "
            f"theory ({row.source})."
        )


def _density(rows: Sequence[Row]) -> Iterator[str]:
    for row in _together(rows):
        work = _serial(row) / _last_end(row)  # until the last task ends: those before leave the card to the rest
        yield (
            f"Density: {row.tasks / row.gpus:g} {row.workload} per GPU do {work:.2f} times the work of one in "
            f"the same time, each at {100 / row.ratio:.0f} % of its solo speed ({row.source})."
        )


def _fairness(rows: Sequence[Row]) -> Iterator[str]:
    for row in _together(rows):
        fastest = min(task.loop_seconds for task in _finished(row))
        yield (
            f"Fairness: {row.title}: the slowest takes {_last_end(row) / fastest:.3f} times as long as the fastest "
            f"({row.source})."
        )


def _spread(rows: Sequence[Row]) -> Iterator[str]:
    for row in _together(rows):
        if row.gpus < 2:
            continue
        by_gpu: dict[str, list[float]] = defaultdict(list)
        for task in _finished(row):
            by_gpu[task.gpu].append(task.loop_seconds)
        means = [fmean(durations) for durations in by_gpu.values()]
        counts = " + ".join(str(len(durations)) for durations in by_gpu.values())
        yield (
            f"Spread: {row.title}: {counts} tasks over {row.gpus} GPUs, whose mean durations differ by "
            f"{100 * (max(means) / min(means) - 1):.1f} % ({row.source})."
        )


def _movement(rows: Sequence[Row]) -> Iterator[str]:
    shared = _shared(rows)
    if not shared:
        return
    moved, switches = sum(row.swapped_bytes for row in shared), sum(row.switches for row in shared)
    verdict = "memory fits, nothing was moved to the host" if moved == 0 else f"{moved} bytes were moved"
    yield f"Memory: {verdict}; {switches} switches ({shared[0].source})."


def _survivors(rows: Sequence[Row]) -> Iterator[str]:
    for row in _shared(rows):
        if not row.has_survivor:
            continue
        full = f"{100 * FULL_SPEED:.0f} % of its solo speed"
        needs = "" if row.survivor_limit_s is None else f"; the link alone needs {row.survivor_limit_s:.2f} s"
        after = "is never at" if row.survivor_s is None else f"after {row.survivor_s:.2f} s is at"
        allowed = _time_allowed(row)
        yield f"Survivor: {row.title}: the other {after} {full} again; it has {allowed}{needs} ({row.source})."


def _time_allowed(row: Row) -> str:
    allowed = row.survivor_allowed_s
    return f"{allowed:g} s" if allowed == IN_TIME else f"{allowed:.2f} s (a tenth more than the link needs)"


def _agreement(rows: Sequence[Row]) -> Iterator[str]:
    compared = [row for row in _shared(rows) if row.model_ratio and not row.has_survivor]
    if compared:
        worst = max(compared, key=model_difference)
        percent = 100 * model_difference(worst)
        yield (
            f"Agreement: the ratios ({worst.source}) differ from the model's by at most {percent:.1f} % "
            f"(test {worst.name}: {worst.ratio:.3f}, model {worst.model_ratio:.3f})."
        )


def model_difference(row: Row) -> float:
    """How far the row's ratio is from the model's, as a part of it."""
    return abs(row.ratio / row.model_ratio - 1) if row.model_ratio else 0.0


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        failed = [task.name for task in row.details if task.status != task.expected]
        if failed:
            yield f"FAILED: {row.title}: {', '.join(failed)} ({row.source})."
        if not row.recovered:
            yield f"FAILED: {row.title}: the survivor has {_time_allowed(row)} to be back at its speed ({row.source})."
