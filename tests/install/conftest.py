"""The wheels of ``make wheels``, installed as a user does it: in a virtual environment outside the tree."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.install.packages import PackagesMissing
from tests.install.userland import Userland
from tests.support.processes import PATIENCE, ROOT, Program, Run

ARCHITECTURES = ("x86_64", "aarch64")


class Shell:
    """A user's shell with a virtual environment activated, in a directory of its own."""

    def __init__(self, environment: Path, directory: Path, runtime: str, run_program: Run) -> None:
        self.directory = directory
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._variables = {**os.environ, "XDG_RUNTIME_DIR": runtime, "PATH": path}
        self._variables.pop("PYTHONPATH", None)
        self._run_program = run_program

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *arguments],
            cwd=self.directory,
            env=self._variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
        )

    def start(self, program: str, *arguments: str) -> Program:
        return self._run_program([program, *arguments], self._variables)


@pytest.fixture(scope="session")
def wheels() -> dict[str, Path]:
    """Each architecture's wheel."""
    found = {name: sorted((ROOT / "dist").glob(f"nvshare-*_{name}.whl")) for name in ARCHITECTURES}
    assert all(len(paths) == 1 for paths in found.values()), f"run `make wheels` first; dist/ has {found}"
    return {name: paths[0] for name, paths in found.items()}


@pytest.fixture(scope="session")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this machine's wheel and nothing else."""
    environment = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment), "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheels[platform.machine()])], check=True)
    return environment


@pytest.fixture
def shell(installed: Path, tmp_path: Path, run_program: Run) -> Iterator[Shell]:
    runtime = tempfile.mkdtemp(prefix="nvs-", dir="/tmp")  # the path of a unix socket has at most 107 characters
    shell = Shell(installed, tmp_path, runtime, run_program)
    yield shell
    shell.run("nvshare", "sim", "down", "--all")
    shutil.rmtree(runtime)


@pytest.fixture(scope="session", params=ARCHITECTURES)
def userland(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Userland:
    """A user land of an older glibc, of either architecture."""
    try:
        return Userland(request.param, wheels[request.param], tmp_path_factory.mktemp(request.param))
    except PackagesMissing as reason:
        pytest.skip(str(reason))
