"""What came of a test: the report's lines, verdicts and sentences, and the same for machines. Pure, but for a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nvshare.lab.findings import pod_findings
from nvshare.lab.kube_test.evidence import Evidence
from nvshare.lab.kube_test.holding import holdings, switches
from nvshare.lab.kube_test.plan import Request
from nvshare.lab.kube_test.run import ended_badly
from nvshare.lab.kube_test.verdicts import judge
from nvshare.lab.mission import Row, make_row
from nvshare.lab.outcome import Outcome, TaskResult
from nvshare.lab.report import RULE, task_report
from nvshare.lab.stress.verdicts import Verdict

KIND, VERSION = "kube-test", 1
_TEST = 0
SOURCE = "kubernetes"
_WORDS = {True: "PASS", False: "FAIL", None: "SKIP"}


@dataclass(frozen=True)
class Result:
    request: Request
    tasks: tuple[TaskResult, ...]
    verdicts: tuple[Verdict, ...]
    findings: tuple[str, ...]
    messages: tuple[str, ...]
    row: Row | None
    timeline: dict[str, list[dict[str, Any]]]

    @property
    def passed(self) -> bool:
        return all(verdict.passed is not False for verdict in self.verdicts)

    def text(self) -> str:
        """The whole report."""
        verdicts = (f"[{_WORDS[one.passed]}] {one.name}: {one.detail}" for one in self.verdicts)
        word = "PASSED" if self.passed else "FAILED"
        return "\n".join([task_report(self.tasks), *self.messages, RULE, *self.findings, *verdicts, word])

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "version": VERSION,
            "request": asdict(self.request),
            "passed": self.passed,
            "tasks": [asdict(task) for task in self.tasks],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "findings": list(self.findings),
            "messages": list(self.messages),
            "row": None if self.row is None else self.row.to_dict(),
            "timeline": self.timeline,
        }


def result(request: Request, evidence: Evidence, baseline_s: float | None) -> Result:
    tasks = tuple(evidence.result(pod) for pod in evidence.pods)
    row = _row(request, evidence, tasks, baseline_s)
    return Result(
        request=request,
        tasks=tasks,
        verdicts=tuple(judge(request, evidence)),
        findings=tuple(pod_findings(row, baseline_s is not None) if row else ()),
        messages=tuple(ended_badly(evidence.pods)),
        row=row,
        timeline=_timeline(evidence),
    )


def _row(request: Request, evidence: Evidence, tasks: Sequence[TaskResult], baseline_s: float | None) -> Row | None:
    """None where no pod was to finish a workload."""
    if request.dynamic or not any(task.expected == "PASS" for task in tasks):
        return None
    turns = sum(switches(list(holdings(node.log).values())) for node in evidence.nodes)
    outcome = Outcome(tuple(tasks), switches=turns)
    in_turns = any(node.log.shortages for node in evidence.nodes) or request.serial
    return make_row(
        _TEST, request.title, request.workload.name, request.mode, outcome, SOURCE, baseline_s, in_turns=in_turns
    )


def _timeline(evidence: Evidence) -> dict[str, list[dict[str, Any]]]:
    """Who had which GPU when, in seconds since the first had any."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for node in evidence.nodes:
        had = holdings(node.log)
        for gpu, pods in evidence.per_gpu().items():
            for pod in pods if gpu in node.gpus else ():
                holding = had.get(evidence.result(pod).client)
                for span in holding.spans if holding else ():
                    found.setdefault(gpu, []).append((pod.plan.name, span.begin, span.end))
    first = min((begin for spans in found.values() for _, begin, _ in spans), default=0.0)
    return {
        gpu: [{"who": who, "from": round(begin - first, 3), "to": round(end - first, 3)} for who, begin, end in spans]
        for gpu, spans in found.items()
    }


class NoBaseline(Exception):
    """A file that holds no baseline of this workload; the text says why."""


def read_baseline(path: Path, request: Request) -> float:
    """Seconds that the same workload took in an earlier ``--baseline`` test."""
    try:
        content = json.loads(path.read_text())
        ours = content["kind"] == KIND and content["version"] == VERSION
        row, asked = content["row"], content["request"]
    except (OSError, ValueError, KeyError, TypeError):
        raise NoBaseline(f"{path} is no result of nvshare kube-test --json") from None
    if not ours:
        raise NoBaseline(f"{path} is a result of another version of nvshare kube-test")
    if not asked["baseline"] or row is None or not content["passed"]:
        raise NoBaseline(f"{path} holds no baseline that passed: make one with --baseline --json {path}")
    if asked["workload"] != asdict(request.workload):
        raise NoBaseline(f"{path} is the baseline of another workload ({asked['workload']['name']})")
    return float(row["duration_s"])
