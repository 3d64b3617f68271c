"""The five verdicts of the stress test, and what it reports beside them. Pure functions over what was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from nvshare.acceptance.finding import Verdict
from nvshare.bench.columns import Column, Compared


@dataclass(frozen=True)
class State:
    """The processes, contexts, memory and leases that exist at one moment."""

    processes: frozenset[int]
    contexts: Mapping[str, frozenset[int]]
    memory: Mapping[str, int]
    leases: frozenset[str]


def _less(name: str) -> Column:
    return Column(compared=Compared(name, -1))


@dataclass(frozen=True)
class Figures:
    """What is reported and not judged."""

    ops_per_second: Annotated[float | None, Column(compared=Compared("operations/s", 1))]
    quota_percent: float | None
    quota_error_points: float | None
    lease_wait_p50_s: Annotated[float | None, _less("wait for a lease, median, s")]
    lease_wait_p99_s: Annotated[float | None, _less("wait for a lease, 99th percentile, s")]


def percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


def success_rate(workers: Sequence[Mapping[str, Any]], required: float) -> Verdict:
    good = sum(bool(worker.get("ok")) for worker in workers)
    rate = percent(good, len(workers))
    text = f"{good} of {len(workers)} workers allocated, computed and found their data right ({rate:.0f} %)"
    wrong = next((str(worker.get("error")) for worker in workers if not worker.get("ok")), "")
    return Verdict(f"{text}; {wrong}" if wrong else text, rate >= required)


def launch_configurations(outcomes: Mapping[str, str], required: float) -> Verdict:
    """``outcomes`` says what was wrong with each configuration; empty: nothing."""
    good = sum(not problem for problem in outcomes.values())
    text = f"{good} of {len(outcomes)} configurations are what workers see from inside"
    wrong = "; ".join(f"{name}: {problem}" for name, problem in outcomes.items() if problem)
    return Verdict(f"{text}; {wrong}" if wrong else text, percent(good, len(outcomes)) >= required)


def process_set(before: State, after: State) -> Verdict:
    left = sorted(after.processes - before.processes)
    if left:
        return Verdict(f"still there: {', '.join(map(str, left))}", ok=False)
    return Verdict("no process is left", ok=True)


def balance(workers: Sequence[Mapping[str, Any]], cards: Sequence[str]) -> Verdict:
    """Judge by the card that each worker saw. Workers that run at the same time are spread evenly. Later workers go
    where there is room, and no card may be left out."""
    counted = [worker for worker in workers if "uuid" in worker]
    seen = [str(worker["uuid"]) for worker in counted]
    counts = Counter(seen)
    strangers = set(counts) - set(cards)
    if strangers:
        return Verdict(f"workers on {', '.join(strangers)}, which were not to be used", ok=False)
    spread = [counts[card] for card in cards]
    text = f"workers per card: {', '.join(map(str, spread)) or 'none'}"
    together = at_once([(float(worker["began"]), float(worker["seconds"])) for worker in counted])
    if together < len(counted):
        used = min(spread) > 0 or len(counted) < len(cards)
        text += f"; at most {together} of {len(counted)} were there at once, later ones went where there was room first"
        return Verdict(text if used else f"{text}; a card was left out", used)
    even = bool(seen) and max(spread) - min(spread) <= (1 if len(seen) % len(cards) else 0)
    return Verdict(text, even)


def at_once(work: Sequence[tuple[float, float]]) -> int:
    """The largest number of workers at any moment; ``work`` is the begin and the seconds of each."""
    return max((sum(begin <= moment < begin + seconds for begin, seconds in work) for moment, _ in work), default=0)


def clean_shutdown(before: State, after: State, tolerance: int) -> Verdict:
    """GPU memory, contexts and leases are as before. Memory may grow by ``tolerance``, which drivers keep."""
    problems = []
    leases = after.leases - before.leases
    if leases:
        problems.append(f"leases left: {', '.join(sorted(leases))}")
    for uuid, pids in after.contexts.items():
        more = pids - before.contexts.get(uuid, frozenset())
        if more:
            problems.append(f"contexts left on {uuid}: {', '.join(map(str, sorted(more)))}")
    for uuid, used in after.memory.items():
        grown = used - before.memory.get(uuid, 0)
        if grown > tolerance:
            problems.append(f"{grown >> 20} MiB more in use on {uuid}")
    text = "; ".join(problems) or "GPU memory, contexts and leases are as before"
    return Verdict(text, not problems)


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that this part of all values does not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
