"""Logs of schedulers and pods as a test on a cluster sees them, and the evidence that they make."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from nvshare.acceptance.kube_test import plan
from nvshare.acceptance.kube_test.evidence import Evidence, NodeSeen, PodSeen, PodState
from nvshare.acceptance.kube_test.logs import pod_log, scheduler_log
from nvshare.acceptance.kube_test.plan import Request
from nvshare.bench.workloads.spec import WORKLOADS

GIB = 1 << 30
CARDS = ("GPU-0", "GPU-1")
REQUEST = Request(2, WORKLOADS["add-small"], "image", "cafe")


def clock(seconds: float) -> str:
    return f"2026-05-04T10:00:{seconds:012.9f}Z"


def log(*said: tuple[float, str]) -> str:
    return "".join(f"{clock(at)} [NVSHARE][INFO]: {text}\n" for at, text in said)


def client(number: int) -> str:
    return f"{number:016x}"


def registered(at: float, number: int, gpu: str, pod: str = "") -> tuple[float, str]:
    name = pod or f"nvshare-small-{number}"
    return at, f"Registered client {client(number)} on GPU {gpu} with Pod name = {name}, Pod namespace = default"


def on(at: float, number: int) -> tuple[float, str]:
    return at, f"Sent LOCK_OK to client {client(number)}"


def off(at: float, number: int) -> tuple[float, str]:
    return at, f"Sent DROP_LOCK to client {client(number)}"


def gone(at: float, number: int) -> tuple[float, str]:
    return at, f"Removing client {client(number)}"


def said_by(number: int, gpu: str, passed: bool = True) -> str:
    ended = {"seconds": 11.0, "loop_seconds": 10.0, "its": 50.0, "uuid": gpu, "passed": passed}
    return (
        log((0, f"Client ID = {client(number)}"), (1, "Pending Kernel Window is 64"))
        + f"{clock(2)} 20/100 [9.00 it/s]\n{clock(9)} {'PASS' if passed else 'FAIL: the sums are wrong'}\n"
        + f"{clock(9)} {json.dumps(ended)}\n"
    )


def pods(request: Request, *texts: str, phases: tuple[str, ...] = ()) -> tuple[PodSeen, ...]:
    phases = phases or ("Succeeded",) * len(texts)
    return tuple(
        PodSeen(one, PodState(one.name, phase, exit_code=0 if phase == "Succeeded" else 1), pod_log(text))
        for one, text, phase in zip(plan.pods(replace(request, count=len(texts))), texts, phases, strict=True)
    )


def seen(request: Request, texts: list[str], scheduler: str, **more: Any) -> Evidence:
    cards = dict.fromkeys(more.pop("cards", CARDS[:1]), 13 * GIB)
    others = more.pop("others", {})
    phases = more.pop("phases", ())
    node = NodeSeen("node-1", cards, others, scheduler_log(scheduler))
    return Evidence(pods(request, *texts, phases=phases), (node,), **more)


PARALLEL = log(
    registered(0, 1, "GPU-0"), on(1, 1), registered(2, 2, "GPU-0"), on(2, 2), gone(9, 1), gone(10, 2)
)  # fmt: skip
IN_TURNS = log(
    registered(0, 1, "GPU-0"), on(1, 1), registered(2, 2, "GPU-0"), off(4, 1), on(5, 2),
    (7, f"Switched GPU GPU-0 from client {client(2)} to client {client(1)}: 0 MB out, 0 MB in, 0.000 s of stall"),
    on(7, 1), gone(9, 1), on(9.1, 2), gone(10, 2),
)  # fmt: skip
SHORTAGE = log((2, "Clients of GPU GPU-0 take turns: memory does not fit (7480 > 6000 MB)"))
BOTH = [said_by(1, "GPU-0"), said_by(2, "GPU-0")]
