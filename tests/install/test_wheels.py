"""The wheels of ``make wheels``: for any glibc since 2.17, of both architectures, and whole."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.install.conftest import ARCHITECTURES
from tests.support.processes import ROOT

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
SIMULATED = {"sim/libcuda.so.1", "sim/before-12.8/libcuda.so.1", "sim/libnvidia-ml.so.1"}
LIBRARIES = {"libnvshare.so", "libnvshare_client.so", *SIMULATED}
OF_GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"}
NEWEST = (2, 17)


def libraries(wheel: Path) -> Iterator[tuple[str, ELFFile]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".so" in name:
                with archive.open(name) as file:
                    yield name.removeprefix("nvshare/_native/"), ELFFile(file)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_auditwheel_agrees_with_the_tag(wheels: dict[str, Path], architecture: str) -> None:
    command = [sys.executable, "-m", "auditwheel", "show", str(wheels[architecture])]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tag = f"manylinux_2_17_{architecture}"
    assert f'consistent with the following platform tag: "{tag}"' in " ".join(said.split())
    assert tag in wheels[architecture].name
    assert f"manylinux2014_{architecture}" in wheels[architecture].name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_libraries_are_all_there_and_need_an_old_glibc_alone(wheels: dict[str, Path], architecture: str) -> None:
    found = set()
    for name, library in libraries(wheels[architecture]):
        found.add(name)
        assert library["e_machine"] == MACHINES[architecture]
        dynamic = library.get_section_by_name(".dynamic")
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
        assert {of for of in needed if not of.startswith("ld-linux-")} <= OF_GLIBC, name
        versions = library.get_section_by_name(".gnu.version_r")
        for _, wanted in versions.iter_versions():
            for version in (auxiliary.name for auxiliary in wanted):
                assert tuple(map(int, version.removeprefix("GLIBC_").split("."))) <= NEWEST, (name, version)
    assert found == LIBRARIES


def test_another_machine_builds_a_wheel_from_the_sdist(tmp_path: Path) -> None:
    (sdist,) = (ROOT / "dist").glob("nvshare-*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(sdist)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert {name for name, _ in libraries(wheel)} == LIBRARIES
