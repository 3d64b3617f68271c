"""What a kube-test promises, and whether the evidence shows it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from nvshare.acceptance.finding import Finding, Verdict
from nvshare.acceptance.kube_test.evidence import Evidence, NodeSeen, PodSeen, status_of
from nvshare.acceptance.kube_test.holding import AT_ONCE, Holding, Meeting, holdings, meetings
from nvshare.acceptance.kube_test.plan import MIB, Request
from nvshare.acceptance.runner import Check

TOGETHER = 0.9  # of the time in which two tasks live side by side, both may work
_PROMPT = 1.0  # seconds from a changed limit to a task that feels it


def checks(request: Request) -> Iterator[Check[Evidence]]:
    """What is promised of such a test."""
    yield Check("finished", _finished, "every pod ends as it should")
    if request.baseline:
        return
    yield Check("shared", _shared, "a scheduler knows every task, as its pod's, on its GPU")
    yield Check("spread", _spread, "no GPU is given a pod while another of its node has two fewer")
    limited = "more than the limit is refused, less is not"
    if request.dynamic:
        yield Check("memory limit", partial(_held_at_first, request), limited)
        felt = f"a raised limit is felt within {_PROMPT:g} s, in the same process"
        yield Check("raised live", partial(_raised, request), felt)
    elif request.serial:
        yield Check("serial", _serial, "one task at a time per GPU")
    elif request.mem is None:
        yield Check("parallel", _parallel, "tasks that fit together work at the same time")
    else:
        yield Check("memory limit", partial(_limited, request), limited)


def judge(request: Request, evidence: Evidence) -> list[Finding]:
    return [check.judge(evidence) for check in checks(request)]


def _finished(evidence: Evidence) -> Verdict:
    wrong = [pod for pod in evidence.pods if status_of(pod) != pod.plan.expected]
    total = len(evidence.pods)
    if not wrong:
        return Verdict(f"{total} of {total} pods ended as they should", ok=True)
    reasons = "; ".join(f"{pod.plan.name}: {_why(pod)}" for pod in wrong[:3])
    return Verdict(f"{total - len(wrong)} of {total} pods ended as they should; {reasons}", ok=False)


def _why(pod: PodSeen) -> str:
    if not pod.state.done or pod.state.problem:
        return pod.state.problem or f"still {pod.state.phase.lower()}"
    seen = status_of(pod)
    return pod.log.complaint or (seen if seen != "FAIL" else f"ended with {pod.state.exit_code} and without PASS")


def _shared(evidence: Evidence) -> Verdict:
    """A scheduler knew every task, as that of its own pod, on the GPU that the task itself saw."""
    wrong = []
    for pod in evidence.pods:
        found = evidence.registration(pod)
        seen = pod.log.result.get("uuid")
        if found is None:
            wrong.append(f"{pod.plan.name} is unknown to every scheduler")
        elif found.label not in ("", pod.plan.name):
            wrong.append(f"{pod.plan.name} is known as pod {found.namespace}/{found.label}")
        elif seen is not None and seen not in found.cards:
            wrong.append(f"{pod.plan.name} computed on {seen}, the scheduler says {', '.join(found.cards)}")
    return Verdict("; ".join(wrong[:3]) or "a scheduler knew every task, on its GPU", not wrong)


def _spread(evidence: Evidence) -> Verdict:
    """On each node a GPU that was given a pod has at most one more than the GPU with the fewest."""
    if evidence.placement != "spread":
        return Verdict(f"the device plugin is told to {evidence.placement}", None)
    given = evidence.per_gpu()
    told, even = [], True
    for node in evidence.nodes:
        ours = {gpu: len(given.get(gpu, ())) for gpu in node.gpus}
        if not any(ours.values()):
            continue
        totals = {gpu: ours[gpu] + node.others.get(gpu, 0) for gpu in node.gpus}
        even = even and max(totals[gpu] for gpu in node.gpus if ours[gpu]) <= min(totals.values()) + 1
        told.append(f"{node.node}: {' + '.join(str(ours[gpu]) for gpu in node.gpus)} pods on its GPUs")
    if not told:
        return Verdict("no GPU of any scheduler was given a pod", ok=False)
    return Verdict("; ".join(told), even)


def sharing(evidence: Evidence) -> list[tuple[NodeSeen, str, list[PodSeen], list[Holding]]]:
    """The GPUs with two pods or more, and when each of their clients had the GPU."""
    found = []
    for node in evidence.nodes:
        had = holdings(node.log)
        for gpu, pods in evidence.per_gpu().items():
            if gpu in node.gpus and len(pods) > 1:
                clients = [evidence.result(pod).client for pod in pods]
                found.append((node, gpu, pods, [had[client] for client in clients if client in had]))
    return found


def _must_take_turns(node: NodeSeen, gpu: str, pods: Sequence[PodSeen]) -> bool:
    """The scheduler said that memory does not fit, and the sizes of the pods say the same."""
    needed = sum(pod.plan.bytes for pod in pods) // MIB
    return any(one.gpu == gpu and needed > one.capacity for one in node.log.shortages)


def _parallel(evidence: Evidence) -> Verdict:
    """Where memory fits, tasks that meet on a GPU may work at the same time and nobody is told to stop."""
    met: list[Meeting] = []
    turns = 0
    dropped: set[str] = set()
    for node, gpu, pods, present in sharing(evidence):
        if _must_take_turns(node, gpu, pods):
            turns += 1
            continue
        met += meetings(present)
        dropped |= {holding.client for holding in present if node.log.tasks[holding.client].dropped}
    if not met:
        why = f"memory does not fit on {turns} GPUs: tasks take turns there" if turns else "no two pods met on a GPU"
        return Verdict(why, None)
    together, seconds = sum(one.together for one in met), sum(one.seconds for one in met)
    worst = min(one.together / one.seconds for one in met)
    detail = (
        f"{_pairs(met)} met on a GPU for {seconds:.1f} s, both at work in {100 * together / seconds:.0f} % of it "
        f"(the least: {100 * worst:.0f} %)"
    )
    if dropped:
        detail += f"; DROP_LOCK was sent to {', '.join(sorted(dropped))}, though memory fits"
    return Verdict(detail, worst >= TOGETHER and not dropped)


def _pairs(met: Sequence[Meeting]) -> str:
    return f"{len(met)} pair{'s' * (len(met) > 1)}"


def _serial(evidence: Evidence) -> Verdict:
    """No two tasks of a GPU had it at the same time."""
    met = [meeting for _, _, _, present in sharing(evidence) for meeting in meetings(present)]
    if not met:
        waiting = any(len(pods) > 1 for _, _, pods, _ in sharing(evidence))
        why = "the pods of a GPU came one after the other by themselves" if waiting else "no two pods shared a GPU"
        return Verdict(why, None)
    together = sum(one.together for one in met)
    detail = f"{_pairs(met)} met on a GPU for {sum(one.seconds for one in met):.1f} s, both had it for {together:.2f} s"
    return Verdict(detail, all(one.together <= AT_ONCE for one in met))


def _limited(request: Request, evidence: Evidence) -> Verdict:
    """Pods beyond the limit get the out-of-memory error; pods below it pass."""
    limit = (request.mem or 0) // MIB
    over = [pod for pod in evidence.pods if pod.plan.expected == "OOM"]
    below = [pod for pod in evidence.pods if pod.plan.expected == "PASS"]
    refused = sum(status_of(pod) == "OOM" for pod in over)
    passed = sum(status_of(pod) == "PASS" for pod in below)
    detail = f"limit {limit} MiB: {refused} of {len(over)} pods beyond it met CUDA_ERROR_OUT_OF_MEMORY"
    if below:
        detail += f", {passed} of {len(below)} below it passed"
    return Verdict(detail, refused == len(over) and passed == len(below))


def _first_limit(pod: PodSeen) -> int | None:
    return pod.log.limits[0][1] if pod.log.limits else None


def _held_at_first(request: Request, evidence: Evidence) -> Verdict:
    """Growing pods stop at their first limit: not above it, and not a step below."""
    limit = request.limit or 0
    seen = [_first_limit(pod) for pod in evidence.pods]
    right = [held is not None and limit - request.step < held <= limit for held in seen]
    told = ", ".join("never" if held is None else f"{held // MIB}" for held in seen)
    return Verdict(f"limit {limit // MIB} MiB: pods met it at {told} MiB", all(right))


def _raised(request: Request, evidence: Evidence) -> Verdict:
    """With the raised limit every pod grows at once, in the same process."""
    waits = [_felt_after(pod, evidence) for pod in evidence.pods]
    grown = [any(size > (request.limit or 0) for _, size in pod.log.held) for pod in evidence.pods]
    told = ", ".join("not at all" if wait is None else f"{wait:.2f} s" for wait in waits)
    detail = f"raised to {request.raised_limit // MIB} MiB while they ran, felt after {told}"
    return Verdict(detail, all(grown) and all(wait is not None and wait <= _PROMPT for wait in waits))


def _felt_after(pod: PodSeen, evidence: Evidence) -> float | None:
    """Seconds from the change of the limit, as the scheduler logged it, to the first memory beyond the old limit."""
    met = _first_limit(pod)
    whole = f"{evidence.namespace}/{pod.plan.name}"
    beyond = [at for at, size in pod.log.held if met is not None and size > met]
    if not beyond:
        return None
    changes = (one for node in evidence.nodes for one in node.log.changes if one.pod == whole)
    before = [one.at for one in changes if one.at <= beyond[0] + AT_ONCE]
    return max(0.0, beyond[0] - before[-1]) if before else None
