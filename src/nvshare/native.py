"""Where the native libraries are: beside the package in a wheel, under ``build/native`` in a source tree."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_SOURCE_TREE = _PACKAGE.parent.parent


class NativeMissing(Exception):
    """The native part was not built."""


def _directory() -> Path:
    candidates = [_PACKAGE / "_native"]
    if (_SOURCE_TREE / "CMakeLists.txt").exists():
        candidates.insert(0, _SOURCE_TREE / "build" / "native")
    for candidate in candidates:
        if (candidate / "libnvshare.so").exists():
            return candidate
    raise NativeMissing(f"libnvshare.so is not built (looked in {', '.join(map(str, candidates))}); run: make native")


def interposer() -> Path:
    """``libnvshare.so``, to be preloaded into applications."""
    return _directory() / "libnvshare.so"


def simulated_driver() -> Path:
    """The directory of the simulated ``libcuda.so.1`` and ``libnvidia-ml.so.1``."""
    return _directory() / "sim"
