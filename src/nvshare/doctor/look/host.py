"""The machine around the cards: container, memory, limits, other daemons. All below ``root``, ``/`` but in tests."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvshare import config
from nvshare.daemon.exclusive import answers
from nvshare.doctor.facts import HostFacts, Kubelet

_DEVICE_FILE = re.compile(r"nvidia(ctl|-uvm|\d+)")
_MPS = "nvidia-cuda-mps"  # the kernel keeps 15 characters of a name: of -control and -server alike
_NO_LIMIT = 1 << 60  # what control groups without a limit say is above
_KUBELET = "var/lib/kubelet/device-plugins"


def look(environ: Mapping[str, str], root: Path = Path("/")) -> HostFacts:
    meminfo = root / "proc/meminfo"
    return HostFacts(
        container=_container(environ, root),
        root=os.getuid() == 0,
        kernel_module=(root / "proc/driver/nvidia/version").exists(),
        closed_devices=tuple(_closed_devices(root / "dev")),
        memory_total=_number(meminfo, r"^MemTotal:\s+(\d+) kB$", 1024),
        memory_budget=config.host_memory_budget(meminfo),
        memory_limit=min(_group_limits(root), default=None),
        locked_limit=_limit(resource.RLIMIT_MEMLOCK),
        address_limit=_limit(resource.RLIMIT_AS),
        shm_total=_size(root / "dev/shm"),
        mps=tuple(_named(root / "proc", _MPS)),
        kubelet=_kubelet(root / _KUBELET),
    )


def _container(environ: Mapping[str, str], root: Path) -> str | None:
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "pod"
    marks = {".dockerenv": "Docker container", "run/.containerenv": "Podman container"}
    return next((kind for mark, kind in marks.items() if os.path.exists(root / mark)), None)


def _closed_devices(directory: Path) -> Iterator[str]:
    names = os.listdir(directory) if directory.is_dir() else []
    for path in (directory / name for name in sorted(names) if _DEVICE_FILE.fullmatch(name)):
        if not os.access(path, os.R_OK | os.W_OK):
            yield str(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path, pattern: str, unit: int = 1) -> int | None:
    match = re.search(pattern, _read(path), re.MULTILINE)
    return int(match[1]) * unit if match else None


def _group_limits(root: Path) -> Iterator[int]:
    """Every limit of memory on the way up our control groups. As in the library: inside a container the tree may start
    at the container's own group, and a path that is not there is taken to be its root."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _number_of_tree, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        tree = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        directory = tree / group.strip("/")
        for place in (directory, *directory.parents):
            limit = _number(place / name, r"^(\d+)$")
            if limit is not None and limit < _NO_LIMIT:
                yield limit
            if place == tree:
                break


def _limit(which: int) -> int | None:
    soft, _hard = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _size(directory: Path) -> int | None:
    try:
        figures = os.statvfs(directory)
    except OSError:
        return None
    return figures.f_frsize * figures.f_blocks


def _named(proc: Path, name: str) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(proc)):
            if entry.isdecimal() and _read(proc / entry / "comm").strip() == name:
                yield int(entry)


def _kubelet(directory: Path) -> Kubelet | None:
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return None
    except OSError:
        return Kubelet(str(directory), readable=False, sockets=())
    sockets = tuple(name for name in names if name.endswith(".sock") and answers(directory / name))
    return Kubelet(str(directory), readable=True, sockets=sockets)
