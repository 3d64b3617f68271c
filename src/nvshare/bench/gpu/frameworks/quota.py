"""Memory quotas as frameworks meet them, and whether the accounting drifts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cast import GIB, LINKED, Failed, Worker, nvml_bytes, scheduler, workers

QUOTA_GIB = 4
QUOTED = {  # JAX keeps a quarter for others unless told otherwise
    "torch": {},
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "1.0"},
    "cupy": {},
}
OWN_ERROR = {"torch": "OutOfMemoryError", "jax": "RESOURCE_EXHAUSTED", "cupy": "OutOfMemoryError"}
SLACK_MIB = 256  # of an allocator's own granularity, below the quota
TASKS = 10
CHURN_SECONDS = 120.0
DRIFT = 2 << 20


def quota(names: list[str], build: Path, rounds: int) -> Iterator[dict[str, Any]]:
    limit = {"NVSHARE_GPU_MEMORY_LIMIT": f"{QUOTA_GIB}Gi"}
    with scheduler(build / "quota") as whole:
        chosen = [name for name in QUOTED if name in names]
        with workers(*(Worker(name, build, whole, **limit, **QUOTED[name]) for name in chosen)) as started:
            for worker in started:
                try:
                    said = worker.ask("oom", 2 * QUOTA_GIB * 1024)
                except Failed as failure:
                    yield {"test": f"quota {worker.name}", "error": str(failure), "ok": False}
                    continue
                full = QUOTA_GIB * 1024
                at_quota = full - SLACK_MIB <= said["reached_mib"] <= full and OWN_ERROR[worker.name] in said["error"]
                ok = at_quota and said["total_mib"] == full and said["recovered"]
                yield {"test": f"quota {worker.name}", **said, "ok": ok}


def drift(names: list[str], build: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Ten tasks at random quotas allocate and free for two minutes; then what is counted must be what NVML sees.
    Nothing of it depends on speed, so it may run beside others."""
    dice = random.Random(3)
    quotas = [dice.randint(2, 16) * 256 for _ in range(TASKS)]  # MiB
    with scheduler(build / "drift", apart=True) as whole:
        started = [Worker(LINKED, build, whole, NVSHARE_GPU_MEMORY_LIMIT=f"{mib}Mi") for mib in quotas]
        with workers(*started):
            pids = [worker.ask("info")["pid"] for worker in started]
            for worker in started:
                worker.ask("prepare", 0.1)
                worker.ask("steps", 2)
            contexts = [nvml_bytes(pid) - whole.place(pid)["allocated"] for pid in pids]
            for seed, worker in enumerate(started):
                worker.send("churn", CHURN_SECONDS, seed + 1)
            answers = [worker.receive(CHURN_SECONDS + 60) for worker in started]
            held = [whole.place(pid)["allocated"] for pid in pids]
            off = [nvml_bytes(pid) - book - context for pid, book, context in zip(pids, held, contexts, strict=True)]
            over = [book > mib << 20 for book, mib in zip(held, quotas, strict=True)]
            for worker in started:
                worker.ask("free")
            left = [nvml_bytes(pid) - context for pid, context in zip(pids, contexts, strict=True)]
            booked = [whole.place(pid)["allocated"] for pid in pids]
    yield {
        "test": "ten tasks allocate and free",
        "quotas_mib": quotas,
        "allocations": sum(answer["made"] for answer in answers),
        "refused": sum(answer["refused"] for answer in answers),
        "held_gib": round(sum(held) / GIB, 2),
        "drift_bytes": off,
        "after_freeing_bytes": [seen - book for seen, book in zip(left, booked, strict=True)],
        "ok": max(map(abs, off)) <= DRIFT
        and not any(over)
        and max(abs(seen - book) for seen, book in zip(left, booked, strict=True)) <= DRIFT,
    }
