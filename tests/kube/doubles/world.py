"""The world of the doubles: a simulated node with a real scheduler and a real device plugin, under a double of the
kubelet."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from world import GPU, GPUMEM, NotAdmitted, Pod

from doubles.kubelet import AdmissionError, Kubelet, KubeletPod, wait_until
from nvshare import native
from nvshare.client.connection import Connection
from nvshare.gpu import sim

_numbers = itertools.count()


class DoublesWorld:
    def __init__(self, spec: str = "8xT4", *, speed: float = 10.0, plugin_options: Sequence[str] = ()) -> None:
        self.sim = sim.up(spec, speed, name=f"kube-{os.getpid()}-{next(_numbers)}")
        # Short, because the path of a unix socket has at most 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="nvs-", dir="/tmp"))
        self.environment = {**os.environ, **self.sim.env()}
        self.kubelet = Kubelet(self.directory)
        self.plugin_options = tuple(plugin_options)
        self.plugin: subprocess.Popen[bytes] | None = None
        self.plugin_log = self.sim.directory / "plugin.log"
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._admitted: dict[str, KubeletPod] = {}
        self._refused: dict[str, str] = {}
        self._uids = itertools.count(1)
        try:
            self._start_scheduler()
            self.kubelet.start()
            self.start_plugin()
            self.kubelet.wait_listed(GPU)
        except BaseException:
            self.close()
            raise

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.sim.uuids

    def _start_scheduler(self) -> None:
        ready, told = os.pipe()
        command = [sys.executable, "-m", "nvshare.cli.scheduler", "--user", "--socket", str(self.sim.socket)]
        with (self.sim.directory / "scheduler.log").open("ab") as log:
            self._scheduler = subprocess.Popen(
                [*command, "--ready-fd", str(told)], env=self.environment, stderr=log, pass_fds=(told,)
            )
        os.close(told)
        listening = os.read(ready, 1)
        os.close(ready)
        assert listening, (self.sim.directory / "scheduler.log").read_text()

    def start_plugin(self) -> None:
        options = [
            *("--kubelet-dir", str(self.directory)),
            *("--library-dir", str(native.interposer().parent)),
            *("--socket-dir", str(self.sim.directory)),
            *("--simulated", str(self.sim.directory)),
            *("--health-interval", "0.1"),
            *self.plugin_options,
        ]
        with self.plugin_log.open("ab") as log:
            self.plugin = subprocess.Popen(
                [sys.executable, "-m", "nvshare.cli.device_plugin", *options], env=self.environment, stderr=log
            )

    def plugin_said(self, text: str) -> None:
        """Wait until the plugin's log has this."""
        wait_until(lambda: text in self.plugin_log.read_text(), f"{text!r} in {self.plugin_log.read_text()}")

    def create(
        self,
        name: str,
        *,
        gpus: int = 1,
        gpumem: int | None = None,
        annotations: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> Pod:
        if annotations or command:
            raise NotImplementedError("tasks and annotations of pods")
        pod = Pod(name, f"00000000-0000-4000-8000-{next(self._uids):012d}")
        wants = {GPU: gpus} if gpumem is None else {GPU: gpus, GPUMEM: gpumem}
        if gpumem is not None:
            self.kubelet.wait_listed(GPUMEM)
        try:
            self._admitted[pod.uid] = self.kubelet.admit(name, wants)
        except AdmissionError as error:
            self._refused[pod.uid] = str(error)
        return pod

    def delete(self, pod: Pod, wait: bool = True) -> None:
        self._admitted.pop(pod.uid, None)
        self._refused.pop(pod.uid, None)
        self.kubelet.delete(pod.name)

    def wait_running(self, pod: Pod) -> None:
        if pod.uid in self._refused:
            raise NotAdmitted(self._refused[pod.uid])
        self.kubelet.start_containers(self._admitted[pod.uid])

    def devices(self, pod: Pod) -> tuple[str, ...]:
        given = [container.devices.get(GPU, ()) for container in self._admitted[pod.uid].containers]
        return tuple(sorted(device for devices in given for device in devices))

    def task_environment(self, pod: Pod) -> dict[str, str]:
        """The environment of the pod's container, for a process that has no container: paths are the host's."""
        variables: dict[str, str] = {}
        (container,) = self._admitted[pod.uid].containers
        mounts = {
            mount.container_path: mount.host_path for answer in container.answers.values() for mount in answer.mounts
        }
        for answer in container.answers.values():
            for name, value in answer.envs.items():
                inside = next((path for path in mounts if f"{value}/".startswith(f"{path}/")), None)
                variables[name] = value if inside is None else mounts[inside] + value[len(inside) :]
        return variables

    def events(self, pod: Pod) -> list[str]:
        return [self._refused[pod.uid]] if pod.uid in self._refused else []

    def capacity(self, resource: str = GPU) -> int:
        return self.kubelet.allocatable(resource)

    def _offered(self) -> tuple[str, ...]:
        return (GPU,) if "--no-gpumem" in self.plugin_options else (GPU, GPUMEM)

    def restart_kubelet(self) -> None:
        before = len(self.kubelet.registrations)
        self.kubelet.restart()
        self.kubelet.wait_listed(*self._offered(), after=before)

    def kill_plugin(self) -> None:
        assert self.plugin
        self.plugin.send_signal(signal.SIGKILL)
        self.plugin.wait()

    def restart_plugin(self) -> None:
        before = len(self.kubelet.registrations)
        self.kill_plugin()
        self.start_plugin()
        self.kubelet.wait_listed(*self._offered(), after=before)

    def lose_gpu(self, uuid: str, lost: bool = True) -> None:
        self.sim.lose(uuid, lost)

    def scheduler_status(self) -> dict[str, Any]:
        with Connection(self.sim.socket) as connection:
            return connection.status()

    def annotate(self, pod: Pod, key: str, value: str | None) -> None:
        raise NotImplementedError

    def wait_done(self, pod: Pod) -> int:
        raise NotImplementedError

    def logs(self, pod: Pod) -> str:
        raise NotImplementedError

    def execute(self, pod: Pod, command: Sequence[str]) -> tuple[int, str]:
        raise NotImplementedError

    def stop_api(self) -> None:
        raise NotImplementedError

    def start_api(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for process in (self.plugin, self._scheduler):
            if process is not None:
                process.terminate()
                try:
                    process.wait(20)
                finally:
                    process.kill()
                    process.wait()
        self.kubelet.remove()
        sim.down(self.sim.name)
