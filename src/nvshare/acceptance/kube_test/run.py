"""A test from set-up to evidence: install nvshare, start pods, follow them, ask the schedulers, and clean up."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from nvshare.acceptance.kube_test import plan
from nvshare.acceptance.kube_test.evidence import (
    DELETED,
    Evidence,
    NodeSeen,
    PodSeen,
    PodState,
    others_per_gpu,
    pod_state,
    status_of,
)
from nvshare.acceptance.kube_test.kubectl import DEVICE_PLUGIN, SCHEDULER, Kubectl, KubectlFailed
from nvshare.acceptance.kube_test.logs import PodLog, pod_log, scheduler_log
from nvshare.acceptance.kube_test.plan import PodPlan, Request

_POLL = 1.0  # seconds between two looks at the pods
_OUTAGE = 120.0  # seconds for which the API server may be silent
_UNPLACED = 120.0  # seconds that pods may wait for a node while none of the test runs
_ROLLOUT = 300.0
_AT_A_TIME = 8  # pods whose logs are read per second
_LOG_TRIES = 3
_CLOCK_SKEW = 60.0  # seconds
_EVER = "1970-01-01T00:00:00Z"
_LAST_LINES = 40  # of a running pod's log: enough to see its progress

_PACKAGE = Path(__file__).resolve().parents[2]
MANIFESTS = ("namespace.yaml", "rbac.yaml", "scheduler.yaml", "device-plugin.yaml")


class TestFailed(Exception):
    """The test could not be carried out; the text says why and what to do."""

    __test__ = False  # pytest collects classes of such names


def manifests(directory: Path | None) -> list[Path]:
    """The files that install nvshare: those named, those of the wheel, or those of the source tree."""
    places = [directory] if directory else [_PACKAGE / "_deploy", _PACKAGE.parent.parent / "deploy" / "manifests"]
    for place in places:
        if all((place / name).is_file() for name in MANIFESTS):
            return [place / name for name in MANIFESTS]
    raise TestFailed(
        f"no manifests in {' or '.join(map(str, places))} ({', '.join(MANIFESTS)}): name their directory with "
        "--manifests, or use what is installed with --skip-setup"
    )


@dataclass(frozen=True)
class Seen:
    """A pod while the test runs."""

    state: PodState
    done: float


@dataclass(frozen=True)
class Watchers:
    """Called with each step, and with the pods after each look."""

    step: Callable[[str], None] = lambda text: None
    pods: Callable[[Sequence[Seen]], None] = lambda pods: None


@dataclass
class KubeTest:
    kubectl: Kubectl
    request: Request
    watchers: Watchers = field(default_factory=Watchers)
    timeout: float = 3600.0
    poll: float = _POLL
    undisturbed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext  # wraps the clean-up

    def set_up(self, files: Sequence[Path]) -> None:
        """Apply the manifests and restart both DaemonSets."""
        for daemonset in (SCHEDULER, DEVICE_PLUGIN):
            release = self.kubectl.release_of(daemonset)
            if release:
                raise TestFailed(f"Helm installed nvshare here (release {release}): use it as it is with --skip-setup")
        self.watchers.step("installing nvshare")
        self.kubectl.apply(files)
        for daemonset in (SCHEDULER, DEVICE_PLUGIN):
            self.kubectl.restart(daemonset)
        for daemonset in (SCHEDULER, DEVICE_PLUGIN):
            self.watchers.step(f"waiting for {daemonset}")
            self.kubectl.await_rollout(daemonset, _ROLLOUT)

    def run(self) -> Evidence:
        """Run the pods. However it ends, pods of this and of earlier tests are gone afterwards."""
        request = self.request
        plans = plan.pods(request)
        self.watchers.step("removing pods of earlier tests")
        self.kubectl.delete_runs(request.namespace)
        with self._schedulers() as nodes:
            try:
                self.watchers.step(f"starting {request.count} pods")
                self.kubectl.create(plan.pod_list(plans, request))
                if request.dynamic:
                    self._follow(plans, lambda seen: all(_has_met_limit(pod) for pod in seen))
                    for one in plans:
                        limit = str(request.raised_limit)
                        self.kubectl.annotate(one.name, request.namespace, plan.MEMORY_ANNOTATION, limit)
                pods = self._follow(plans, lambda seen: all(pod.ended for pod in seen))
                return self._evidence(pods, nodes)
            finally:
                with self.undisturbed():
                    self.watchers.step("removing the pods")
                    self.kubectl.delete_runs(request.namespace, request.run_id)

    @contextlib.contextmanager
    def _schedulers(self) -> Iterator[list[_Scheduler]]:
        """Set all schedulers to the mode of this test, and back afterwards."""
        if self.request.baseline:
            yield []
            return
        found = [_Scheduler(self.kubectl, pod) for pod in self.kubectl.schedulers()]
        if not found:
            raise TestFailed(
                f"no scheduler runs in this cluster (no pod with name={SCHEDULER} in nvshare-system): install nvshare, "
                "and label the nodes with GPUs: kubectl label node NODE nvidia.com/gpu.present=true"
            )
        try:
            for one in found:
                one.set_mode(self.request.mode)
            yield found
        finally:
            with self.undisturbed():
                for one in found:
                    with contextlib.suppress(KubectlFailed):  # the scheduler is gone, and its mode with it
                        one.set_mode(one.mode)

    def _follow(self, plans: Sequence[PodPlan], enough: Callable[[list[PodSeen]], bool]) -> list[PodSeen]:
        """Watch the pods until ``enough`` says so, waiting becomes useless, or the time is over."""
        began = answered = placed = time.monotonic()
        logs: dict[str, PodLog] = {}
        while True:
            now = time.monotonic()
            try:
                seen = self._look(plans, logs)
                answered = now
            except KubectlFailed:
                if now - answered > _OUTAGE:
                    raise
                time.sleep(self.poll)
                continue
            self.watchers.pods([Seen(pod.state, pod.log.done) for pod in seen])
            waiting = [pod for pod in seen if not pod.ended]
            if enough(seen) or not waiting:
                return seen
            if any(pod.state.phase == "Running" for pod in waiting):
                placed = now
            if now - began > self.timeout or now - placed > _UNPLACED or any(pod.state.hopeless for pod in waiting):
                return seen
            time.sleep(self.poll * max(1.0, len(waiting) / _AT_A_TIME))

    def _look(self, plans: Sequence[PodPlan], logs: dict[str, PodLog]) -> list[PodSeen]:
        """The pods now. Reads the whole log of a pod once it has ended, before that only the last lines."""
        request = self.request
        there = {
            pod["metadata"]["name"]: pod_state(pod)
            for pod in self.kubectl.pods(request.namespace, f"{plan.RUN_LABEL}={request.run_id}")
        }
        for name, state in there.items():
            known = logs.setdefault(name, PodLog())
            if state.phase == "Running" or (state.done and not known.complete):
                logs[name] = self._log(state, known)
        return [
            PodSeen(one, there.get(one.name, PodState(one.name, DELETED)), logs.get(one.name, PodLog()))
            for one in plans
        ]

    def _log(self, state: PodState, known: PodLog) -> PodLog:
        """The log so far. A pod that never ran has none: after some tries, give up."""
        tail = None if state.done or self.request.dynamic else _LAST_LINES
        try:
            log = pod_log(self.kubectl.log(state.name, self.request.namespace, tail))
        except KubectlFailed:
            tries = known.failures + 1
            return replace(known, failures=tries, complete=state.done and tries >= _LOG_TRIES)
        log.complete = state.done
        return log

    def _evidence(self, pods: list[PodSeen], nodes: list[_Scheduler]) -> Evidence:
        """The pods, with the logs of the schedulers since the first pod was made."""
        if self.request.baseline:
            return Evidence(tuple(pods), namespace=self.request.namespace)
        selector = f"{plan.RUN_LABEL}={self.request.run_id}"
        made = [pod["metadata"]["creationTimestamp"] for pod in self.kubectl.pods(self.request.namespace, selector)]
        since = _a_little_before(min(made)) if made else _EVER
        return Evidence(
            pods=tuple(pods),
            nodes=tuple(node.seen(since) for node in nodes),
            namespace=self.request.namespace,
            placement=_placement(self.kubectl.daemonset(DEVICE_PLUGIN)),
        )


def _a_little_before(moment: str) -> str:
    """The clocks of the API server and of the nodes may differ."""
    earlier = datetime.fromisoformat(moment.replace("Z", "+00:00")) - timedelta(seconds=_CLOCK_SKEW)
    return earlier.isoformat().replace("+00:00", "Z")


def _has_met_limit(pod: PodSeen) -> bool:
    return bool(pod.log.limits) or pod.ended


def _placement(daemonset: dict[str, Any]) -> str:
    containers = daemonset["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value", "") for container in containers for one in container.get("env") or ()}
    return variables.get("NVSHARE_PLACEMENT") or "spread"


class _Scheduler:
    """The pod of one scheduler, with its mode, GPUs and tasks as they were before the test."""

    def __init__(self, kubectl: Kubectl, pod: dict[str, Any]) -> None:
        self._kubectl = kubectl
        self._pod: str = pod["metadata"]["name"]
        self._node: str = pod["spec"].get("nodeName", self._pod)
        status = json.loads(kubectl.in_scheduler(self._pod, "nvsharectl", "status", "--json"))
        self.mode: str = status["settings"]["mode"]
        self._gpus = {gpu["uuid"]: int(gpu["capacity"]) for gpu in status["gpus"]}
        self._others = others_per_gpu(status)
        self._now = self.mode

    def set_mode(self, mode: str) -> None:
        if mode != self._now:
            self._kubectl.in_scheduler(self._pod, "nvsharectl", "set", "--mode", mode)
            self._now = mode

    def seen(self, since: str) -> NodeSeen:
        log = scheduler_log(self._kubectl.scheduler_log(self._pod, since))
        return NodeSeen(self._node, self._gpus, self._others, log)


def ended_badly(pods: Sequence[PodSeen]) -> list[str]:
    """What those pods said that did not end as they should."""
    wrong = (pod for pod in pods if status_of(pod) != pod.plan.expected)
    return [f"{pod.plan.name}: {pod.log.complaint or pod.state.problem or 'it said nothing'}" for pod in wrong]
