"""The machine around the cards: settings, memory, limits, other ways of sharing."""

from __future__ import annotations

from nvshare.config import format_size
from nvshare.doctor.facts import Facts
from nvshare.doctor.findings import Verdict, Verdicts, note, ok, problem, warning

_SMALL_SHM = 1 << 30  # bytes; containers get 64 MiB unless told
_SETTINGS_PAGE = "allowed values are in the README under Settings"


def settings(facts: Facts) -> Verdicts:
    for text in facts.environment.unusable:
        yield warning(text, f"correct or unset it; {_SETTINGS_PAGE}")
    for name in facts.environment.unknown:
        yield note(f"{name} is no setting of nvshare", f"nothing reads it: is it misspelt? {_SETTINGS_PAGE}")
    if not facts.environment.unusable and not facts.environment.unknown:
        yield ok("every NVSHARE_ variable can be used")


def mps(facts: Facts) -> Verdicts:
    if facts.host.mps:
        yield warning(
            f"an MPS daemon runs (process {', '.join(map(str, facts.host.mps))})",
            "programs under MPS are one for the card: a fault of one ends all, and turns and quotas of compute time do "
            "not hold. Stop it: echo quit | nvidia-cuda-mps-control",
        )
    else:
        yield ok("no MPS daemon runs")


def memory(facts: Facts) -> Verdicts:
    """What does not fit onto a card waits in host memory, charged to the task it belongs to."""
    cards = [device.total for device in facts.nvml.devices]
    budget, limit = facts.host.memory_budget, facts.host.memory_limit
    if not cards or budget is None:
        return
    largest = max(cards)
    if limit is not None and limit < largest / 2:
        yield warning(
            f"programs here may have {format_size(limit)} of host memory, a card has {format_size(largest)}: what "
            "leaves the card must fit into it",
            "raise the limit (docker run --memory, resources.limits.memory of the pod); where it is full, allocations "
            "fail with out of memory",
        )
    elif (room := budget if limit is None else min(budget, limit)) < largest:
        yield note(
            f"{format_size(room)} of host memory may take what leaves the cards, a card has {format_size(largest)}",
            "tasks can have that much beyond the card, all together; NVSHARE_HOST_MEMORY sets another bound",
        )
    else:
        yield ok(f"{format_size(room)} for what leaves the cards")


def limits(facts: Facts) -> Verdicts:
    host = facts.host
    found: list[Verdict] = []
    if host.address_limit is not None:
        found.append(
            problem(
                f"programs here may use {format_size(host.address_limit)} of addresses (ulimit -v): CUDA reserves more "
                "than the machine has memory",
                "ulimit -v unlimited",
            )
        )
    if host.container is not None and host.locked_limit is not None:
        found.append(
            note(
                f"{format_size(host.locked_limit)} may be page-locked in this {host.container} (ulimit -l)",
                "the NVIDIA driver does not ask for it, RDMA does: docker run --ulimit memlock=-1",
            )
        )
    if host.container is not None and host.shm_total is not None and host.shm_total < _SMALL_SHM:
        found.append(
            note(
                f"shared memory (/dev/shm) has {format_size(host.shm_total)} in this {host.container}",
                "loaders with worker processes (PyTorch) and NCCL want more: docker run --shm-size 8g, in Kubernetes "
                "an emptyDir of medium Memory",
            )
        )
    yield from found or [ok("nothing in the way")]


def kubernetes(facts: Facts) -> Verdicts:
    kubelet = facts.host.kubelet
    if kubelet is None:
        return
    if not kubelet.readable:
        yield note(f"{kubelet.directory} cannot be read", "to see the device plugins here run nvshare doctor as root")
        return
    vendor = [name for name in kubelet.sockets if name.startswith("nvidia")]
    own = [name for name in kubelet.sockets if "nvshare" in name]
    if vendor and own:
        yield warning(
            f"the vendor's device plugin ({', '.join(vendor)}) runs beside nvshare's ({', '.join(own)})",
            "it gives the same cards to pods that ask for nvidia.com/gpu, which run unshared: keep it off this node",
        )
    elif vendor:
        yield note(
            f"the vendor's device plugin ({', '.join(vendor)}) serves this node, nvshare's does not",
            "to share its cards: keep that one off this node and apply nvshare's scheduler.yaml and device-plugin.yaml",
        )
    elif own:
        yield ok(f"nvshare's device plugin serves this node ({', '.join(own)})")
    else:
        yield note("no device plugin for NVIDIA cards serves this node", "apply scheduler.yaml and device-plugin.yaml")
