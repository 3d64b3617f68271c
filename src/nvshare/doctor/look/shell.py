"""What the variables around us say, and which libraries they put into programs."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvshare import config, native
from nvshare.doctor.facts import EnvironmentFacts, LibraryFacts, Preload

_LOADER_LIST = Path("/etc/ld.so.preload")
_ELF_MACHINE = struct.Struct("=4s14xH")  # the magic number, and at byte 18 for which machine
_TAKING_PART = ("NVSHARE_SOCK", config.LEASE_VARIABLE)


def environment(own: Mapping[str, str], environ: Mapping[str, str]) -> EnvironmentFacts:
    """``own``: the variables that the user has set; ``environ``: with those of the simulated node that is looked at."""
    return EnvironmentFacts(
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
        order=environ.get("CUDA_DEVICE_ORDER"),
        takes_part=tuple(name for name in _TAKING_PART if own.get(name)),
        simulated=bool(environ.get("NVSHARE_SIM_NODE")),
        unusable=tuple(config.unusable_settings(environ)),
        unknown=tuple(config.unknown_settings(environ)),
    )


def library(environ: Mapping[str, str], loader_list: Path = _LOADER_LIST) -> LibraryFacts:
    preloads = tuple(_preloads(environ, loader_list))
    own = _machine(Path("/proc/self/exe"))
    try:
        path = native.built_interposer().resolve()  # as the kernel names it inside of a process
    except native.NativeMissing as error:
        return LibraryFacts(missing=str(error), own_machine=own, preloads=preloads)
    return LibraryFacts(str(path), machine=_machine(path), own_machine=own, preloads=preloads)


def _preloads(environ: Mapping[str, str], loader_list: Path) -> Iterator[Preload]:
    """What the loader completes itself (a name without a slash, $LIB, $ORIGIN) counts as there."""
    try:
        listed = re.sub(r"#.*", "", loader_list.read_text())
    except (OSError, ValueError):
        listed = ""
    for origin, text in (("LD_PRELOAD", environ.get("LD_PRELOAD", "")), (str(loader_list), listed)):
        for entry in filter(None, re.split(r"[:\s]+", text)):
            path = Path(entry)
            searched = "/" not in entry or "$" in entry
            machine = None if searched else _machine(path)
            yield Preload(entry, origin, searched or os.path.exists(path), machine, searched)


def _machine(path: Path) -> int | None:
    try:
        with open(path, "rb") as file:
            magic, machine = _ELF_MACHINE.unpack(file.read(_ELF_MACHINE.size))
    except (OSError, struct.error):
        return None
    return int(machine) if magic == b"\x7fELF" else None
