"""Memory quotas as frameworks meet them, and whether the accounting drifts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvshare.bench.gpu.frameworks.tasks import LINKED, Task, nvml_bytes, tasks
from nvshare.bench.gpu.report import Row
from nvshare.bench.gpu.scheduler import GIB, OwnScheduler
from nvshare.bench.worker import WorkerFailed
from nvshare.bench.workloads.spec import seeded

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


def quota(names: list[str], build: Path, rounds: int) -> Iterator[Row]:
    limit = {"NVSHARE_GPU_MEMORY_LIMIT": f"{QUOTA_GIB}Gi"}
    with OwnScheduler(build / "quota") as whole:
        chosen = [name for name in QUOTED if name in names]
        with tasks(*(Task(name, build, whole, **limit, **QUOTED[name]) for name in chosen)) as started:
            for worker in started:
                try:
                    said = worker.ask("oom", 2 * QUOTA_GIB * 1024)
                except WorkerFailed as failure:
                    yield {"test": f"quota {worker.framework}", "error": str(failure), "ok": False}
                    continue
                full = QUOTA_GIB * 1024
                at_quota = full - SLACK_MIB <= said["reached_mib"] <= full
                own = OWN_ERROR[worker.framework] in said["error"]
                ok = at_quota and own and said["total_mib"] == full and said["recovered"]
                yield {"test": f"quota {worker.framework}", **said, "ok": ok}


def drift(names: list[str], build: Path, rounds: int) -> Iterator[Row]:
    """Ten tasks at random quotas allocate and free for two minutes; then what is counted must be what NVML sees.
    Nothing of it depends on speed, so it may run beside others."""
    dice = seeded(3)
    quotas = [dice.randint(2, 16) * 256 for _ in range(TASKS)]  # MiB
    with OwnScheduler(build / "drift", apart=True) as whole:
        started = [Task(LINKED, build, whole, NVSHARE_GPU_MEMORY_LIMIT=f"{mib}Mi") for mib in quotas]
        with tasks(*started):
            pids = [worker.ask("info")["pid"] for worker in started]
            for worker in started:
                worker.ask("prepare", 0.1)
                worker.ask("steps", 2)
            contexts = [nvml_bytes(pid) - whole.attachment(pid)["allocated"] for pid in pids]
            for seed, worker in enumerate(started):
                worker.send("churn", CHURN_SECONDS, seed + 1)
            answers = [worker.receive(CHURN_SECONDS + 60) for worker in started]
            held = [whole.attachment(pid)["allocated"] for pid in pids]
            off = [nvml_bytes(pid) - book - context for pid, book, context in zip(pids, held, contexts, strict=True)]
            over = [book > mib << 20 for book, mib in zip(held, quotas, strict=True)]
            for worker in started:
                worker.ask("free")
            left = [nvml_bytes(pid) - context for pid, context in zip(pids, contexts, strict=True)]
            booked = [whole.attachment(pid)["allocated"] for pid in pids]
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
