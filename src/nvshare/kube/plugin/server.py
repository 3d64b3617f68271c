"""The two services that the kubelet calls, one for each resource: from gRPC to policy and back. No policy in here."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, ClassVar

import grpc

from nvshare.kube.api import deviceplugin_pb2 as api
from nvshare.kube.api.services import HEALTHY, UNHEALTHY
from nvshare.kube.plugin import gpumem, placement, response
from nvshare.kube.plugin.desk import Desk
from nvshare.kube.plugin.podresources import NoPicture
from nvshare.kube.plugin.state import GPU, GPUMEM, Node, Picture, uuid_of

_LOG = logging.getLogger("nvshare")
_SHOWN = 5  # devices named in one message

Context = Any  # grpc.aio.ServicerContext, which has no types


class Service(ABC):
    """One resource. ``streams`` is how many kubelets follow its devices now: one, or none while it restarts."""

    resource: ClassVar[str]
    socket: ClassVar[str]
    options: ClassVar[api.DevicePluginOptions]

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.streams = 0

    @abstractmethod
    def devices(self, node: Node) -> Iterable[tuple[str, bool]]:
        """Their names, and whether each is healthy."""

    async def GetDevicePluginOptions(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:
        return self.options

    async def ListAndWatch(self, request: api.Empty, context: Context) -> AsyncIterator[api.ListAndWatchResponse]:
        self.streams += 1
        try:
            async for node in self.desk.nodes():
                listed = api.ListAndWatchResponse()
                for name, healthy in self.devices(node):
                    listed.devices.add(ID=name, health=HEALTHY if healthy else UNHEALTHY)
                yield listed
        finally:
            self.streams -= 1


class GpuService(Service):
    """``nvshare.com/gpu``."""

    resource = GPU
    socket = "nvshare-gpu.sock"
    options = api.DevicePluginOptions(get_preferred_allocation_available=True)

    def devices(self, node: Node) -> Iterable[tuple[str, bool]]:
        return node.devices()

    async def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: Context
    ) -> api.PreferredAllocationResponse:
        picture, load = await asyncio.gather(self.desk.picture_or_none(), self.desk.load())
        self.desk.seen = picture
        around = placement.Surroundings(self.desk.node, picture or Picture(), load)
        answer = api.PreferredAllocationResponse()
        taken: set[str] = set()
        for container in request.container_requests:
            try:
                chosen = placement.choose(
                    self._request(container, taken, around.picture), around, self.desk.terms.placement
                )
            except placement.CannotPlace as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{GPU}: {error}")
            taken.update(chosen)
            answer.container_responses.add(deviceIDs=chosen)
            _LOG.debug("Prefer %s", ", ".join(chosen))
        return answer

    def _request(
        self, container: api.ContainerPreferredAllocationRequest, taken: set[str], picture: Picture
    ) -> placement.Request:
        pod = self.desk.last.pod(picture) if self.desk.last is not None else None
        return placement.Request(
            available=tuple(device for device in container.available_deviceIDs if device not in taken),
            size=container.allocation_size,
            required=tuple(container.must_include_deviceIDs),
            memory=len(pod.memory) if pod is not None and pod.memory else None,
            pod=pod.name if pod is not None else "",
        )

    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:
        node, terms = self.desk.node, self.desk.terms
        answer = api.AllocateResponse()
        for container in request.container_requests:
            devices = tuple(container.devices_ids)
            await _refuse_unknown(self.resource, [name for name in devices if not node.knows(name)], context)
            lost = sorted({uuid_of(name) for name in devices if not node.by_uuid[uuid_of(name)].healthy})
            if lost:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"GPU {', '.join(lost)} does not answer")
            answer.container_responses.append(response.for_gpus(devices, terms.places, terms.strategy, terms.extra))
            _LOG.info("Allocated %s", ", ".join(devices))
            self._remember(devices)
        return answer

    def _remember(self, devices: tuple[str, ...]) -> None:
        seen, self.desk.seen = self.desk.seen, None
        self.desk.last = gpumem.LastAllocation(devices, seen.names) if seen is not None else None


class MemoryService(Service):
    """``nvshare.com/gpumem``."""

    resource = GPUMEM
    socket = "nvshare-gpumem.sock"
    options = api.DevicePluginOptions(pre_start_required=True)

    def devices(self, node: Node) -> Iterable[tuple[str, bool]]:
        return gpumem.devices(node)

    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:
        picture = await self._picture(context)
        known = gpumem.known(self.desk.node)
        answer = api.AllocateResponse()
        for container in request.container_requests:
            devices = tuple(container.devices_ids)
            await _refuse_unknown(self.resource, [name for name in devices if not known(name)], context)
            try:
                gpumem.check_promise(len(devices), self.desk.last, self.desk.node, picture)
            except gpumem.NoRoom as error:
                await self._refuse(context, error)
            answer.container_responses.append(response.for_memory(len(devices)))
            _LOG.info("Allocated %d MiB of GPU memory", len(devices))
            self.desk.last = gpumem.LastAllocation(devices, picture.names)
        return answer

    async def PreStartContainer(
        self, request: api.PreStartContainerRequest, context: Context
    ) -> api.PreStartContainerResponse:
        """By now the kubelet has given the container all its devices, and says so: the promise is known exactly."""
        picture = await self._picture(context)
        pod = picture.holder(request.devices_ids)
        if pod is not None:
            try:
                gpumem.check_cards(pod, 0, self.desk.node, picture)
            except gpumem.NoRoom as error:
                self.desk.must_wait(pod.name)
                await self._refuse(context, error)
            self.desk.may_start(pod.name)
        return api.PreStartContainerResponse()

    async def _picture(self, context: Context) -> Picture:
        try:
            return await self.desk.picture()
        except NoPicture as error:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                f"{self.resource}: the kubelet does not say what is promised already ({error}); "
                "is its directory pod-resources mounted into the plugin's container?",
            )
            raise  # abort does not come back

    async def _refuse(self, context: Context, error: gpumem.NoRoom) -> None:
        _LOG.warning("%s: %s", self.resource, error)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self.resource}: {error}")


async def _refuse_unknown(resource: str, unknown: Sequence[str], context: Context) -> None:
    if not unknown:
        return
    shown = ", ".join(repr(name[:80]) for name in unknown[:_SHOWN])
    more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{resource} has no {shown}{more} on this node")
