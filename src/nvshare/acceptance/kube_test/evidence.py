"""The evidence of a test: its pods, and the schedulers of their nodes. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvshare.acceptance.concurrency.story import Task
from nvshare.acceptance.kube_test.logs import PodLog, SchedulerLog
from nvshare.acceptance.kube_test.plan import PodPlan
from nvshare.bench.outcome import TaskResult

# Reasons of a waiting container that never end by themselves.
_HOPELESS = {
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
DELETED = "Deleted"  # by somebody else
DONE = ("Succeeded", "Failed", DELETED)


@dataclass(frozen=True)
class PodState:
    """``problem`` says why the pod does not run; ``hopeless``: waiting does not help."""

    name: str
    phase: str = "Unknown"
    node: str = ""
    exit_code: int | None = None
    problem: str = ""
    hopeless: bool = False

    @property
    def done(self) -> bool:
        return self.phase in DONE


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """From a pod of the API."""
    status = pod.get("status", {})
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason", "")
    unscheduled: Mapping[str, Any] = next(
        (one for one in status.get("conditions") or () if one["type"] == "PodScheduled" and one["status"] == "False"),
        {},
    )
    reasons = (reason, waiting.get("message")) if reason else (unscheduled.get("reason"), unscheduled.get("message"))
    refused = (status.get("reason"), status.get("message"))  # by the kubelet
    return PodState(
        name=pod["metadata"]["name"],
        phase=status.get("phase", "Unknown"),
        node=pod.get("spec", {}).get("nodeName", ""),
        exit_code=(state.get("terminated") or {}).get("exitCode"),
        problem=": ".join(filter(None, reasons)) or ": ".join(filter(None, refused)),
        hopeless=reason in _HOPELESS,
    )


@dataclass(frozen=True)
class PodSeen:
    plan: PodPlan
    state: PodState
    log: PodLog

    @property
    def ended(self) -> bool:
        """The pod is over, and its whole log is known."""
        return self.state.phase == DELETED or (self.state.done and self.log.complete)


@dataclass(frozen=True)
class NodeSeen:
    """A scheduler. ``gpus``: the bytes that tasks may have on each. ``others``: how many tasks of others each GPU had
    when the test began. ``log``: what the scheduler logged since."""

    node: str
    gpus: Mapping[str, int]
    others: Mapping[str, int] = field(default_factory=dict)
    log: SchedulerLog = field(default_factory=SchedulerLog)


@dataclass(frozen=True)
class Evidence:
    pods: tuple[PodSeen, ...]
    nodes: tuple[NodeSeen, ...] = ()
    namespace: str = "default"
    placement: str = "spread"

    def registration(self, pod: PodSeen) -> Task | None:
        """The client that a scheduler knows as the pod's task: by the task's id, else by the pod's name."""
        known = [task for node in self.nodes for task in node.log.tasks.values() if task.cards]
        by_id = next((task for task in known if task.id == pod.log.client), None)
        whole = (pod.plan.name, self.namespace)
        return by_id or next((task for task in reversed(known) if (task.label, task.namespace) == whole), None)

    def gpu(self, pod: PodSeen) -> str:
        found = self.registration(pod)
        return found.cards[0] if found else str(pod.log.result.get("uuid", ""))

    def result(self, pod: PodSeen) -> TaskResult:
        """The pod as a line of the report."""
        found, log = self.registration(pod), pod.log
        return TaskResult(
            name=pod.plan.name,
            client=found.id if found else log.client,
            gpu=self.gpu(pod) or "-",
            status=status_of(pod),
            expected=pod.plan.expected,
            seconds=float(log.result.get("seconds", log.seconds)),
            loop_seconds=float(log.result.get("loop_seconds", log.seconds)),
            its=float(log.result.get("its", log.its)),
            window=log.window,
        )

    def per_gpu(self) -> dict[str, list[PodSeen]]:
        """The pods of each GPU that had any."""
        found: dict[str, list[PodSeen]] = {}
        for pod in self.pods:
            if self.registration(pod) is not None:
                found.setdefault(self.gpu(pod), []).append(pod)
        return found


def status_of(pod: PodSeen) -> str:
    """PASS: the pod succeeded, and its program found its sums right."""
    passed = pod.log.result.get("passed", pod.log.said_pass)
    if pod.state.phase == "Succeeded" and passed:
        return "PASS"
    return "OOM" if pod.log.out_of_memory and pod.state.phase == "Failed" else "FAIL"


def others_per_gpu(status: Mapping[str, Any]) -> Counter[str]:
    """Tasks on each GPU, from the status of a scheduler."""
    return Counter(place["uuid"] for client in status["clients"] for place in client["gpus"])
