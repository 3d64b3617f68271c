"""What a test is asked for, and the pods that it starts. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nvshare.bench.mission import BASELINES
from nvshare.bench.workloads.spec import FLOAT_BYTES, WORKLOADS, Workload

SHARED_RESOURCE = "nvshare.com/gpu"
WHOLE_RESOURCE = "nvidia.com/gpu"
MEMORY_ANNOTATION = "nvshare.com/gpu-memory-limit"
RUN_LABEL = "nvshare.com/kube-test"
CONTAINER = "workload"
MIB = 1 << 20

OVER, BELOW = 1.25, 0.75  # of the limit: this must fail, that must not
DYNAMIC_LIMIT = 1 << 30  # the first limit of a test that raises it, by default
RAISED = 3  # times the first limit
LEAST_LIMIT = 64 * MIB  # with less, rounding decides
_STEPS = 8  # of growing, per limit
_COUNTED = 2 * MIB  # memory is counted in units of this
_PATIENCE = 600  # seconds that a growing pod waits at its limit


@dataclass(frozen=True)
class Request:
    """``mem``: the memory limit of every pod. ``dynamic``: raise it while they run. ``speed``: how many times as fast
    as life the simulated cards of the cluster run."""

    count: int
    workload: Workload
    image: str
    run_id: str
    namespace: str = "default"
    serial: bool = False
    baseline: bool = False
    mem: int | None = None
    dynamic: bool = False
    speed: float = 1.0

    @property
    def mode(self) -> str:
        if self.baseline:
            return "plain"
        return "serial" if self.serial else "auto"

    @property
    def limit(self) -> int | None:
        """The first memory limit of every pod."""
        return self.mem or (DYNAMIC_LIMIT if self.dynamic else None)

    @property
    def raised_limit(self) -> int:
        return RAISED * (self.limit or 0)

    @property
    def grown(self) -> int:
        """What a growing pod holds in the end: more than its first limit, less than the raised one."""
        return 2 * (self.limit or 0)

    @property
    def step(self) -> int:
        return (self.limit or 0) // _STEPS // _COUNTED * _COUNTED

    @property
    def title(self) -> str:
        what = "growing" if self.dynamic else self.workload.name
        limit = f", limited to {self.mem // MIB} MiB" if self.mem and not self.dynamic else ""
        return f"{self.count} {what}{limit}, {self.mode}"


@dataclass(frozen=True)
class PodPlan:
    """``expected``: PASS, or OOM where the pod must meet its limit."""

    name: str
    command: tuple[str, ...]
    bytes: int
    expected: str = "PASS"
    annotations: Mapping[str, str] = field(default_factory=dict)


def pods(request: Request) -> list[PodPlan]:
    """The pods of a test. Under a limit every other pod exceeds it, beginning with the first."""
    stem = f"nvshare-{BASELINES[request.workload.name].pod}"
    return [_pod(request, f"{stem}-{index + 1}", index) for index in range(request.count)]


def _pod(request: Request, name: str, index: int) -> PodPlan:
    limit = request.limit
    if limit is None:
        return PodPlan(name, _command(request, request.workload, index + 1), request.workload.bytes)
    annotations = {MEMORY_ANNOTATION: str(limit)}
    if request.dynamic:
        return PodPlan(name, _growing(request), request.grown, annotations=annotations)
    over = index % 2 == 0
    wanted = max(request.workload.bytes, int(OVER * limit)) if over else min(request.workload.bytes, int(BELOW * limit))
    workload = sized(request.workload, wanted)
    command = _command(request, workload, index + 1)
    return PodPlan(name, command, workload.bytes, "OOM" if over else "PASS", annotations)


def sized(workload: Workload, size: int) -> Workload:
    """The same workload with about ``size`` bytes, never more."""
    if size == workload.bytes:
        return workload
    return replace(workload, n=max(1, math.isqrt(size // workload.buffers // FLOAT_BYTES)))


def _command(request: Request, workload: Workload, seed: int) -> tuple[str, ...]:
    """The command of a pod, by the name of the module that images of earlier releases have too."""
    known = WORKLOADS[workload.name]
    return (
        *("python3", "-m", "nvshare.lab.workloads", workload.name, "--seed", str(seed), "--progress", "--json"),
        *(("--n", str(workload.n)) if workload.n != known.n else ()),
        *(("--iterations", str(workload.iterations)) if workload.iterations != known.iterations else ()),
        *(("--time-scale", f"{request.speed:g}") if request.speed != 1.0 else ()),
    )


def _growing(request: Request) -> tuple[str, ...]:
    return (
        *("python3", "-m", "nvshare.lab.workloads.grow", "--until", str(request.grown)),
        *("--step", str(request.step), "--patience", str(_PATIENCE)),
    )


def pod_object(plan: PodPlan, request: Request) -> dict[str, Any]:
    """The pod as the API takes it. Runs once, as nobody in particular, with one GPU or one share of one."""
    resource = WHOLE_RESOURCE if request.baseline else SHARED_RESOURCE
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.name,
            "namespace": request.namespace,
            "labels": {RUN_LABEL: request.run_id},
            "annotations": dict(plan.annotations),
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "tolerations": [{"key": WHOLE_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": CONTAINER,
                    "image": request.image,
                    "command": list(plan.command),
                    "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
                    "resources": {"limits": {resource: "1"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def pod_list(plans: list[PodPlan], request: Request) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": [pod_object(plan, request) for plan in plans]}
