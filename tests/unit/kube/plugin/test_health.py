"""What becomes of cards that answer and of cards that do not."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from nvshare.config import PluginConfig
from nvshare.gpu.cards import Card
from nvshare.kube.plugin import health
from nvshare.kube.plugin.health import Health
from nvshare.kube.plugin.state import Node

A, B = Card("GPU-a", "T4", 100 << 20), Card("GPU-b", "T4", 100 << 20)


class Cards:
    """A watch that answers as told."""

    def __init__(self) -> None:
        self.problem: str | None = "no driver"
        self.now: list[tuple[Card, bool]] = []
        self.answering = threading.Event()
        self.answering.set()

    def look(self) -> list[tuple[Card, bool]]:
        self.answering.wait(20)
        return self.now


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("nvshare"), "propagate", True)
    caplog.set_level(logging.INFO, "nvshare")
    return caplog


def test_every_change_is_told_and_said_once(said: pytest.LogCaptureFixture) -> None:
    cards, told = Cards(), list[Node]()
    watcher = Health(cards, PluginConfig(), told.append)

    async def play() -> None:
        for now in ([], [], [(A, True), (B, True)], [(A, False), (B, True)], [(A, False), (B, True)], [(A, True)]):
            cards.now = now
            await watcher.look()

    asyncio.run(play())
    assert [[gpu.healthy for gpu in node.gpus] for node in told] == [
        [], [], [True, True], [False, True], [False, True], [True],
    ]  # fmt: skip
    assert [record.getMessage() for record in said.records] == [
        "No GPU on this node (no driver): none is offered until one is found",
        "GPU GPU-a (T4): 10 devices",
        "GPU GPU-b (T4): 10 devices",
        "GPU GPU-a (T4) does not answer: its devices are unhealthy",
        "GPU GPU-a (T4) answers again: its devices are healthy",
    ]


def test_a_driver_that_hangs_makes_cards_unhealthy_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_PATIENCE", 0.01)
    cards, told = Cards(), list[bool]()

    def tell(node: Node) -> None:
        told.append(node.gpus[0].healthy)
        if told == [True, False]:
            cards.answering.set()

    watcher = Health(cards, PluginConfig(), tell)
    cards.now = [(A, True)]

    async def play() -> None:
        monkeypatch.setattr(health, "_PATIENCE", 20.0)
        await watcher.look()
        monkeypatch.setattr(health, "_PATIENCE", 0.01)
        cards.answering.clear()
        await watcher.look()

    asyncio.run(play())
    assert told == [True, False, True]
