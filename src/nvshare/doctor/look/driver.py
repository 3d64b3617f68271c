"""The driver, looked at by processes of their own."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshare import config
from nvshare.doctor.facts import CudaDevice, CudaView, NvmlDevice, NvmlProcess, NvmlView
from nvshare.launch.orders import with_package

_LATE = 1.0  # seconds that a process which should have ended itself has before we no longer wait for it
_SPLIT_BY_LOADER = " :$"
_Probe = subprocess.Popen[str]


@dataclass(frozen=True)
class Views:
    native: CudaView
    here: CudaView
    shared: CudaView
    nvml: NvmlView


def look(environ: Mapping[str, str], library: Path | None, seconds: float) -> Views:
    """All of them at once. ``library``: what `nvshare run` preloads."""
    plain = {name: value for name, value in environ.items() if name not in ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES")}
    with _preloadable(library) as preloaded, ThreadPoolExecutor() as pool, _ended() as probes:
        preload = {} if preloaded is None else {"LD_PRELOAD": config.preload_with(preloaded, environ)}
        native = pool.submit(_probe, probes, "cuda", plain, seconds)
        here = pool.submit(_probe, probes, "cuda", environ, seconds)
        shared = pool.submit(_probe, probes, "cuda", {**environ, **preload}, seconds)
        nvml = pool.submit(_probe, probes, "nvml", plain, seconds)
        return Views(
            native=_cuda_view(native.result()),
            here=_cuda_view(here.result()),
            shared=_cuda_view(shared.result()),
            nvml=_nvml_view(nvml.result()),
        )


@contextlib.contextmanager
def _preloadable(library: Path | None) -> Iterator[Path | None]:
    """The library under a path that the loader takes as one; a link that is needed for that is gone afterwards."""
    if library is None or not set(_SPLIT_BY_LOADER) & set(str(library)):
        yield library
        return
    with tempfile.TemporaryDirectory(prefix="nvshare-doctor-") as directory:
        link = Path(directory) / library.name
        link.symlink_to(library)
        yield link


@contextlib.contextmanager
def _ended() -> Iterator[list[_Probe]]:
    """Who is interrupted does not wait for a driver that hangs."""
    probes: list[_Probe] = []
    try:
        yield probes
    finally:
        for probe in probes:
            if probe.poll() is None:
                probe.kill()


def _probe(probes: list[_Probe], what: str, environ: Mapping[str, str], seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "nvshare.doctor.probe", what, str(seconds)]
    child = subprocess.Popen(
        command,
        env={**environ, **with_package(environ)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    probes.append(child)
    try:
        output, said = child.communicate(timeout=seconds + _LATE)
    except subprocess.TimeoutExpired:
        child.kill()  # and not waited for: it may be stuck inside the kernel
        return {"failure": f"did not answer within {seconds:g} s"}
    loader = [line.strip() for line in said.splitlines() if "ld.so: object" in line]
    return _result(child.returncode, output, said, seconds) | {"loader": loader}


def _result(code: int, output: str, said: str, seconds: float) -> dict[str, Any]:
    if code == -signal.SIGALRM:
        return {"failure": f"did not answer within {seconds:g} s"}
    if code < 0:
        return {"failure": f"was ended by {signal.Signals(-code).name}"}
    try:
        view = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        return {"failure": f"ended with code {code}: {last[0]}"}
    return dict(view)


def _cuda_view(found: dict[str, Any]) -> CudaView:
    devices = tuple(CudaDevice(**device) for device in found.pop("devices", ()))
    mapped, loader = tuple(found.pop("mapped", ())), tuple(found.pop("loader", ()))
    return CudaView(devices=devices, mapped=mapped, loader=loader, **found)


def _nvml_view(found: dict[str, Any]) -> NvmlView:
    found.pop("loader", None)
    devices = tuple(
        NvmlDevice(
            **{
                **device,
                "mig": tuple(device["mig"]) if device["mig"] else None,
                "instances": tuple(device["instances"]),
                "processes": tuple(NvmlProcess(**process) for process in device["processes"]),
            }
        )
        for device in found.pop("devices", ())
    )
    return NvmlView(devices=devices, **found)
