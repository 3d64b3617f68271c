"""``check()``: what a worker really sees, against what its lease says."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from nvshare import config
from nvshare.client.connection import Connection, NoScheduler, SchedulerError
from nvshare.launch.errors import LeaseLost, WrongDevice
from nvshare.launch.seen import SeenGpu, seen_gpus

_PATIENCE = 5.0  # seconds for a scheduler that is away
_RETRY = 0.1


@dataclass(frozen=True)
class Sight:
    """What this process sees. ``lease`` is empty outside of one."""

    lease: str
    gpus: tuple[SeenGpu, ...]
    mem: int | None  # quotas in force, by the scheduler
    cores: int | None


def check() -> Sight:
    """What this process really sees of GPUs. ``WrongDevice`` when that is not what its lease says, ``LeaseLost`` when
    its scheduler knows no such lease. Outside of a lease it only looks."""
    variables = config.child_environment({})
    lease, seen = variables.get(config.LEASE_VARIABLE, ""), tuple(seen_gpus())
    if not lease:
        if variables.get("CUDA_VISIBLE_DEVICES") == "" and seen:
            raise WrongDevice(f"this process is to see no GPU, but CUDA shows {_names(seen)}")
        return Sight("", seen, None, None)
    held = look_up(lease)
    if held is None:
        raise LeaseLost(f"the scheduler on {config.find_socket()} knows no lease {lease}")
    wanted = tuple(variables.get("CUDA_VISIBLE_DEVICES", "").split(","))
    if set(wanted) != set(held["gpus"]):
        raise WrongDevice(f"CUDA_VISIBLE_DEVICES is {','.join(wanted)}, the lease is on {', '.join(held['gpus'])}")
    if tuple(gpu.uuid for gpu in seen) != wanted and not _are_instances(wanted, seen):
        raise WrongDevice(f"CUDA shows {_names(seen) or 'no GPU'}, the lease is on {', '.join(held['gpus'])}")
    mem = held["mem"]
    if mem is not None and any(gpu.total > mem for gpu in seen):
        raise WrongDevice(
            f"CUDA shows {max(gpu.total for gpu in seen)} bytes, the lease is for {mem}: libnvshare.so is not loaded "
            "(was LD_PRELOAD removed?)"
        )
    return Sight(lease, seen, mem, held["cores"])


def look_up(lease: str) -> dict[str, Any] | None:
    """A lease as the scheduler knows it; one that is being restarted is waited for, and its holders coming back."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with Connection(config.find_socket()) as connection:
                found = next((one for one in connection.status()["leases"] if one["id"] == lease), None)
            if found is not None or time.monotonic() > deadline:
                return found
        except NoScheduler as error:
            if time.monotonic() > deadline:
                raise LeaseLost(str(error)) from error
        except SchedulerError as error:
            raise LeaseLost(str(error)) from error
        time.sleep(_RETRY)


def _are_instances(wanted: tuple[str, ...], seen: tuple[SeenGpu, ...]) -> bool:
    """MIG instances: drivers differ in the beginning of the name that they tell."""
    return [uuid.partition("-")[2] for uuid in wanted] == [gpu.uuid.partition("-")[2] for gpu in seen]


def _names(seen: tuple[SeenGpu, ...]) -> str:
    return ", ".join(gpu.uuid for gpu in seen)
