"""The cards: which are seen, in which order, in which mode, and who is on them."""

from __future__ import annotations

from collections.abc import Sequence

from nvshare.config import format_size
from nvshare.doctor.facts import Facts, Holder, NvmlDevice
from nvshare.doctor.findings import Verdict, Verdicts, note, ok, problem, warning
from nvshare.launch.visible import bound

_COMPUTE_MODES = {1: "exclusive to one thread", 2: "prohibited", 3: "exclusive to one process"}
_CLOCKS_SET = 0x2  # NVML's bits
_SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_UNLISTED_MIN = 1 << 30  # bytes of a card in use that no process accounts for
_UNLISTED_PART = 0.05


def order(facts: Facts) -> Verdicts:
    """nvidia-smi, `nvsharectl status` and `--gpus` count cards as NVML does, CUDA_VISIBLE_DEVICES as CUDA does."""
    if not (facts.native.works and facts.nvml.works):
        return
    cuda, nvml = facts.native.uuids, [device.uuid for device in facts.nvml.devices]
    both = [uuid for uuid in nvml if uuid in cuda]
    hidden = len(nvml) - len(both) if not any(device.instances for device in facts.nvml.devices) else 0
    if both != [uuid for uuid in cuda if uuid in nvml]:
        index = next(index for index, uuid in enumerate(both) if cuda.index(uuid) != nvml.index(uuid))
        uuid = both[index]
        yield warning(
            f"card {nvml.index(uuid)} of nvidia-smi ({uuid}) is card {cuda.index(uuid)} of CUDA",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID, so that both count alike; or name cards by UUID",
        )
    elif hidden:
        yield warning(
            f"NVML lists {len(nvml)} cards, CUDA {len(cuda)}",
            "CUDA leaves out cards it cannot use: look at `nvidia-smi` for their mode and errors",
        )
    else:
        yield ok("NVML and CUDA count the cards alike")


def visible(facts: Facts) -> Verdicts:
    value = facts.environment.visible
    if not facts.native.works:
        return
    if value is None:
        yield ok("not set: programs see every card")
        return
    if not value.strip():
        yield problem(
            "set, and empty: programs started here see no card",
            "unset CUDA_VISIBLE_DEVICES, or name cards: export CUDA_VISIBLE_DEVICES=0",
        )
        return
    known = [*facts.native.uuids, *(uuid for device in facts.nvml.devices for uuid in device.instances)]
    yield _visible(facts, value, known)


def _visible(facts: Facts, value: str, known: Sequence[str]) -> Verdict:
    entries = [entry.strip() for entry in value.split(",")]
    unknown = next((entry for entry in entries if not bound(entry, known)), None)
    cards = [card for entry in entries for card in bound(entry, known)]
    if unknown is not None:
        said = f"{value!r} names {unknown or 'nothing'!r}, which is no card here: it and all behind it are ignored"
        there = f"name cards that are there: 0 to {len(facts.native.uuids) - 1}, or {', '.join(known)}"
        return warning(said, there) if facts.here.devices else problem(f"{said}; programs see no card", there)
    if len(set(cards)) < len(cards):
        return problem(f"{value!r} names a card twice: programs see no card", "name every card once")
    if sum(card.startswith("MIG-") for card in cards) > 1:
        return warning(
            f"{value!r} names several MIG instances: CUDA shows a process the first only", "name one for each program"
        )
    if facts.here.works and not facts.here.devices:
        return problem(f"{value!r}: programs started here see no card", "unset CUDA_VISIBLE_DEVICES")
    return ok(f"{value!r}: programs see {len(cards)} of {len(facts.native.uuids)}")


def _name(facts: Facts, uuid: str) -> str:
    """As nvidia-smi counts."""
    for index, device in enumerate(facts.nvml.devices):
        if uuid == device.uuid or uuid in device.instances:
            return f"card {index}"
    return f"card {uuid}"


def compute_mode(facts: Facts) -> Verdicts:
    if not facts.nvml.devices:
        return
    for index, device in enumerate(facts.nvml.devices):
        mode = _COMPUTE_MODES.get(device.compute_mode or 0)
        if mode is not None:
            yield problem(
                f"card {index} is {mode}: a second task cannot start on it",
                f"as root: nvidia-smi -i {index} -c DEFAULT",
            )
    if all(device.compute_mode in (0, None) for device in facts.nvml.devices):
        yield ok("default: several processes may use a card")


