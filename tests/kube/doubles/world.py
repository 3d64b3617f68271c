"""The world of the doubles: a simulated node with a real scheduler, device plugin and watch of pods, under doubles of
the kubelet and the API server."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from world import GPU, GPUMEM, NotAdmitted, Pod

from doubles.api import ApiDouble
from doubles.kubelet import AdmissionError, Kubelet, KubeletPod, wait_until
from doubles.tasks import Tasks
from nvshare import native
from nvshare.client.connection import Connection
from nvshare.gpu import sim

NODE = "node-1"

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
        self.api = ApiDouble()
        self.tasks = Tasks(self.directory)
        self.scheduler_log = self.sim.directory / "scheduler.log"
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._pod_watch: subprocess.Popen[bytes] | None = None
        self._admitted: dict[str, KubeletPod] = {}
        self._refused: dict[str, str] = {}
        try:
            self.start_scheduler()
            self.start_pod_watch()
            self.kubelet.start()
            self.start_plugin()
            self.kubelet.wait_listed(GPU)
            wait_until(lambda: self.scheduler_status()["scheduler"]["pod_watch"], "the watch of pods")
        except BaseException:
            self.close()
            raise

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.sim.uuids

    def start_scheduler(self) -> None:
        ready, told = os.pipe()
        program = Path(__file__).with_name("scheduler.py")
        command = [sys.executable, str(program), str(self.sim.socket), str(self.tasks.pods), str(told)]
        with self.scheduler_log.open("ab") as log:
            self._scheduler = subprocess.Popen(command, env=self.environment, stderr=log, pass_fds=(told,))
        os.close(told)
        listening = os.read(ready, 1)
        os.close(ready)
        assert listening, self.scheduler_log.read_text()

    def kill_scheduler(self) -> None:
        assert self._scheduler
        self._scheduler.kill()
        self._scheduler.wait()

    def start_pod_watch(self) -> None:
        config = self.api.kubeconfig(self.directory / "kubeconfig")
        options = ["--node", NODE, "--kubeconfig", str(config), "--socket", str(self.sim.socket)]
        with (self.sim.directory / "pod-watch.log").open("ab") as log:
            self._pod_watch = subprocess.Popen(
                [sys.executable, "-m", "nvshare.cli.pod_watch", *options], env=self.environment, stderr=log
            )

    def kill_pod_watch(self) -> None:
        assert self._pod_watch
        self._pod_watch.kill()
        self._pod_watch.wait()

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
        wants = {GPU: gpus} if gpumem is None else {GPU: gpus, GPUMEM: gpumem}
        limits = {resource: str(amount) for resource, amount in wants.items()}
        made = self.api.create(name, node=NODE, annotations=annotations, limits=limits)
        pod = Pod(name, made["metadata"]["uid"])
        if gpumem is not None:
            self.kubelet.wait_listed(GPUMEM)
        try:
            self._admitted[pod.uid] = self.kubelet.admit(name, wants)
        except AdmissionError as error:
            self._refused[pod.uid] = str(error)
            self.api.change(name, lambda pod: pod["status"].update(phase="Failed"))
            return pod
        if command is not None:
            self.kubelet.start_containers(self._admitted[pod.uid])
            self.tasks.start(pod, command, self.task_environment(pod))
        return pod

    def delete(self, pod: Pod, wait: bool = True) -> None:
        if not self.api.holds(pod.name, pod.uid):
            return
        self.tasks.end(pod)
        self._admitted.pop(pod.uid, None)
        self._refused.pop(pod.uid, None)
        self.kubelet.delete(pod.name)
        self.api.delete(pod.name)

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
        refused = [self._refused[pod.uid]] if pod.uid in self._refused else []
        posted = [event for event in self.api.events_of(pod.name) if event["involvedObject"]["uid"] == pod.uid]
        return refused + [f"{event['reason']}: {event['message']}" for event in posted]

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
        self.api.annotate(pod.name, key, value)

    def wait_done(self, pod: Pod) -> int:
        return self.tasks.wait(pod)

    def logs(self, pod: Pod) -> str:
        return self.tasks.logs(pod)

    def execute(self, pod: Pod, command: Sequence[str]) -> tuple[int, str]:
        return self.tasks.execute(pod, command, self.task_environment(pod))

    @contextlib.contextmanager
    def outside(self, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[None]:
        environment = {
            **self.environment,
            "LD_PRELOAD": str(native.interposer()),
            "NVSHARE_SOCK": str(self.sim.socket),
            "CUDA_VISIBLE_DEVICES": self.gpus[0],
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, *command[1:]], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def stop_api(self) -> None:
        self.api.stop()

    def start_api(self) -> None:
        self.api.start()

    def close(self) -> None:
        self.tasks.close()
        self.api.close()
        for process in (self._pod_watch, self.plugin, self._scheduler):
            if process is not None:
                process.terminate()
                try:
                    process.wait(20)
                finally:
                    process.kill()
                    process.wait()
        self.kubelet.remove()
        sim.down(self.sim.name)
