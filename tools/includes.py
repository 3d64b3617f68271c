"""Check what the native code includes: the interposer's folders against the table below, and no source file twice.

``python tools/includes.py [root]`` prints each violation as ``file:line: reason`` and exits with 1 when there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

TOP = "."  # files beside the folders

# Each folder of native/interposer, and those that it may include besides itself. There is no cycle.
FOLDERS: dict[str, set[str]] = {
    "base": set(),
    "resolve": {"base"},
    "gate": {"base", "resolve"},
    "link": {"base", "resolve", "gate"},
    "nvml": {"base", "resolve", "link"},
    "memory/swap": {"base", "resolve", "gate", "link", "nvml"},
    "memory": {"base", "resolve", "gate", "link", "memory/swap"},
    "memory/ordered": {"base", "resolve", "gate", "memory", "memory/swap"},
    "memory/virtual": {"base", "resolve", "gate", "link", "memory", "memory/swap"},
    "ipc": {"base", "resolve", "gate", "link", "memory", "memory/swap"},
    TOP: {"base", "resolve", "gate", "link", "memory", "memory/ordered", "memory/swap", "memory/virtual", "ipc"},
}

# Headers from further up that a folder includes all the same, and why.
UPWARD: dict[tuple[str, str], str] = {
    ("link", "memory/swap/residency.h"): "the link carries the scheduler's targets in, and what is resident out",
    ("link", "memory/swap/mover.h"): "a new target is work for the mover, and the last switch's cost sets the patience",
    ("link", "memory/swap/backing.h"): "the scheduler is told whether this device's memory can move",
    ("memory", "memory/ordered/ordered.h"): "cuMemFree and pointer queries take memory of every kind",
    ("memory", "ipc/ipc.h"): "a free ends an import, and a pointer query says whether memory can be exported",
}

# Folders whose files may not include files of the other. The client is pure: it knows nothing around it.
APART = [
    ("native/interposer", "native/simcuda"),
    ("native/simcuda", "native/interposer"),
    ("native/simcuda", "native/client"),
    ("native/client", "native/interposer"),
    ("native/client", "native/simcuda"),
]

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Include:
    """One ``#include "..."``: where it stands, and the file that it finds (None: there is no such file)."""

    file: Path
    line: int
    text: str
    target: Path | None


@dataclass
class Check:
    """The native code below ``root``, and the contract for the interposer's folders."""

    root: Path
    folders: dict[str, set[str]] = field(default_factory=lambda: FOLDERS)
    upward: dict[tuple[str, str], str] = field(default_factory=lambda: UPWARD)

    def violations(self) -> list[str]:
        """Every violation, as a line of text for people."""
        includes = list(self._includes())
        return [*self._cycle(), *self._each(includes), *self._unused(includes)]

    def _includes(self) -> Iterator[Include]:
        for folder in ("native", "tests/native"):
            for file in sorted((self.root / folder).rglob("*")):
                if file.suffix not in {".c", ".h", ".def", ".S"}:
                    continue
                source = file.read_text()
                for match in INCLUDE.finditer(source):
                    line = source.count("\n", 0, match.start(1)) + 1
                    yield Include(file.relative_to(self.root), line, match[1], self._find(file, match[1]))

    def _find(self, file: Path, text: str) -> Path | None:
        native = self.root / "native"
        for folder in (file.parent, native / "include", native, native / "interposer", native / "simcuda"):
            if (found := (folder / text).resolve()).is_file():
                return found.relative_to(self.root.resolve())
        return None

    def _each(self, includes: list[Include]) -> Iterator[str]:
        for include in includes:
            where = f"{include.file}:{include.line}: {include.text}"
            if include.target is None:
                yield f"{where} is not there"
            elif include.target.suffix == ".c":
                yield f"{where} is a source file: link it instead"
            elif ".." in Path(include.text).parts:
                yield f"{where} climbs out of its folder: name it from the folder that the compiler searches"
            elif any(_is_below(include.file, a) and _is_below(include.target, b) for a, b in APART):
                yield f"{where} belongs to the other side: {_ends(include)} share no code"
            elif (ends := _folders(include)) is not None:
                yield from self._between(*ends, include, where)

    def _between(self, here: str, there: str, include: Include, where: str) -> Iterator[str]:
        known = {folder for folder in (here, there) if folder not in self.folders}
        if known:
            yield f"{where}: {', '.join(sorted(known))} is not in the table of folders"
        elif include.text != _in_interposer(include.target):
            yield f"{where} does not name its folder: {_in_interposer(include.target)}"
        elif here != there and there not in self.folders[here] and (here, include.text) not in self.upward:
            yield f"{where}: {here} may not include {there}"

    def _cycle(self) -> Iterator[str]:
        try:
            TopologicalSorter(self.folders).prepare()
        except CycleError as error:
            yield f"the table of folders has a cycle: {' -> '.join(error.args[1])}"

    def _unused(self, includes: list[Include]) -> Iterator[str]:
        """Permissions that nothing needs: the table says what is, not what could be."""
        pairs = [(ends, include) for include in includes if (ends := _folders(include)) is not None]
        used = {ends for ends, _ in pairs}
        headers = {(here, include.text) for (here, _), include in pairs}
        for here, allowed in self.folders.items():
            for there in sorted(allowed):
                if (here, there) not in used:
                    yield f"{here} includes nothing of {there}: take it out of the table"
        for here, header in self.upward:
            if (here, header) not in headers:
                yield f"{here} does not include {header}: take it out of the table"


def _is_below(file: Path, folder: str) -> bool:
    return Path(folder) in file.parents


def _ends(include: Include) -> str:
    """The two that must not know each other, for people."""
    names = {"interposer": "the interposer", "simcuda": "the simulated driver", "client": "the client"}
    assert include.target is not None
    both = sorted({include.file.parts[1], include.target.parts[1]}, key=list(names).index)
    return " and ".join(names[one] for one in both)


def _in_interposer(file: Path | None) -> str | None:
    if file is None or not _is_below(file, "native/interposer"):
        return None
    return file.relative_to("native/interposer").as_posix()


def _folders(include: Include) -> tuple[str, str] | None:
    """The folders at both ends; None where one end is not in the interposer."""
    here, there = _in_interposer(include.file), _in_interposer(include.target)
    return None if here is None or there is None else (Path(here).parent.as_posix(), Path(there).parent.as_posix())


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    violations = Check(root.resolve()).violations()
    print(*violations, sep="\n", end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
