"""Quotas of memory and of compute time, from the start and changed while a task runs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from nvshare.acceptance.finding import Verdict
from nvshare.acceptance.verify.ground import START, Ground, task
from nvshare.acceptance.waiting import eventually
from nvshare.bench.compute.live import LiveStage
from nvshare.bench.compute.shares import Change
from nvshare.bench.compute.stage import Scene, Seen
from nvshare.bench.compute.workers import NVSHARE, Name
from nvshare.bench.worker import Worker, WorkerFailed
from nvshare.client.connection import Connection

# Percent. The first two leave room on the card: where two tasks fill it, credit from idle times lasts for seconds.
LOW, HIGH, RAISED = 20, 40, 80
POINTS = 5.0  # percentage points that a task may be off within a window of some seconds
IN_TIME = 1.0  # seconds until a change acts
_SOLO = 0.5  # seconds
_KEPT = 0.6  # of the time; a lower part would hide a missed quota
_BUSY_HOST = 0.95
_SPENT = 1.0  # seconds until a task has used the credit from its idle time
_AT = {percent: f"nvshare at {percent} %" for percent in (LOW, HIGH)}
_FREE = "nvshare without a quota"
_CORES = "NVSHARE_GPU_CORE_LIMIT"


def _take(probe: Worker, size: int) -> bool:
    """Whether ``size`` more bytes were granted. A refusal must be the error that frameworks know."""
    said = probe.ask(do="take", bytes=size)
    if not said["granted"] and not said["out_of_memory"]:
        raise ValueError("refused with another error than CUDA_ERROR_OUT_OF_MEMORY")
    return bool(said["granted"])


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"


def memory(ground: Ground) -> Verdict:
    """A quota of one process by its environment, and of two processes of one lease together."""
    quota = ground.small
    limited = ground.shared_environment(NVSHARE_GPU_MEMORY_LIMIT=str(quota))
    with ground.probe(limited) as alone:
        shown = alone.ask(do="look")["total"]
        within, beyond = _take(alone, quota // 2), _take(alone, quota)
    with ground.lease(mem=quota) as lease:
        environment = ground.lease_environment(lease)
        with ground.probe(environment) as first, ground.probe(environment) as second:
            took, together, goes_on = _take(first, quota // 2), _take(second, quota), _take(first, quota // 4)
    text = (
        f"a card of {_mib(shown)}; within: {_said(within)}, beyond: {_said(beyond)}; "
        f"two of one lease: {_said(took)}, beyond together: {_said(together)}, then the first: {_said(goes_on)}"
    )
    return Verdict(text, shown == quota and within and not beyond and took and not together and goes_on)


def _said(granted: bool) -> str:
    return "granted" if granted else "out of memory"


@dataclass(frozen=True)
class Solo:
    """A task alone on the card and without a quota: the seconds of a typical step, and the part of the time in which
    the host kept the card busy. On a busy machine a simulated card idles, whatever the quota."""

    step: float
    kept: float

    @staticmethod
    def of(*scenes: Seen) -> Solo:
        steps = [step for seen in scenes for step in seen.step_seconds() if step is not None]
        if not steps:
            raise WorkerFailed("a task that is alone on the card did nothing")
        speeds = [speed for seen in scenes for speed in seen.speeds()]
        return Solo(median(steps), min(1.0, max(_KEPT, min(speeds) * median(steps))))

    def percent(self, speed: float) -> float:
        return 100 * speed * self.step

    def allows(self, percent: float, quota: int) -> bool:
        """Never beyond the quota, and below it only by the time that the host lost."""
        return quota * self.kept - POINTS <= percent <= quota + POINTS

    @property
    def said(self) -> str:
        return "" if self.kept > _BUSY_HOST else f" (the host is busy: alone and without a quota {self.kept:.0%})"


def _alone(stage: LiveStage, free: Name) -> Seen:
    return stage.play(Scene([free], seconds=_SOLO, start=START))


def compute(ground: Ground) -> Verdict:
    """One task at a quota, then two tasks at two quotas, against the speed without."""
    free, low, high = task(0), task(0, _AT[LOW]), task(0, _AT[HIGH])
    variables = {how: {_CORES: str(percent)} for percent, how in _AT.items()}
    with ground.crew(ground.small, variables) as crew:
        crew.call_up([free, low, high])
        with ground.stage(crew) as stage:
            before = _alone(stage, free)
            alone = stage.play(Scene([low], seconds=ground.seconds, start=_SPENT)).speeds()
            pair = stage.play(Scene([low, high], seconds=ground.seconds, start=_SPENT)).speeds()
            solo = Solo.of(before, _alone(stage, free))
    got = [solo.percent(speed) for speed in (*alone, *pair)]
    text = f"alone {got[0]:.1f} %; together {got[1]:.1f} and {got[2]:.1f} %{solo.said}"
    return Verdict(text, all(solo.allows(had, due) for had, due in zip(got, (LOW, LOW, HIGH), strict=True)))


def change(ground: Ground) -> Verdict:
    """Raise the compute quota and the memory quota of running tasks."""
    compute_text, compute_ok = _compute_changed(ground)
    memory_text, memory_ok = _memory_changed(ground)
    return Verdict(f"{compute_text}; {memory_text}", compute_ok and memory_ok)


def _compute_changed(ground: Ground) -> tuple[str, bool]:
    free, limited = task(0, _FREE), task(0)
    with ground.crew(ground.small, {_FREE: {}, NVSHARE: {_CORES: str(LOW)}}) as crew:
        crew.call_up([free, limited])
        with ground.stage(crew) as stage:
            first = _alone(stage, free)
            half = ground.seconds / 2
            scene = Scene([limited], (), half + IN_TIME + ground.seconds, _SPENT, [Change(half, 0, RAISED)])
            seen = stage.play(scene)
            solo = Solo.of(first, _alone(stage, free))
    asked = seen.changes[0].at
    (track,) = seen.tracks
    before = solo.percent(track.speed(seen.begin, asked))
    after = solo.percent(track.speed(asked + IN_TIME, seen.end))
    text = f"compute {before:.1f} %, from {IN_TIME:g} s after the change {after:.1f} %{solo.said}"
    return text, solo.allows(before, LOW) and solo.allows(after, RAISED)


def _memory_changed(ground: Ground) -> tuple[str, bool]:
    quota = ground.small
    with ground.probe(ground.shared_environment(NVSHARE_GPU_MEMORY_LIMIT=str(quota))) as probe:
        before = probe.ask(do="look")["total"]
        with Connection(ground.venue.socket) as connection:
            connection.request("limit", target={"client": probe.client}, mem=2 * quota)
        eventually(lambda: probe.ask(do="look")["total"] != before, IN_TIME)
        after = probe.ask(do="look")["total"]
        granted = _take(probe, quota + quota // 2)
    text = f"memory {_mib(before)}, then {_mib(after)}, an allocation between them: {_said(granted)}"
    return text, (before, after) == (quota, 2 * quota) and granted
