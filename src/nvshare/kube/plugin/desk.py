"""What the services of both resources share: the cards as they are now, and who has what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from nvshare.kube.plugin import load
from nvshare.kube.plugin.gpumem import LastAllocation
from nvshare.kube.plugin.placement import SPREAD, Load
from nvshare.kube.plugin.podresources import NoPicture
from nvshare.kube.plugin.response import ENVVAR, Extra, Places
from nvshare.kube.plugin.state import Node, Picture

_LOG = logging.getLogger("nvshare")


class PictureSource(Protocol):
    async def picture(self) -> Picture:
        """``NoPicture`` when nobody says who has what."""


@dataclass(frozen=True)
class Terms:
    """How devices are given out."""

    placement: str = SPREAD
    strategy: str = ENVVAR
    places: Places = field(default_factory=Places)
    extra: Extra | None = None


class Desk:
    """One per plugin. Holds no count of devices: pictures come from the kubelet, each time anew."""

    def __init__(self, terms: Terms, kubelet: PictureSource, scheduler: Path) -> None:
        self.terms = terms
        self.node = Node()
        self.last: LastAllocation | None = None
        self.seen: Picture | None = None  # when the kubelet last asked where to place something
        self._waiting: set[str] = set()
        self._changed = asyncio.Event()
        self._kubelet = kubelet
        self._scheduler = scheduler
        self._complained = False

    def set_node(self, node: Node) -> None:
        """From now on the cards are these; who watches is told if that is new."""
        if node != self.node:
            self.node = node
            self._changed.set()
            self._changed = asyncio.Event()

    async def nodes(self) -> AsyncIterator[Node]:
        """The cards as they are, and again whenever they change."""
        while True:
            changed = self._changed
            yield self.node
            await changed.wait()

    async def picture(self) -> Picture:
        """Who has what now; ``NoPicture`` when the kubelet does not say."""
        picture = await self._kubelet.picture()
        self._complained = False
        self._waiting &= picture.names
        return replace(picture, waiting=frozenset(self._waiting))

    async def picture_or_none(self) -> Picture | None:
        """The same where it can be done without."""
        try:
            return await self.picture()
        except NoPicture as error:
            if not self._complained:
                _LOG.warning(
                    "The kubelet does not say who has which devices (%s): placing by what it says is free", error
                )
            self._complained = True
            return None

    async def load(self) -> Mapping[str, Load]:
        return await load.current(self._scheduler)

    def must_wait(self, pod: str) -> None:
        """The pod's containers are not started for now, so that they hold no memory."""
        self._waiting.add(pod)

    def may_start(self, pod: str) -> None:
        self._waiting.discard(pod)
