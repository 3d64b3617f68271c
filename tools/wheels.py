"""Builds the sdist, and from it a wheel for each architecture: ``python tools/wheels.py DIRECTORY``.

The wheels need no symbol of glibc above 2.17. auditwheel checks that and gives them the tag manylinux2014. Two builds
of one commit are equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ziglang

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = ("x86_64", "aarch64")


def build_sdist(directory: Path) -> Path:
    """Build the sdist into a directory."""
    _python("-m", "build", "--sdist", "--no-isolation", "--outdir", str(directory), str(ROOT))
    (sdist,) = directory.glob("nvshare-*.tar.gz")
    return sdist


def build_wheel(sdist: Path, architecture: str, directory: Path) -> Path:
    """Build one architecture's wheel from the sdist into a directory."""
    with tempfile.TemporaryDirectory() as untagged:
        _python(
            *("-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", untagged, str(sdist)),
            *("--config-settings", f"cmake.args=--toolchain={ROOT / 'tools' / 'zig.cmake'}"),
            NVSHARE_ZIG=str(Path(ziglang.__file__).with_name("zig")),
            NVSHARE_ARCHITECTURE=architecture,
            _PYTHON_HOST_PLATFORM=f"linux-{architecture}",  # the tag before auditwheel's
        )
        (wheel,) = Path(untagged).glob("*.whl")
        _python("-m", "auditwheel", "repair", "--wheel-dir", str(directory), str(wheel))
    tagged = next(directory.glob(f"*manylinux2014_{architecture}*.whl"), None)
    if tagged is None:
        sys.exit(
            f"nvshare: the {architecture} wheel needs more than manylinux2014 has; see: auditwheel show {directory}/*"
        )
    return tagged


def _python(*arguments: str, **variables: str) -> None:
    # cmake and ninja are beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"SOURCE_DATE_EPOCH": _commit_time(), **os.environ, "PATH": path, **variables}
    done = subprocess.run([sys.executable, *arguments], env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}nvshare: failed: python {' '.join(arguments)}")


def _commit_time() -> str:
    """The time that files in archives get; where there is no git 1980, the first that zip knows."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "315532800"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/wheels.py DIRECTORY")
    directory = Path(sys.argv[1])
    for old in directory.glob("nvshare-*"):
        old.unlink()
    sdist = build_sdist(directory)
    for path in (sdist, *(build_wheel(sdist, architecture, directory) for architecture in ARCHITECTURES)):
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