def mig(facts: Facts) -> Verdicts:
    if not facts.nvml.devices:
        return
    verdicts = [verdict for pair in enumerate(facts.nvml.devices) for verdict in _mig(*pair)]
    yield from verdicts or [ok("off")]


def _mig(index: int, device: NvmlDevice) -> Verdicts:
    now, later = device.mig or (0, 0)
    if now != later:
        yield warning(
            f"card {index}: MIG is {'on' if now else 'off'}, and {'on' if later else 'off'} after the next reset",
            f"as root, when nobody uses it: nvidia-smi --gpu-reset -i {index}",
        )
    if now and not device.instances:
        yield problem(
            f"card {index} is in MIG mode and has no instance: CUDA cannot use it",
            f"as root: make instances (nvidia-smi mig -i {index} -lgip lists what there is, nvidia-smi mig -i {index} "
            f"-cgi PROFILE -C makes one), or nvidia-smi -i {index} -mig 0",
        )
    elif now:
        yield note(
            f"card {index} has {len(device.instances)} MIG instances: each is a card of its own, shared by itself",
            "a process sees one instance: choose it with CUDA_VISIBLE_DEVICES=MIG-…",
        )


def clocks(facts: Facts) -> Verdicts:
    known = [(index, device) for index, device in enumerate(facts.nvml.devices) if device.clock_reasons is not None]
    if not known:
        return
    found = [verdict for index, device in known for verdict in _clocks(index, device.clock_reasons or 0)]
    yield from found or [ok("nobody holds them down")]


def _clocks(index: int, reasons: int) -> Verdicts:
    slowed = [words for bit, words in _SLOWED.items() if reasons & bit]
    if slowed:
        yield warning(
            f"card {index} is slowed down: {', '.join(slowed)}",
            "cool it, or give it its power: every task on it runs slower",
        )
    if reasons & _CLOCKS_SET:
        yield note(
            f"the clocks of card {index} are held at what was set for applications (not by nvshare)",
            f"to have them free: nvidia-smi -i {index} -rac, nvidia-smi -i {index} -rgc",
        )


def holders(facts: Facts) -> Verdicts:
    if not facts.nvml.works:
        return
    found = [_holder(facts, holder) for holder in facts.holders] + list(_unlisted(facts)) + list(_kept(facts))
    yield from found or [ok("nobody outside nvshare is on the cards")]


def _holder(facts: Facts, holder: Holder) -> Verdict:
    size = "memory of a size the driver does not tell" if holder.bytes is None else format_size(holder.bytes)
    place = _name(facts, holder.uuid)
    if not holder.name:
        return warning(
            f"{size} of {place} is held by a process that cannot be seen from here (number {holder.pid or 'unknown'})",
            "it is in another container, or was left behind: ask nvidia-smi on the host; if it names nobody alive, "
            "nvidia-smi --gpu-reset",
        )
    if holder.stopped:
        return warning(
            f"{holder.name} (pid {holder.pid}) is stopped, and keeps {size} of {place} from the other tasks",
            f"let it go on: kill -CONT {holder.pid}; or end it: kill -KILL {holder.pid}",
        )
    said = f"{holder.name} (pid {holder.pid}) holds {size} of {place}, outside nvshare"
    if holder.graphics:
        return note(said, "it draws; tasks share what it leaves")
    if holder.preloaded:
        return warning(
            f"{said}, although libnvshare.so is in it",
            "it found no scheduler when it started: start it again now that you know (NVSHARE_REQUIRE=1 makes that an "
            "error)",
        )
    return warning(said, "start it with `nvshare run`, or end it if nobody needs it; tasks share what it leaves")


def _kept(facts: Facts) -> Verdicts:
    for lease, reason in facts.scheduler.kept.items():
        yield warning(
            f"lease {lease} has ended, and its place is not free: {reason}",
            "end what is left of it; the place is free a moment later",
        )


def _unlisted(facts: Facts) -> Verdicts:
    """Memory in use that no process accounts for. Where a process tells no size, nothing can be said."""
    for index, device in enumerate(facts.nvml.devices):
        sizes = [process.bytes for process in device.processes]
        if device.instances or None in sizes:
            continue
        rest = device.used - max(sum(size or 0 for size in sizes), facts.scheduler.accounted.get(device.uuid, 0))
        if rest > max(_UNLISTED_MIN, device.total * _UNLISTED_PART):
            yield warning(
                f"{format_size(rest)} of card {index} are in use, and no process is listed that has them",
                "they belong to another container, or were left behind: ask nvidia-smi on the host; if it names nobody "
                f"alive, nvidia-smi --gpu-reset -i {index}",
            )
