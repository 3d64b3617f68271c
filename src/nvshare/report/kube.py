"""The report of a kube-test: its tasks, findings and sentences, as text and JSON; and a baseline from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nvshare.acceptance.exit_code import passed
from nvshare.acceptance.finding import Finding
from nvshare.acceptance.kube_test.evidence import Evidence, PodSeen
from nvshare.acceptance.kube_test.holding import holdings, switches
from nvshare.acceptance.kube_test.plan import Request
from nvshare.acceptance.kube_test.run import ended_badly
from nvshare.acceptance.kube_test.verdicts import judge, sharing
from nvshare.bench.mission import make_row
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import Outcome, TaskResult
from nvshare.bench.spans import Span
from nvshare.report.findings import finding_line
from nvshare.report.page.kinds import KINDS, NotAResult, parsed
from nvshare.report.sentences import pod_findings
from nvshare.report.text import RULE, task_report

KIND = "kube-test"
_TEST = 0
SOURCE = "kubernetes"


@dataclass(frozen=True)
class Result:
    request: Request
    tasks: tuple[TaskResult, ...]
    nodes: tuple[str, ...]  # of the tasks
    verdicts: tuple[Finding, ...]
    sentences: tuple[str, ...]
    messages: tuple[str, ...]
    row: Row | None
    baseline_s: float | None
    timeline: list[dict[str, Any]]

    @property
    def passed(self) -> bool:
        return passed(self.verdicts)

    def text(self) -> str:
        """The whole report."""
        verdicts = map(finding_line, self.verdicts)
        word = "PASSED" if self.passed else "FAILED"
        return "\n".join([task_report(self.tasks), *self.messages, RULE, *self.sentences, *verdicts, word])

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": self.request.title,
            "request": asdict(self.request),
            "passed": self.passed,
            "tasks": [{**asdict(task), "node": node} for task, node in zip(self.tasks, self.nodes, strict=True)],
            "rows": [verdict.to_dict() for verdict in self.verdicts],
            "findings": list(self.sentences),
            "messages": list(self.messages),
            "measured": None if self.row is None else self.row.to_dict(),
            "baseline_s": self.baseline_s,
            "timeline": self.timeline,
        }


def result(request: Request, evidence: Evidence, baseline_s: float | None) -> Result:
    tasks = tuple(evidence.result(pod) for pod in evidence.pods)
    row = _row(request, evidence, tasks, baseline_s)
    return Result(
        request=request,
        tasks=tasks,
        nodes=tuple(pod.state.node for pod in evidence.pods),
        verdicts=tuple(judge(request, evidence)),
        sentences=tuple(pod_findings(row, baseline_s is not None) if row else ()),
        messages=tuple(ended_badly(evidence.pods)),
        row=row,
        baseline_s=baseline_s,
        timeline=_timeline(evidence),
    )


def _row(request: Request, evidence: Evidence, tasks: Sequence[TaskResult], baseline_s: float | None) -> Row | None:
    """The test as a row of the bench; None where no pod should finish a workload."""
    if request.dynamic or not any(task.expected == "PASS" for task in tasks):
        return None
    turns = sum(switches(present) for _, _, _, present in sharing(evidence))
    outcome = Outcome(tuple(tasks), switches=turns)
    in_turns = any(node.log.shortages for node in evidence.nodes) or request.serial
    return make_row(
        _TEST, request.title, request.workload.name, request.mode, outcome, SOURCE, baseline_s, in_turns=in_turns
    )


def _timeline(evidence: Evidence) -> list[dict[str, Any]]:
    """Who had which card when and who waited for it, in seconds since the first task wanted one."""
    per_gpu = evidence.per_gpu()
    had = {client: holding for node in evidence.nodes for client, holding in holdings(node.log).items()}
    lives = {
        pod.plan.name: holding
        for pods in per_gpu.values()
        for pod in pods
        if (holding := had.get(evidence.result(pod).client))
    }
    first = min((one.life.begin for one in lives.values()), default=0.0)
    last = max((one.life.end for one in lives.values()), default=0.0)

    def since_first(spans: Sequence[Span]) -> list[tuple[float, float]]:
        return [(round(span.begin - first, 3), round(span.end - first, 3)) for span in spans]

    def lane(pod: PodSeen) -> dict[str, Any]:
        one = lives.get(pod.plan.name)
        held, waited = (one.spans, one.waited) if one else ((), ())
        return {"task": pod.plan.name, "held": since_first(held), "waited": since_first(waited), "memory": []}

    return [
        {
            "node": node.node,
            "gpu": gpu,
            "index": index,
            "capacity": capacity,
            "seconds": round(last - first, 3),
            "resolution_s": 0.0,
            "tasks": [lane(pod) for pod in per_gpu[gpu]],
        }
        for node in evidence.nodes
        for index, (gpu, capacity) in enumerate(node.gpus.items())
        if gpu in per_gpu
    ]


class NoBaseline(Exception):
    """A file that holds no baseline of this workload; the text says why."""


def read_baseline(path: Path, request: Request) -> float:
    """Seconds that the same workload took in an earlier ``--baseline`` test."""
    try:
        before = parsed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise NoBaseline(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    except NotAResult as error:
        raise NoBaseline(f"{path}: {error}") from None
    if before.kind is not KINDS[KIND]:
        raise NoBaseline(f"{path} is a result of {before.kind.command}: --against takes one of nvshare kube-test")
    content = before.content
    row, asked = content.get("measured"), content["request"]
    if not asked["baseline"] or row is None or not content["passed"]:
        raise NoBaseline(f"{path} holds no baseline that passed: make one with --baseline --json {path}")
    if asked["workload"] != asdict(request.workload):
        raise NoBaseline(f"{path} is the baseline of another workload ({asked['workload']['name']})")
    return float(row["duration_s"])
