"""Which cards answer NVML, both ways: a lost one is offered no more, a recovered one is offered again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from nvshare.config import PluginConfig
from nvshare.gpu.cards import Card
from nvshare.kube.plugin.state import Node, node_of

_LOG = logging.getLogger("nvshare")
_PATIENCE = 30.0  # seconds: a driver that takes longer for an answer is not one to send pods to


class Watch(Protocol):
    """See ``gpu.cards.CardWatch``."""

    problem: str | None

    def look(self) -> list[tuple[Card, bool]]: ...


class Health:
    """Looks at the cards from a thread and tells what became of them."""

    def __init__(self, watch: Watch, config: PluginConfig, tell: Callable[[Node], None]) -> None:
        self._watch = watch
        self._config = config
        self._tell = tell
        self._known: dict[str, bool] = {}
        self._cards: list[Card] = []
        self._said_none = False

    async def keep(self, interval: float) -> None:
        """Look every so many seconds, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(interval)

    async def look(self) -> None:
        task = asyncio.create_task(asyncio.to_thread(self._watch.look))
        done, _ = await asyncio.wait({task}, timeout=_PATIENCE)
        if not done:
            _LOG.warning("The NVIDIA driver does not answer for %g s: all cards count as lost", _PATIENCE)
            self._publish([(card, False) for card in self._cards])
        self._publish(await task)

    def _publish(self, cards: list[tuple[Card, bool]]) -> None:
        self._cards = [card for card, _ in cards]
        for card, answers in cards:
            if self._known.get(card.uuid, not answers) != answers:
                self._say(card, answers)
            self._known[card.uuid] = answers
        if not cards and not self._said_none:
            _LOG.warning("No GPU on this node (%s): none is offered until one is found", self._watch.problem)
        self._said_none = not cards
        config = self._config
        self._tell(
            node_of(
                ((card.uuid, card.total, answers) for card, answers in cards),
                config.devices_per_gpu,
                config.ratio,
                config.card_memory,
            )
        )

    def _say(self, card: Card, answers: bool) -> None:
        if not answers:
            _LOG.warning("GPU %s (%s) does not answer: its devices are unhealthy", card.uuid, card.name)
        elif card.uuid in self._known:
            _LOG.info("GPU %s (%s) answers again: its devices are healthy", card.uuid, card.name)
        else:
            _LOG.info("GPU %s (%s): %d devices", card.uuid, card.name, self._config.devices_per_gpu)
