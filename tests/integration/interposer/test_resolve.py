"""However an application reaches a driver function, it is ours; what the table does not have is the driver's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nvshare import native
from nvshare.gpu import sim

PROBE = Path(__file__).with_name("resolve_probe.c")
OURS, DRIVER = "libnvshare.so", "libcuda.so.1"


def probe(directory: Path, *flags: str) -> dict[tuple[str, str], str]:
    """Compile the probe, run it preloaded on a simulated node, return {(way, symbol): library}."""
    program = directory / "probe"
    subprocess.run(["cc", PROBE, "-D_GNU_SOURCE", "-o", program, *flags, "-ldl"], check=True)
    node = sim.up("2xT4", name=f"resolve-{os.getpid()}")
    environment = {**os.environ, **node.env(), "LD_PRELOAD": str(native.interposer())}
    try:
        result = subprocess.run([program], env=environment, check=True, capture_output=True, text=True)
    finally:
        sim.down(node.name)
    rows = [line.split() for line in result.stdout.splitlines() if not line.startswith("status")]
    answers = {(way, symbol): library for way, symbol, library in rows}
    answers["status", "missing"] = result.stdout.split("status ")[1].split()[0]
    return answers


@pytest.mark.simulated
def test_functions_are_ours_by_every_lookup(tmp_path: Path) -> None:
    # GIVEN a program that looks functions up by dlsym and by both forms of cuGetProcAddress
    # WHEN it runs with the library preloaded
    answers = probe(tmp_path)
    # THEN they come from the library, in the variant that was asked for, hooked or not
    for way in (
        ("dlsym", "cuMemAlloc_v2"),
        ("dlsym", "cuLaunchKernel_ptsz"),
        ("v1", "cuMemAlloc"),
        ("v2", "cuLaunchKernel"),
        ("v2-per-thread", "cuLaunchKernel"),
        ("same-as-dlsym", "cuLaunchKernel_ptsz"),
        ("v2", "cuGetProcAddress"),
        ("dlsym", "cuDeviceGetCount"),
        ("same-as-dlsym", "cuDeviceGetCount"),
        ("dlsym", "nvmlDeviceGetMemoryInfo"),
    ):
        assert answers[way] == OURS, way
    # AND missing ones come from nowhere, with the driver's own status
    assert answers["dlsym", "nvmlInit_v2"] == "libnvidia-ml.so.1"
    assert answers["dlsym", "cuNoSuchFunction"] == "none"
    assert answers["status", "missing"] == "1"


@pytest.mark.simulated
def test_directly_linked_program_reaches_the_library(tmp_path: Path) -> None:
    # GIVEN a program linked against libcuda itself
    driver = native.simulated_driver() / DRIVER
    # WHEN it runs preloaded
    answers = probe(tmp_path, "-DLINKED", str(driver))
    # THEN its calls are ours
    assert answers["linked", "cuInit"] == OURS
    assert answers["linked", "cuMemAlloc_v2"] == OURS


@pytest.mark.simulated
def test_lookups_that_are_not_cuda_pass_untouched(tmp_path: Path) -> None:
    answers = probe(tmp_path)
    # RTLD_NEXT from the program itself still means "after the program"
    assert answers["next", "malloc"].startswith("libc.")
    assert answers["libc", "dlsym-of-other-names"] == "none"


def test_process_without_cuda_is_left_alone() -> None:
    # GIVEN the library preloaded into a program that never touches CUDA
    environment = {**os.environ, "LD_PRELOAD": str(native.interposer()), "NVSHARE_DEBUG": "1"}
    script = "ls /proc/$$/task | wc -l; grep -c libcuda /proc/$$/maps || true"
    # WHEN it runs
    result = subprocess.run(["sh", "-c", script], env=environment, check=True, capture_output=True, text=True)
    # THEN there is no output, no second thread, and no driver in it
    assert result.stderr == ""
    assert result.stdout.split() == ["1", "0"]
