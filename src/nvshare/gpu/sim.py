"""Simulated nodes: made, joined, looked at and ended here; everything else happens in the simulated driver.

A node is a directory below the runtime directory. ``node.conf`` says what it is (written here, once), ``state`` is the
memory that the driver shares between the processes that use the node (made by the first of them).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import mmap
import os
import re
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshare import config, native
from nvshare.gpu.profiles import Profile, parse_node
from nvshare.procfs import start_time

__all__ = ["NodeNotFound", "SimError", "SimNode", "down", "find", "names", "nodes", "parse_node", "up"]

SPEED_BOUNDS = (0.01, 1000.0)

_CONFIG = "node.conf"
_STATE = "state"
_OLDER_DRIVER = "before-12.8"  # below the directory of the simulated driver
_HOLDER = "holder"  # locked by the process that a node was made for, where there is one
_HELD = "holder.new"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_STOP_GRACE = 5.0  # seconds that a scheduler has to stop when its node ends

# The start of struct nvs_node in native/simcuda/node/node.h: magic, version, GPUs, where the parts are, speed.
_HEADER = struct.Struct("=QII4I4I4Id")
_MAGIC = 0x65726168736E7673
_LAYOUT_VERSION = 4
_TRAFFIC = (
    "launches",
    "graph_launches",
    "bytes_h2d",
    "bytes_d2h",
    "bytes_d2d",
    "bytes_memset",
    "bytes_faulted",
    "bytes_evicted",
)
_COUNTERS = (*_TRAFFIC, "busy_ns", "contexts_created")
_COUNTERS_LAYOUT = struct.Struct(f"={len(_COUNTERS)}Q")
# pid, gpu, start time, bytes, has a context; managed bytes on the card, and leaving it; bytes that are pinned, and
# that a checkpoint took off
_SLOT_LAYOUT = struct.Struct("=iIQQI4xQQQ24xQ")
_ACCOUNT_LAYOUT = struct.Struct(f"=iIQ{len(_TRAFFIC)}Q")  # pid, gpu, start time, traffic


class SimError(Exception):
    """A simulated node cannot be made, joined or read; the text says what to do."""


class NodeNotFound(SimError):
    """There is no such node."""


def _unusable(name: str) -> SimError:
    return SimError(
        f"simulated node {name} was made by another version, or is damaged; end it with: nvshare sim down {name}"
    )


@dataclass(frozen=True)
class _Slot:
    """What one process has on one GPU."""

    pid: int
    gpu: int
    start_time: int
    bytes: int
    has_context: bool
    pinned: int
    away: int
    alive: bool


@dataclass(frozen=True)
class _Layout:
    """Where the parts of a node's state are, as its header says."""

    gpus: int
    gpu_stride: int
    used: int
    counters: int
    slots_offset: int
    slot_stride: int
    slot_count: int
    accounts: int
    account_stride: int
    account_count: int

    def slots(self, state: mmap.mmap) -> list[_Slot]:
        found = []
        for number in range(self.slot_count):
            pid, gpu, started, size, has_context, managed, leaving, pinned, away = _SLOT_LAYOUT.unpack_from(
                state, self.slots_offset + number * self.slot_stride
            )
            if pid != 0:
                total, alive = size + managed + leaving, start_time(pid) == started
                found.append(_Slot(pid, gpu, started, total, bool(has_context), pinned, away, alive))
        return found


@dataclass(frozen=True)
class Setup:
    """How an administrator has set a node up, as struct nvs_setup in native/simcuda/node/node.h."""

    compute_mode: int = 0
    mig_mode: int = 0
    cuda_reversed: int = 0
    older_driver: int = 0


