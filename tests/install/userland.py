"""A user land with a C library of its own: programs are linked for it and run in it, emulated where they must be."""

from __future__ import annotations

import platform
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.install.packages import unpacked
from tests.support.processes import ROOT

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
LOADER = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
PACKAGES = ROOT / "build" / "packages"


class Userland:
    """The C library of Debian 11, glibc 2.31, of one architecture; with it the native part of a wheel."""

    def __init__(self, architecture: str, wheel: Path, directory: Path) -> None:
        self._architecture = architecture
        self._directory = directory
        self._libraries = (
            unpacked(PACKAGES, "bullseye", DEBIAN[architecture], "libc6") / "lib" / f"{architecture}-linux-gnu"
        )
        self._emulator = [] if architecture == platform.machine() else self._emulate()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(directory)

    @property
    def _native(self) -> Path:
        return self._directory / "nvshare" / "_native"

    def _emulate(self) -> list[str]:
        qemu = unpacked(PACKAGES, "bookworm", DEBIAN[platform.machine()], "qemu-user-static") / "usr" / "bin"
        return [
            f"{qemu}/qemu-{self._architecture}-static",
            *("-R", "0x800000000"),  # 32 GiB of addresses: qemu notes something for each page that a program reserves
            *("-E", f"LD_PRELOAD={self._native}/libnvshare.so"),
            *("-E", "NVSHARE_SIM_PROC=/proc/."),  # qemu makes up what is in /proc/self
        ]

    def link(self, source: Path, *options: str) -> Path:
        """Compile a program of one file that is linked against libcuda."""
        program = self._directory / source.stem
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{self._architecture}-linux-gnu.2.17"]
        inputs: list[str | Path] = [
            "-I",
            ROOT / "native" / "include",
            source,
            self._native / "sim" / "libcuda.so.1",
            "-ldl",
        ]
        subprocess.run([*zig, "-O1", *options, *inputs, "-o", program], check=True)
        return program

    def command(self, program: Path, *arguments: str) -> list[str]:
        """The command that runs a program on this C library and the wheel's simulated driver."""
        loader = [f"{self._libraries}/{LOADER[self._architecture]}"]
        return [
            *self._emulator,
            *loader,
            "--library-path",
            f"{self._libraries}:{self._native}/sim",
            str(program),
            *arguments,
        ]

    def check_libraries(self, pid: int) -> None:
        """Every library in a process is of this user land or of a wheel."""
        lines = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        mapped = {Path(fields[5]) for fields in lines if len(fields) == 6 and ".so" in fields[5]}
        assert self._libraries / "libc-2.31.so" in mapped
        assert not {path for path in mapped if path.parent != self._libraries and "_native" not in path.parts}
