"""Keeps services served and registered, over any number of restarts of the kubelet.

A kubelet that starts removes all sockets in its directory and forgets who was registered. It does not call: a plugin
sees that its socket is gone, or the kubelet's is another one, or that nobody follows its devices any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

from nvshare.kube.api import deviceplugin_pb2 as api
from nvshare.kube.api.services import (
    API_VERSION,
    CHANNEL_OPTIONS,
    DEVICE_PLUGIN,
    KUBELET_SOCKET,
    REGISTRATION,
    SERVER_OPTIONS,
)
from nvshare.kube.plugin.endpoint import Busy, Occupied, claim, mark
from nvshare.kube.plugin.server import Service

_LOG = logging.getLogger("nvshare")
_LOOK_EVERY = 0.25  # seconds
_REGISTER_PATIENCE = 15.0  # the kubelet calls back before it answers
_RETRY = 2.0  # after a registration that failed
_UNFOLLOWED = 5.0  # seconds without anybody following: the kubelet has lost us


class Registration:
    def __init__(self, service: Service, directory: Path) -> None:
        self.service = service
        self.path = directory / service.socket
        self._kubelet = directory / KUBELET_SOCKET
        self._server: grpc.aio.Server | None = None
        self._served: tuple[int, int] | None = None  # our socket, as we made it
        self._registered: tuple[int, int] | None = None  # the kubelet's socket, as we registered there
        self._followed_at = 0.0
        self._try_at = 0.0
        self._complaint = ""

    async def step(self) -> None:
        """Repair what is not as it should be, now; ``Occupied`` when another plugin has our place."""
        if not self.path.parent.is_dir():
            self._complain(f"there is no {self.path.parent}; waiting for a kubelet to make it")
            return
        try:
            if self._served is None or mark(self.path) != self._served:
                await self._serve()
        except Busy as error:
            self._complain(f"{error}; trying again")
            return
        now = asyncio.get_running_loop().time()
        if self.service.streams:
            self._followed_at = now
        kubelet = mark(self._kubelet)
        lost = kubelet != self._registered or now - self._followed_at > _UNFOLLOWED
        if lost and now >= self._try_at:
            self._try_at = now + _RETRY
            await self._register(kubelet)

    async def _serve(self) -> None:
        await self._stop()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((DEVICE_PLUGIN.handler(self.service),))
        try:
            with claim(self.path):
                server.add_insecure_port(f"unix:{self.path}")
                self._server, self._served = server, mark(self.path)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise Occupied(
                f"{self.path} cannot be served ({reason}): the plugin must be root and see the kubelet's directory, "
                "whose path may be no longer than 70 characters"
            ) from error
        await server.start()
        self._registered, self._try_at = None, 0.0

    async def _register(self, kubelet: tuple[int, int] | None) -> None:
        if kubelet is None:
            self._complain(f"there is no {self._kubelet}; waiting for the kubelet")
            self._try_at = 0.0  # it costs nothing to look again soon
            return
        request = api.RegisterRequest(
            version=API_VERSION,
            endpoint=self.path.name,
            resource_name=self.service.resource,
            options=self.service.options,
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=CHANNEL_OPTIONS) as channel:
                await REGISTRATION.bind(channel, "Register")(request, timeout=_REGISTER_PATIENCE)
        except grpc.aio.AioRpcError as error:
            self._complain(f"the kubelet did not take it ({error.code().name}: {error.details()}); trying again")
            return
        self._registered, self._complaint = kubelet, ""
        self._followed_at = asyncio.get_running_loop().time()
        _LOG.info("Registered %s with the kubelet", self.service.resource)

    def _complain(self, text: str) -> None:
        """Once, not every time."""
        if text != self._complaint:
            self._complaint = text
            _LOG.warning("Cannot register %s: %s", self.service.resource, text)

    async def _stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

    async def close(self) -> None:
        """The kubelet sees the stream end; the socket is removed unless it is another's."""
        if self._served is not None and mark(self.path) == self._served:
            self.path.unlink(missing_ok=True)
        await self._stop()


async def keep_registered(registrations: Sequence[Registration]) -> None:
    """Until cancelled. One after the other: of two plugins that start at once, who has the first socket gets all."""
    while True:
        for registration in registrations:
            await registration.step()
        await asyncio.sleep(_LOOK_EVERY)
