"""The world of the tests on a real cluster: its kubelet, API server and scheduler; simulated cards on its node."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from cluster import Cluster
from image import IMAGE
from settings import NODE

from nvshare import native
from nvshare.gpu import sim
from nvshare.kube.api import podresources_pb2
from nvshare.kube.api.services import CHANNEL_OPTIONS, POD_RESOURCES
from tests.kube.api import Api, Refused
from tests.kube.world import GPU, GPUMEM, NotAdmitted, Pod, World, wait_for

SOCKET = Path("/var/run/nvshare/scheduler.sock")
LIBRARY = Path("/var/lib/nvshare/lib")
POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

_NAMESPACE = "default"
_PODS = f"/api/v1/namespaces/{_NAMESPACE}/pods"
_VIRTUAL_DEVICES = 10
# Ends at once when told, which the first process of a container does only when it says so.
_SLEEP = ("sh", "-c", "trap exit TERM; while :; do sleep 1000 & wait; done")


class RealWorld(World):
    """The node's programs of nvshare run beside the kubelet; pods come and go through the API."""

    def __init__(self, cluster: Cluster, spec: str = "8xT4", speed: float = 10.0) -> None:
        self._cluster = cluster
        self._api_was_away = False
        self._reach(cluster.settings.kubeconfig)
        super().__init__(sim.up(spec, speed, name="kube"), SOCKET, LIBRARY / "libnvshare.so")
        LIBRARY.mkdir(parents=True, exist_ok=True)
        SOCKET.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(native.interposer(), LIBRARY)
        self._start("nvshare-scheduler")
        wait_for("the scheduler", SOCKET.exists)
        self._start("nvshare-pod-watch")
        with self._registering():
            self._start("nvshare-device-plugin", "--simulated", str(self.sim.directory))
        wait_for("the watch of pods", lambda: self.scheduler_status()["scheduler"]["pod_watch"])

    def _start(self, program: str, *options: str) -> None:
        env = {**self.sim.env(), "NVSHARE_SOCK": str(SOCKET), "NODE_NAME": NODE}
        self._cluster.start(program, [str(Path(sys.executable).parent / program), *options], env)

    @contextlib.contextmanager
    def _registering(self) -> Iterator[None]:
        """Wait for what was done inside to end in devices that the kubelet knows, and the API server too.

        The kubelet's log is the only place that tells the devices of now from those of before.
        """
        log = self._cluster.log("kubelet")
        before = log.stat().st_size
        yield
        devices = len(self.gpus) * _VIRTUAL_DEVICES
        for resource in (GPU, GPUMEM):
            line = re.compile(rf'Processed device updates.*"{resource}".*healthyCount=[1-9]'.encode())
            wait_for(f"devices of {resource}", lambda line=line: line.search(_from(log, before)))
        wait_for("the devices", lambda: self.capacity() == devices and self.capacity(GPUMEM) > 0)

    # ---- pods

    def create(
        self,
        name: str,
        *,
        gpus: int = 1,
        gpumem: int | None = None,
        annotations: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> Pod:
        limits = {GPU: str(gpus), **({} if gpumem is None else {GPUMEM: str(gpumem)})}
        container = {
            "name": "task",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": list(command or _SLEEP),
            "resources": {"limits": limits},
        }
        spec = {"containers": [container], "restartPolicy": "Never", "dnsPolicy": "Default"}
        metadata = {"name": name, "annotations": dict(annotations or {})}
        made = self._api.post(_PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return Pod(name, made["metadata"]["uid"], _NAMESPACE)

    def delete(self, pod: Pod, wait: bool = True) -> None:
        self._api.delete(_path(pod), {"gracePeriodSeconds": 1})
        if wait:
            wait_for(f"the end of {pod.name}", lambda: self._api.find(_path(pod)) is None)
            wait_for(f"the devices of {pod.name}", lambda: pod.name not in self._given())

    def delete_all(self) -> None:
        """Every pod of the tests, and wait until the node is as it was."""
        if self._api_was_away:
            self.restart_kubelet()  # it would look for the API server again after up to a minute
            self._api_was_away = False
        pods = [
            Pod(one["metadata"]["name"], one["metadata"]["uid"], _NAMESPACE) for one in self._api.get(_PODS)["items"]
        ]
        for pod in pods:
            self.delete(pod, wait=False)
        for pod in pods:
            self.delete(pod)

    def annotate(self, pod: Pod, key: str, value: str | None) -> None:
        change = f"{key}-" if value is None else f"{key}={value}"
        self._kubectl("annotate", "--overwrite", "pod", pod.name, change)

    def wait_running(self, pod: Pod) -> None:
        def look() -> bool:
            status = self._status(pod)
            if status["phase"] == "Failed" and "containerStatuses" not in status:
                raise NotAdmitted(f"{status.get('reason')}: {status.get('message')}")
            return status["phase"] in ("Running", "Succeeded", "Failed")

        wait_for(f"{pod.name} to run", look)

    def wait_done(self, pod: Pod) -> int:
        self.wait_running(pod)

        def ended() -> dict[str, Any] | None:
            statuses = self._status(pod).get("containerStatuses") or [{}]
            return statuses[0].get("state", {}).get("terminated")

        return int(wait_for(f"{pod.name} to end", ended)["exitCode"])

    def _status(self, pod: Pod) -> dict[str, Any]:
        return dict(self._api.get(_path(pod))["status"])

    def devices(self, pod: Pod) -> tuple[str, ...]:
        return self._given().get(pod.name, ())

    def _given(self) -> dict[str, tuple[str, ...]]:
        """The devices of every pod that has some, as the kubelet tells it."""
        with grpc.insecure_channel(f"unix:{POD_RESOURCES_SOCKET}", options=CHANNEL_OPTIONS) as channel:
            listed = POD_RESOURCES.bind(channel, "List")(podresources_pb2.ListPodResourcesRequest(), timeout=10)
        given: dict[str, tuple[str, ...]] = {}
        for pod in listed.pod_resources:
            each = [one for container in pod.containers for one in container.devices if one.resource_name == GPU]
            ids = sorted(device for one in each for device in one.device_ids)
            if ids:
                given[pod.name] = tuple(ids)
        return given

    def logs(self, pod: Pod) -> str:
        try:
            return self._api.text(f"{_path(pod)}/log")
        except Refused as refused:
            if refused.code not in (400, 404):
                raise
            return ""  # its container has not been started yet, or its kubelet has not seen it

    def execute(self, pod: Pod, command: Sequence[str]) -> tuple[int, str]:
        done = subprocess.run(
            [*self._kubectl_program, "exec", pod.name, "--", *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def events(self, pod: Pod) -> list[str]:
        found = self._api.get(f"/api/v1/namespaces/{_NAMESPACE}/events?fieldSelector=involvedObject.uid={pod.uid}")[
            "items"
        ]
        found.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [f"{event['reason']}: {event['message']}" for event in found]

    @property
    def _kubectl_program(self) -> list[str]:
        return ["kubectl", f"--kubeconfig={self._kubeconfig}"]

    def _kubectl(self, *arguments: str) -> str:
        done = subprocess.run([*self._kubectl_program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # ---- the node

    def capacity(self, resource: str = GPU) -> int:
        return int(self._api.get(f"/api/v1/nodes/{NODE}")["status"]["allocatable"].get(resource, 0))

    def restart_kubelet(self) -> None:
        with self._registering():
            self._cluster.restart_kubelet()

    def restart_plugin(self) -> None:
        self._cluster.stop("nvshare-device-plugin", signal.SIGKILL)
        with self._registering():
            self._start("nvshare-device-plugin", "--simulated", str(self.sim.directory))

    def stop_api(self) -> None:
        self._api_was_away = True
        self._cluster.stop_api()
        self._reach(self._cluster.settings.aside_kubeconfig)

    def start_api(self) -> None:
        self._cluster.start_api()
        self._reach(self._cluster.settings.kubeconfig)

    def _reach(self, kubeconfig: Path) -> None:
        """Where the test itself, who is not the node, asks and changes things."""
        self._kubeconfig = kubeconfig
        self._api = Api(kubeconfig)

    def close(self) -> None:
        self.delete_all()
        for program in ("nvshare-pod-watch", "nvshare-device-plugin", "nvshare-scheduler"):
            self._cluster.stop(program)
        sim.down(self.sim.name)


def _from(log: Path, offset: int) -> bytes:
    with open(log, "rb") as file:
        file.seek(offset)
        return file.read()


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
