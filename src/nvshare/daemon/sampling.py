"""Samples of the cards: what NVML says that processes take there, for the core to plan around.

Samples are taken every second, more rarely while there is no client, and whenever the core orders one. There is one at
a time, in a thread of its own: NVML may take its time, or never answer.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nvshare.core import commands, events
from nvshare.daemon.contexts import ContextMeter, Recorded
from nvshare.daemon.outsiders import Look, Outsiders
from nvshare.gpu.cards import CardSource, ProcessMemory

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection
    from nvshare.daemon.server import Daemon

SAMPLE_PERIOD = 1.0  # seconds
IDLE_SAMPLES = 5  # periods between two samples while there is no client


class Sampler:
    def __init__(self, daemon: Daemon, source: CardSource, clients: Mapping[int, ClientConnection]) -> None:
        self.meter = ContextMeter()
        self._daemon = daemon
        self._source = source
        self._clients = clients
        self._outsiders = Outsiders()
        self._ordered = 0  # the latest sample that the core ordered
        self._sampling = False
        self._periods = -1  # without a client; the first period begins with a sample

    def order(self, command: commands.SampleCards) -> None:
        self._ordered = command.sample
        self._start()

    def each_period(self) -> None:
        self._periods = 0 if self._clients else self._periods + 1
        if self._periods % IDLE_SAMPLES == 0:
            self._start()

    def _start(self) -> None:
        if not self._sampling:
            self._sampling = True
            before = (self._ordered, self.meter.recorded(), self._client_pids())
            threading.Thread(target=self._sample, args=before, daemon=True).start()

    def _client_pids(self) -> set[int]:
        return {connection.peer.pid for connection in self._clients.values()}

    def _sample(self, ordered: int, recorded: Recorded, clients: set[int]) -> None:
        taken = self._source.process_memory()
        looks = self._outsiders.looks(taken, clients)
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self._daemon.loop.call_soon_threadsafe(self._sampled, ordered, recorded, taken, looks)

    def _sampled(self, ordered: int, recorded: Recorded, taken: ProcessMemory, looks: dict[int, Look]) -> None:
        self._sampling = False
        now = self._daemon.now()

        def pid_of(client: int) -> int:
            connection = self._clients.get(client)
            return connection.peer.pid if connection is not None else 0

        for measured in list(self.meter.measured(now, recorded, taken, pid_of)):
            self._daemon.dispatch(measured)
        for seen in list(self._outsiders.seen(now, taken, looks, self._client_pids())):
            self._daemon.dispatch(seen)
        self._daemon.dispatch(events.CardsSampled(now, ordered))