@dataclass(frozen=True)
class SimNode:
    """A node that is up. Its parameters never change."""

    name: str
    directory: Path
    spec: str
    speed: float
    profile: Profile
    uuids: tuple[str, ...]
    setup: Setup = Setup()

    @property
    def socket(self) -> Path:
        """Where the node's scheduler listens."""
        return self.directory / config.SOCKET_NAME

    def env(self) -> dict[str, str]:
        """The variables that give a process this node: to be merged into its environment."""
        library_path = config.child_environment({}).get("LD_LIBRARY_PATH", "")
        libraries = str(native.simulated_driver())
        older = [f"{libraries}/{_OLDER_DRIVER}"]
        others = [entry for entry in library_path.split(":") if entry and entry not in (libraries, *older)]
        entries = [*(older if self.setup.older_driver else []), libraries, *others]
        return {
            "NVSHARE_SIM_NODE": str(self.directory),
            "NVSHARE_SOCK": str(self.socket),
            "LD_LIBRARY_PATH": ":".join(entries),
        }

    def lose(self, uuid: str, lost: bool = True) -> None:
        """Let a card fall off the bus as far as NVML can tell, or come back."""
        if uuid not in self.uuids:
            raise SimError(f"simulated node {self.name} has no card {uuid}")
        mark = self.directory / f"lost-{uuid}"
        if lost:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def counters(self) -> list[dict[str, Any]]:
        """Per GPU: its UUID, ``memory_used``, everything it ever did, and ``contexts``, who has something on it
        now and what a checkpoint took off."""
        state = self._map_state()
        if state is None:
            return [self._gpu(index, 0, (0,) * len(_COUNTERS), []) for index in range(len(self.uuids))]
        try:
            return self._read_counters(state)
        except struct.error as error:  # it says that it goes on beyond its end
            raise _unusable(self.name) from error

    def _read_counters(self, state: mmap.mmap) -> list[dict[str, Any]]:
        layout = _Layout(*_HEADER.unpack_from(state)[3:13])
        slots = layout.slots(state)
        result = []
        for index in range(len(self.uuids)):
            base = layout.gpus + index * layout.gpu_stride
            on_gpu = [slot for slot in slots if slot.gpu == index]
            lost = sum(slot.bytes for slot in on_gpu if not slot.alive)
            (used,) = struct.unpack_from("=Q", state, base + layout.used)
            counts = _COUNTERS_LAYOUT.unpack_from(state, base + layout.counters)
            result.append(self._gpu(index, used - lost, counts, [slot for slot in on_gpu if slot.alive]))
        return result

    def process_counters(self) -> list[dict[int, dict[str, int]]]:
        """Per GPU, by pid, also of processes that are gone: what it did, and ``pinned_bytes``, page-locked now."""
        state = self._map_state()
        result: list[dict[int, dict[str, int]]] = [{} for _ in self.uuids]
        if state is None:
            return result
        layout = _Layout(*_HEADER.unpack_from(state)[3:13])
        slots = layout.slots(state)
        for number in range(layout.account_count):
            pid, gpu, started, *traffic = _ACCOUNT_LAYOUT.unpack_from(
                state, layout.accounts + number * layout.account_stride
            )
            if pid == 0 or (pid in result[gpu] and started != start_time(pid)):
                continue  # never used, or an older process of the same number
            owned = [slot for slot in slots if (slot.pid, slot.gpu, slot.alive) == (pid, gpu, True)]
            pinned = sum(slot.pinned for slot in owned if slot.start_time == started)
            result[gpu][pid] = {**dict(zip(_TRAFFIC, traffic, strict=True)), "pinned_bytes": pinned}
        return result

    def _gpu(self, index: int, used: int, counts: tuple[int, ...], slots: list[_Slot]) -> dict[str, Any]:
        contexts = [
            {"pid": slot.pid, "bytes": slot.bytes, "context": slot.has_context, "away": slot.away} for slot in slots
        ]
        return {
            "uuid": self.uuids[index],
            "memory_used": used,
            **dict(zip(_COUNTERS, counts, strict=True)),
            "contexts": contexts,
        }

    def _map_state(self) -> mmap.mmap | None:
        try:
            with open(self.directory / _STATE, "rb") as file:
                state = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (FileNotFoundError, ValueError):
            return None  # nobody used the node yet
        if len(state) < _HEADER.size:
            raise _unusable(self.name)
        magic, version = struct.unpack_from("=QI", state)
        if magic == 0:
            return None  # no process has finished making it
        if magic != _MAGIC or version != _LAYOUT_VERSION:
            raise _unusable(self.name)
        return state


