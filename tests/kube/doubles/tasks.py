"""What runs in pods where there are no containers: processes of this machine, each known to the scheduler as its pod's.

The shell that becomes the process writes its number down first, so that the scheduler never meets one it does not know.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kube.world import Pod

PATIENCE = 60.0
_ENTER = 'echo "$POD_UID" > "$PODS/$$"; unset POD_UID PODS; exec "$@"'


class Tasks:
    def __init__(self, directory: Path) -> None:
        self.pods = directory / "pods"
        self.pods.mkdir()
        self._logs = directory / "logs"
        self._logs.mkdir()
        self._main: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, pod: Pod, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """The pod's own process."""
        with self._log(pod).open("wb") as log:
            self._main[pod.uid] = self._popen(pod, command, variables, log.fileno())

    def execute(self, pod: Pod, command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
        """One more, to its end."""
        process = self._popen(pod, command, variables, subprocess.PIPE)
        output, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, output.decode()

    def wait(self, pod: Pod) -> int:
        return self._main[pod.uid].wait(PATIENCE)

    def logs(self, pod: Pod) -> str:
        return self._log(pod).read_text()

    def end(self, pod: Pod) -> None:
        process = self._main.pop(pod.uid, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)

    def close(self) -> None:
        for uid in list(self._main):
            self.end(Pod("", uid))

    def _log(self, pod: Pod) -> Path:
        return self._logs / f"{pod.uid}.log"

    def _popen(
        self, pod: Pod, command: Sequence[str], variables: Mapping[str, str], output: int
    ) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOSTNAME": pod.name,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "NVSHARE_POD_NAMESPACE": pod.namespace,
            **variables,
            "PODS": str(self.pods),
            "POD_UID": pod.uid,
        }
        return subprocess.Popen(
            ["sh", "-c", _ENTER, "sh", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
