"""From settings to a running plugin, and back to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshare.config import PluginConfig
from nvshare.kube.plugin import gpumem
from nvshare.kube.plugin.desk import Desk, Terms
from nvshare.kube.plugin.endpoint import vendor_sockets
from nvshare.kube.plugin.health import Health, Watch
from nvshare.kube.plugin.podresources import PodResources
from nvshare.kube.plugin.registration import Registration, keep_registered
from nvshare.kube.plugin.server import GpuService, MemoryService

_LOG = logging.getLogger("nvshare")
_VENDOR_EVERY = 1.0  # seconds


@dataclass(frozen=True)
class Kubelet:
    """Where it keeps its sockets."""

    directory: Path = Path("/var/lib/kubelet")

    @property
    def plugins(self) -> Path:
        return self.directory / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.directory / "pod-resources" / "kubelet.sock"


@dataclass(frozen=True)
class Options:
    config: PluginConfig
    terms: Terms
    kubelet: Kubelet
    scheduler: Path  # its socket, as this process reaches it
    with_memory: bool = True  # offer nvshare.com/gpumem
    health_interval: float = 2.0


def serve(options: Options, watch: Watch) -> None:
    """Run until SIGTERM or SIGINT. ``endpoint.Occupied`` when another plugin is there."""
    asyncio.run(_serve(options, watch))


async def _serve(options: Options, watch: Watch) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    desk = Desk(options.terms, PodResources(options.kubelet.pod_resources), options.scheduler)
    health = Health(watch, options.config, desk.set_node)
    services = [GpuService(desk), *([MemoryService(desk)] if options.with_memory else [])]
    registrations = [Registration(service, options.kubelet.plugins) for service in services]
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await _until(ended, health.look())  # so that the first list is not an empty one
            _say_offer(options, desk)
            await _say_use(desk)
            await _until(
                ended,
                health.keep(options.health_interval),
                _notice_vendor(options.kubelet.plugins),
                keep_registered(registrations),
            )
    finally:
        for registration in registrations:
            await registration.close()


async def _until(ended: asyncio.Event, *work: Coroutine[Any, Any, None]) -> None:
    """Do all of it until one fails or ends, or we are told to end; then ``CancelledError``."""
    tasks = [asyncio.create_task(one) for one in work]
    end = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait({*tasks, end}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        end.cancel()
        await asyncio.gather(*tasks, end, return_exceptions=True)
    if ended.is_set():
        raise asyncio.CancelledError


def _say_offer(options: Options, desk: Desk) -> None:
    offered = sum(gpumem.shares(desk.node).values())
    wanted = sum(gpu.memory for gpu in desk.node.gpus)
    if options.with_memory and offered < wanted:
        _LOG.warning(
            "nvshare.com/gpumem: %d of %d MiB are offered, because a kubelet takes no longer list; "
            "pods beyond that can have a quota by annotation",
            offered,
            wanted,
        )


async def _say_use(desk: Desk) -> None:
    picture = await desk.picture_or_none()
    if picture is not None:
        holders = [pod for pod in picture.pods if pod.devices]
        _LOG.info("The kubelet says: %d devices in use by %d pods", sum(picture.in_use.values()), len(holders))


async def _notice_vendor(directory: Path) -> None:
    noticed: list[str] = []
    while True:
        found = vendor_sockets(directory)
        if found and found != noticed:
            _LOG.warning(
                "The vendor's device plugin is on this node too (%s): pods that ask for nvidia.com/gpu get whole cards "
                "which nvshare shares out as well. Keep it off this node, or its pods",
                ", ".join(found),
            )
        noticed = found
        await asyncio.sleep(_VENDOR_EVERY)
