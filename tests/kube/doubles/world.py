"""The world of the doubles: a simulated node with a real scheduler, device plugin and watch of pods, under doubles of
the kubelet and the API server."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvshare import native
from nvshare.gpu import sim
from tests.kube.doubles.api import ApiDouble
from tests.kube.doubles.kubelet import AdmissionError, Kubelet, KubeletPod
from tests.kube.doubles.tasks import Tasks
from tests.kube.world import GPU, GPUMEM, NotAdmitted, Pod, World, wait_for
from tests.support.processes import READY, SchedulerProcess

NODE = "node-1"

_numbers = itertools.count()


class DoublesWorld(World):
    def __init__(self, spec: str = "8xT4", *, speed: float = 10.0, plugin_options: Sequence[str] = ()) -> None:
        node = sim.up(spec, speed, name=f"kube-{os.getpid()}-{next(_numbers)}")
        super().__init__(node, node.socket, native.interposer())
        # Short, because the path of a unix socket has at most 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="nvs-", dir="/tmp"))
        self.environment = {**os.environ, **self.sim.env()}
        self.kubelet = Kubelet(self.directory)
        self.plugin_options = tuple(plugin_options)
        self.plugin: subprocess.Popen[bytes] | None = None
        self.plugin_log = self.sim.directory / "plugin.log"
        self.api = ApiDouble()
        self.tasks = Tasks(self.directory)
        program = Path(__file__).with_name("scheduler.py")
        command = [sys.executable, str(program), str(self.socket), str(self.tasks.pods), READY]
        log = node.directory / "scheduler.log"
        self.scheduler = SchedulerProcess(command, self.socket, log, self.environment)
        self._pod_watch: subprocess.Popen[bytes] | None = None
        self._admitted: dict[str, KubeletPod] = {}
        self._refused: dict[str, str] = {}
        try:
            self.scheduler.start()
            self.start_pod_watch()
            self.kubelet.start()
            self.start_plugin()
            self.kubelet.wait_listed(GPU)
            wait_for("the watch of pods", lambda: self.scheduler_status()["scheduler"]["pod_watch"])
        except BaseException:
            self.close()
            raise

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
        wait_for(f"{text!r} in {self.plugin_log.read_text()}", lambda: text in self.plugin_log.read_text())

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

    def annotate(self, pod: Pod, key: str, value: str | None) -> None:
        self.api.annotate(pod.name, key, value)

    def wait_done(self, pod: Pod) -> int:
        return self.tasks.wait(pod)

    def logs(self, pod: Pod) -> str:
        return self.tasks.logs(pod)

    def execute(self, pod: Pod, command: Sequence[str]) -> tuple[int, str]:
        return self.tasks.execute(pod, command, self.task_environment(pod))

    def stop_api(self) -> None:
        self.api.stop()

    def start_api(self) -> None:
        self.api.start()

    def close(self) -> None:
        self.tasks.close()
        self.api.close()
        self.scheduler.stop()
        for process in (self._pod_watch, self.plugin):
            if process is not None:
                process.terminate()
                try:
                    process.wait(20)
                finally:
                    process.kill()
                    process.wait()
        self.kubelet.remove()
        sim.down(self.sim.name)
