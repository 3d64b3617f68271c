"""A kubelet as device plugins see it: it registers them, follows their devices, admits pods, lists who has what.

It behaves as the real one does where that matters (k8s.io/kubernetes, pkg/kubelet/cm/devicemanager, 1.32): resources of
a container are allocated in any order; a pod is listed before its devices are asked for; devices of pods that ended are
taken back when the next ones are asked for; messages have 4 MiB at most; a restart removes every file in the directory,
keeps who has what, and waits for plugins to come again.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from nvshare.kube.api import deviceplugin_pb2 as api
from nvshare.kube.api import podresources_pb2 as resources
from nvshare.kube.api.services import DEVICE_PLUGIN, HEALTHY, KUBELET_SOCKET, POD_RESOURCES, REGISTRATION

PATIENCE = 20.0
_SERVER_OPTIONS = [("grpc.max_send_message_length", -1)]
# As a Go client: 4 MiB at most from the plugin, any size to it. Not to be found again by another kubelet.
_CHANNEL_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class AdmissionError(Exception):
    """The pod was not admitted; the text is what its status would say."""


@dataclass
class Container:
    name: str
    wants: Mapping[str, int]
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    answers: dict[str, api.ContainerAllocateResponse] = field(default_factory=dict)


@dataclass
class KubeletPod:
    name: str
    namespace: str
    containers: list[Container]
    ended: bool = False


class _Endpoint:
    """A registered plugin. Its devices are followed until its stream ends."""

    def __init__(self, kubelet: Kubelet, request: api.RegisterRequest) -> None:
        self.resource = request.resource_name
        self.order: list[str] = []
        self.healthy: set[str] = set()
        self.unhealthy: set[str] = set()
        self.listed = False
        self.alive = True
        self._kubelet = kubelet
        self._channel = grpc.insecure_channel(f"unix:{kubelet.plugins / request.endpoint}", options=_CHANNEL_OPTIONS)
        self.options = self.call("GetDevicePluginOptions", api.Empty())
        self._stream = DEVICE_PLUGIN.bind(self._channel, "ListAndWatch")(api.Empty())
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def call(self, method: str, request: object) -> Any:
        return DEVICE_PLUGIN.bind(self._channel, method)(request, timeout=PATIENCE)

    def _follow(self) -> None:
        try:
            for response in self._stream:
                with self._kubelet.changed:
                    self.order = [device.ID for device in response.devices]
                    self.healthy = {device.ID for device in response.devices if device.health == HEALTHY}
                    self.unhealthy = set(self.order) - self.healthy
                    self.listed = True
                    self._kubelet.changed.notify_all()
        except grpc.RpcError as error:
            self._kubelet.ended_streams.append(f"{error.code().name}: {error.details()}")
        with self._kubelet.changed:
            self.alive = False
            self.unhealthy |= self.healthy
            self.healthy = set()
            self._kubelet.changed.notify_all()

    def close(self) -> None:
        self._stream.cancel()
        self._thread.join(PATIENCE)
        self._channel.close()


class Kubelet:
    """``follow_hints``: whether devices that the plugin prefers are taken; else any. ``seed`` is for what is random."""

    def __init__(self, directory: Path, *, follow_hints: bool = True, seed: int = 0) -> None:
        self.directory = directory
        self.plugins = directory / "device-plugins"
        self.pod_resources = directory / "pod-resources" / "kubelet.sock"
        self.follow_hints = follow_hints
        self.changed = threading.Condition()
        self.registrations: list[str] = []  # resources, in the order in which they came
        self.ended_streams: list[str] = []  # why streams ended
        self.pods: dict[str, KubeletPod] = {}
        self._random = random.Random(seed)
        self._endpoints: dict[str, _Endpoint] = {}
        self._servers: list[grpc.Server] = []

    def start(self) -> None:
        for folder in (self.plugins, self.pod_resources.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.iterdir():
            if not path.is_dir():
                path.unlink()
        self.pod_resources.unlink(missing_ok=True)
        self._serve(self.plugins / KUBELET_SOCKET, REGISTRATION.handler(self))
        self._serve(self.pod_resources, POD_RESOURCES.handler(self))

    def _serve(self, path: Path, handler: grpc.GenericRpcHandler) -> None:
        server = grpc.server(ThreadPoolExecutor(8), handlers=(handler,), options=_SERVER_OPTIONS)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def stop(self) -> None:
        """As a kubelet that is killed: sockets stay behind, and nobody answers on them."""
        for server in self._servers:
            server.stop(None).wait(PATIENCE)
        self._servers.clear()
        for endpoint in self._endpoints.values():
            endpoint.close()
        self._endpoints.clear()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    # What plugins and their neighbours call.

    def Register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.UNKNOWN, f"unsupported version {request.version}")
        endpoint = _Endpoint(self, request)
        with self.changed:
            old = self._endpoints.pop(request.resource_name, None)
            self._endpoints[request.resource_name] = endpoint
            self.registrations.append(request.resource_name)
            self.changed.notify_all()
        if old is not None:
            old.close()
        return api.Empty()

    def List(
        self, request: resources.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> resources.ListPodResourcesResponse:
        response = resources.ListPodResourcesResponse()
        with self.changed:
            self._take_back()
            for pod in self.pods.values():
                listed = response.pod_resources.add(name=pod.name, namespace=pod.namespace)
                for container in pod.containers:
                    entry = listed.containers.add(name=container.name)
                    for resource, devices in container.devices.items():
                        entry.devices.add(resource_name=resource, device_ids=devices)
        return response

    # What the API server or a test tells it.

    def admit(self, name: str, *wants: Mapping[str, int], namespace: str = "default") -> KubeletPod:
        """A pod whose containers want so much of each resource; ``AdmissionError`` when it cannot have it."""
        containers = [Container(f"c{number}", want) for number, want in enumerate(wants)]
        pod = KubeletPod(name, namespace, containers)
        with self.changed:
            self.pods[name] = pod
        try:
            for container in containers:
                order = list(container.wants)
                self._random.shuffle(order)
                for resource in order:
                    self._allocate(container, resource, container.wants[resource])
        except (AdmissionError, grpc.RpcError) as error:
            pod.ended = True
            text = f"rpc error: {error.code()} {error.details()}" if isinstance(error, grpc.RpcError) else str(error)
            raise AdmissionError(
                f"UnexpectedAdmissionError: Allocate failed due to {text}, which is unexpected"
            ) from error
        return pod

    def start_containers(self, pod: KubeletPod) -> None:
        """``grpc.RpcError`` when a plugin does not let a container start; the real one tries again later."""
        for container in pod.containers:
            for resource, devices in container.devices.items():
                endpoint = self._endpoint(resource)
                if endpoint.options.pre_start_required:
                    endpoint.call("PreStartContainer", api.PreStartContainerRequest(devices_ids=devices))

    def end(self, name: str) -> None:
        """The pod has ended and is still listed, as a finished job is."""
        with self.changed:
            self.pods[name].ended = True

    def delete(self, name: str) -> None:
        with self.changed:
            del self.pods[name]

    def forget(self, resource: str) -> None:
        """Lose a plugin without a word."""
        with self.changed:
            endpoint = self._endpoints.pop(resource)
        endpoint.close()

    def allocatable(self, resource: str) -> int:
        with self.changed:
            endpoint = self._endpoints.get(resource)
            return len(endpoint.healthy) if endpoint is not None else 0

    def capacity(self, resource: str) -> int:
        with self.changed:
            endpoint = self._endpoints.get(resource)
            return len(endpoint.healthy | endpoint.unhealthy) if endpoint is not None else 0

    def wait_for(self, satisfied: Callable[[], object], what: str = "") -> None:
        with self.changed:
            assert self.changed.wait_for(satisfied, PATIENCE), (what, self.registrations, self.ended_streams)

    def wait_listed(self, *wanted: str, after: int = 0) -> None:
        """Until these resources were registered (again, after so many registrations) and their devices are known."""

        def listed() -> bool:
            endpoints = [self._endpoints.get(resource) for resource in wanted]
            again = set(wanted) <= set(self.registrations[after:])
            return again and all(one is not None and one.alive and one.listed for one in endpoints)

        self.wait_for(listed, f"registration of {wanted}")

    def call(self, resource: str, method: str, request: object) -> Any:
        """Any call, also one that a kubelet in its right mind would not make."""
        return self._endpoint(resource).call(method, request)

    # How devices are found.

    def _endpoint(self, resource: str) -> _Endpoint:
        with self.changed:
            endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        return endpoint

    def _take_back(self) -> None:
        for pod in self.pods.values():
            if pod.ended:
                for container in pod.containers:
                    container.devices.clear()

    def _in_use(self, resource: str) -> set[str]:
        return {
            device
            for pod in self.pods.values()
            for container in pod.containers
            for device in container.devices.get(resource, ())
        }

    def _allocate(self, container: Container, resource: str, size: int) -> None:
        endpoint = self._endpoint(resource)
        with self.changed:
            self._take_back()
            in_use = self._in_use(resource)
            available = [device for device in endpoint.order if device in endpoint.healthy and device not in in_use]
        if len(available) < size:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {size}, Available: {len(available)}"
            )
        devices = self._pick(endpoint, available, size)
        response = endpoint.call(
            "Allocate", api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=devices)])
        )
        with self.changed:
            container.devices[resource] = tuple(devices)
            container.answers[resource] = response.container_responses[0]

    def _pick(self, endpoint: _Endpoint, available: list[str], size: int) -> list[str]:
        if endpoint.options.get_preferred_allocation_available:
            request = api.PreferredAllocationRequest()
            unordered = self._random.sample(available, len(available))
            request.container_requests.add(available_deviceIDs=unordered, allocation_size=size)
            answer = endpoint.call("GetPreferredAllocation", request)
            preferred = list(answer.container_responses[0].deviceIDs)
            if self.follow_hints and len(preferred) == size and set(preferred) <= set(available):
                return preferred
        return self._random.sample(available, size)
