"""The source tree that is measured, and schedulers of its own for measurements."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvshare import config, native
from nvshare.client.connection import Connection

TREE = Path(__file__).resolve().parents[4]
PACKAGES = str(TREE / "src")
GIB = 1 << 30
_APART = ("unshare", "--net", "--")


@functools.cache
def can_be_apart() -> bool:
    """Whether a scheduler can have a network namespace of its own."""
    if shutil.which(_APART[0]) is None:
        return False
    return subprocess.run([*_APART, "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0


def build_native() -> None:
    subprocess.run(["make", "-C", str(TREE), "native"], check=True, stdout=subprocess.DEVNULL)


def plain_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a process without nvshare that finds this package."""
    return config.child_environment({"PYTHONPATH": PACKAGES, **(variables or {})})


class OwnScheduler:
    """A scheduler on a socket in ``directory``, from the beginning of a context to its end.

    ``gib``: it takes the card for that large. ``apart``: it does not see the claims of other schedulers on the card,
    which end with the network namespace, so that two can have a part of one card each. That takes root.
    """

    def __init__(self, directory: Path, gib: float | None = None, *, apart: bool = False) -> None:
        directory.mkdir(exist_ok=True)
        self.socket = directory / "scheduler.sock"
        self.log = directory / "scheduler.log"
        self._declared = {} if gib is None else {"NVSHARE_CARD_MEMORY": str(int(gib * GIB))}
        self._prefix = _APART if apart and can_be_apart() else ()

    def __enter__(self) -> OwnScheduler:
        ready, told = os.pipe()
        program = [sys.executable, "-m", "nvshare.cli.scheduler", "--socket", str(self.socket), "--ready-fd", str(told)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *program], env=plain_environment(self._declared), stderr=log, pass_fds=(told,)
            )
        os.close(told)
        with os.fdopen(ready, "rb") as answer:
            if not answer.read(1):
                raise RuntimeError(f"the scheduler did not start:\n{self.log.read_text()}")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of a process that shares the card; the scheduler may be started later."""
        library = config.preload_with(native.interposer())
        return plain_environment({"LD_PRELOAD": library, "NVSHARE_SOCK": str(self.socket), **(variables or {})})

    def status(self) -> dict[str, Any]:
        with Connection(self.socket) as connection:
            return connection.status()

    def attachment(self, pid: int) -> dict[str, Any]:
        """What the scheduler knows of this process on the card."""
        (client,) = [client for client in self.status()["clients"] if client["pid"] == pid]
        found: dict[str, Any] = client["gpus"][0]
        return found

    def set_quantum(self, seconds: int) -> None:
        with Connection(self.socket) as connection:
            connection.request("set", quantum=seconds)
