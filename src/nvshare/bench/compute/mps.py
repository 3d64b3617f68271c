"""The vendor's own way to share a card, for comparison: an MPS daemon of our own, in a directory of our own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

_CONTROL = "nvidia-cuda-mps-control"
_SECONDS = 20.0


@contextlib.contextmanager
def private_daemon(environment: Mapping[str, str]) -> Iterator[dict[str, str] | str]:
    """The environment of a process under MPS; or why there is none. The daemon is gone afterwards."""
    if shutil.which(_CONTROL) is None:
        yield f"there is no {_CONTROL} here"
        return
    with tempfile.TemporaryDirectory(prefix="nvshare-mps-") as directory:
        venues = {"CUDA_MPS_PIPE_DIRECTORY": directory, "CUDA_MPS_LOG_DIRECTORY": directory}
        daemon = {name: value for name, value in environment.items() if name != "CUDA_VISIBLE_DEVICES"} | venues
        problem = _control(["-d"], daemon, directory)
        if problem is not None:
            yield problem
            return
        try:
            yield {**environment, **venues}
        finally:
            _control([], daemon, directory, "quit -t 5\n")


def _control(arguments: list[str], environment: Mapping[str, str], directory: str, told: str = "") -> str | None:
    """What went wrong, if anything did. It speaks to a file: the daemon would keep a pipe open."""
    with open(f"{directory}/said", "w+") as said:
        try:
            done = subprocess.run(
                [_CONTROL, *arguments],
                env=dict(environment),
                input=told,
                stdout=said,
                stderr=said,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{_CONTROL} failed: {error}"
        if done.returncode == 0:
            return None
        said.seek(0)
        return f"{_CONTROL} failed: {said.read().strip()}"
