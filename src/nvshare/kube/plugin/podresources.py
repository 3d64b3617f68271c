"""Who has which devices, as the kubelet tells it (PodResources API)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio

from nvshare.kube.api import podresources_pb2 as api
from nvshare.kube.api.services import CHANNEL_OPTIONS, POD_RESOURCES
from nvshare.kube.plugin.state import GPU, GPUMEM, VENDOR, Picture, PodUse

_PATIENCE = 2.0  # seconds for one answer
_BUSY_PAUSE = 0.05  # the kubelet answers a hundred times a second and refuses more
_BUSY_TRIES = 10


class NoPicture(Exception):
    """The kubelet does not say who has what; the text says why."""


def picture_of(response: api.ListPodResourcesResponse) -> Picture:
    """The kubelet's answer in our terms."""
    return Picture(tuple(_pod_use(pod) for pod in response.pod_resources))


def _pod_use(pod: api.PodResources) -> PodUse:
    given: dict[str, list[str]] = {GPU: [], GPUMEM: [], VENDOR: []}
    for container in pod.containers:
        for devices in container.devices:
            if devices.resource_name in given:
                given[devices.resource_name].extend(devices.device_ids)
    # Where the vendor's plugin shares cards out as well, its devices have a number behind the card.
    whole = tuple(dict.fromkeys(device.partition("::")[0] for device in given[VENDOR]))
    return PodUse(f"{pod.namespace}/{pod.name}", tuple(given[GPU]), tuple(given[GPUMEM]), whole)


class PodResources:
    """A connection to the kubelet, made anew for every question: a kubelet that was restarted has a new socket."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def picture(self) -> Picture:
        """``NoPicture`` when the kubelet does not answer."""
        if not self.socket.exists():
            raise NoPicture(f"there is no {self.socket}")
        async with grpc.aio.insecure_channel(f"unix:{self.socket}", options=CHANNEL_OPTIONS) as channel:
            ask = POD_RESOURCES.bind(channel, "List")
            for _ in range(_BUSY_TRIES):
                try:
                    return picture_of(await ask(api.ListPodResourcesRequest(), timeout=_PATIENCE))
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise NoPicture(f"{error.code().name}: {error.details()}") from error
                    await asyncio.sleep(_BUSY_PAUSE)
        raise NoPicture(f"{self.socket} is asked too often")