def up(
    spec: str,
    speed: float | None = None,
    *,
    profile: Profile | None = None,
    name: str | None = None,
    setup: Setup | None = None,
) -> SimNode:
    """Make the node, or join it if it is up.

    ``spec`` is such as ``2xT4``; ``profile`` replaces the card's figures, ``name`` the node's name (else the spec).
    When the node is up, what is given must agree with it; a ``speed`` of None agrees with any and is 1 for a new node,
    and so does a ``setup`` of None.
    ``ValueError`` for a spec or speed that makes no sense, ``SimError`` when the node is another one.
    """
    count, card = parse_node(spec)
    if profile is not None:
        card = profile
    name = name or f"{count}x{card.name}"
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a node: letters, digits, dot, dash and underscore")
    low, high = SPEED_BOUNDS
    if speed is not None and not low <= speed <= high:
        raise ValueError(f"speed {speed:g} is not allowed: {low:g} to {high:g} times as fast as life (default 1)")
    directory = _nodes_directory() / name
    with _locked():
        directory.mkdir(mode=0o700, exist_ok=True)
        if (directory / _CONFIG).exists():
            node = _load(directory)
            _check_same(node, f"{count}x{card.name}", speed, card, setup)
            return node
        uuids = _uuids(directory, count)
        wanted = SimNode(name, directory, f"{count}x{card.name}", speed or 1.0, card, uuids, setup or Setup())
        temporary = directory / f"{_CONFIG}.new"
        temporary.write_text(_to_text(wanted))
        temporary.rename(directory / _CONFIG)
        return wanted


@contextlib.contextmanager
def held(spec: str, speed: float, name: str, profile: Profile | None = None) -> Iterator[SimNode]:
    """A node that lives as long as this block, or, should we be killed, until the next ``end_abandoned``."""
    try:
        node = up(spec, speed, name=name, profile=profile)
        with open(node.directory / _HELD, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # gone with us, however we end
            (node.directory / _HELD).rename(node.directory / _HOLDER)  # never to be seen without its lock
            yield node
    finally:
        with contextlib.suppress(NodeNotFound):  # we came no further, or somebody ended it
            down(name)


def end_abandoned() -> None:
    """End the nodes whose holder was killed."""
    for name in names():
        with contextlib.suppress(OSError, SimError), open(_nodes_directory() / name / _HOLDER) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            down(name)


def find(name: str) -> SimNode:
    """The node of that name, a card's for one of it (``T4`` is ``1xT4``, as ``up`` names it); ``NodeNotFound`` with the
    names of those that are up."""
    return _load(_directory_of(name))


def names() -> list[str]:
    """The names of this user's nodes that are up, sorted."""
    return sorted(path.parent.name for path in _nodes_directory().glob(f"*/{_CONFIG}"))


def nodes() -> list[SimNode]:
    """All nodes of this user that are up, by name."""
    return [find(name) for name in names()]


def down(name: str) -> None:
    """End a node: stop its scheduler, remove its directory. Programs that still use it keep what they have."""
    directory = _directory_of(name)
    _stop_scheduler(directory)
    with _locked():
        shutil.rmtree(directory, ignore_errors=True)


def _directory_of(name: str) -> Path:
    known = names()
    for found in (name, _name_of(name)):
        if found in known:
            return _nodes_directory() / found
    raise NodeNotFound(f"no simulated node {name!r} is up (up: {', '.join(known) or 'none'})")


def _name_of(spec: str) -> str | None:
    """What ``up`` calls the node of this spec; None when it is none."""
    try:
        count, card = parse_node(spec)
    except ValueError:
        return None
    return f"{count}x{card.name}"


def _nodes_directory() -> Path:
    """``<runtime directory>/sim``, made when missing and only ours."""
    directory = config.own_runtime_directory() / "sim"
    with config.within_runtime(directory):
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One process at a time makes or removes nodes."""
    directory = _nodes_directory()
    with config.within_runtime(directory), open(directory / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _uuids(directory: Path, count: int) -> tuple[str, ...]:
    """Different on every node, the same whenever a node of that name is made."""
    result = []
    for index in range(count):
        digits = hashlib.sha256(f"{directory} {index}".encode()).hexdigest()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])
        result.append("GPU-" + "-".join(parts))
    return tuple(result)


def _to_text(node: SimNode) -> str:
    lines = [f"name {node.name}", f"speed {node.speed!r}"]
    for field in dataclasses.fields(Profile):
        key = "profile" if field.name == "name" else field.name
        value = getattr(node.profile, field.name)
        lines.append(f"{key} {value if isinstance(value, str) else repr(value)}")
    lines += [f"uuid {uuid}" for uuid in node.uuids]
    lines += [f"{key} {value}" for key, value in dataclasses.asdict(node.setup).items()]
    return "\n".join(lines) + "\n"


def _load(directory: Path) -> SimNode:
    values: dict[str, str] = {}
    uuids = []
    try:
        lines = (directory / _CONFIG).read_text().splitlines()
    except (OSError, ValueError) as error:
        raise _unusable(directory.name) from error
    for line in lines:
        key, _, value = line.partition(" ")
        if key == "uuid":
            uuids.append(value)
        else:
            values[key] = value
    try:
        types = {"str": str, "int": int, "float": float}
        profile = Profile(
            **{
                field.name: types[str(field.type)](values["profile" if field.name == "name" else field.name])
                for field in dataclasses.fields(Profile)
            }
        )
        speed = float(values["speed"])
        setup = Setup(**{field.name: int(values[field.name]) for field in dataclasses.fields(Setup)})
    except (KeyError, ValueError) as error:
        raise _unusable(directory.name) from error
    return SimNode(directory.name, directory, f"{len(uuids)}x{profile.name}", speed, profile, tuple(uuids), setup)


def _check_same(node: SimNode, spec: str, speed: float | None, profile: Profile, setup: Setup | None) -> None:
    differences = []
    if node.spec != spec:
        differences.append(f"it is {node.spec}, not {spec}")
    elif node.profile != profile:
        differences.append("its card has other figures")
    if speed is not None and node.speed != speed:
        differences.append(f"its speed is {node.speed:g}, not {speed:g}")
    if setup is not None and node.setup != setup:
        differences.append("its cards are set up otherwise")
    if differences:
        raise SimError(
            f"simulated node {node.name} is up and differs: {'; '.join(differences)}. "
            f"Use it as it is, or end it first: nvshare sim down {node.name}"
        )


def _scheduler_pid(directory: Path) -> int | None:
    """The node's scheduler: who listens on its socket, else who its pid file names."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(directory / config.SOCKET_NAME))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])
    with contextlib.suppress(OSError, ValueError):
        return int((directory / "scheduler.pid").read_text())
    return None


def _stop_scheduler(directory: Path) -> None:
    """End the node's scheduler, if there is one, and wait until it is gone."""
    pid = _scheduler_pid(directory)
    started = start_time(pid) if pid else 0
    if pid is None or not started or b"nvshare" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        return  # gone, and perhaps its number was taken by another program
    for step in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, step)
        deadline = time.monotonic() + _STOP_GRACE
        while start_time(pid) == started and time.monotonic() < deadline:
            time.sleep(0.01)
