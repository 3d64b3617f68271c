"""A modelled client's memory: chunks that come to the card and leave it until the client keeps to its target."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from nvshare.core.settings import SIZE_MAX
from nvshare.model import costs
from nvshare.model.card import Card
from nvshare.model.engine import Engine, Process, Signal


class State(enum.Enum):
    """Where a chunk's bytes are. A clean chunk has a true copy on the host; an unborn one was never on the card."""

    CARD = "card"
    CLEAN = "clean"
    HOST = "host"
    UNBORN = "unborn"


_ON_CARD = (State.CARD, State.CLEAN)


@dataclass(eq=False)
class Chunk:
    size: int
    state: State = State.UNBORN
    registered: bool = False  # its place on the host is pinned
    moving: bool = False


@dataclass
class Moved:
    """What was copied so far."""

    in_bytes: int = 0
    out_bytes: int = 0


class Mover:
    """At most one chunk is on its way in each direction; ``report`` is called after each, and at each new target."""

    def __init__(self, engine: Engine, card: Card, user: int, report: Callable[[], None]) -> None:
        self._engine = engine
        self._card = card
        self._user = user
        self._report = report
        self._chunks: list[Chunk] = []
        self._target = SIZE_MAX  # never told: all that it is granted
        self._running: dict[str, Signal] = {}
        self._moved_one = Signal()
        self.applied = 0
        self.allocated = 0
        self.resident = 0  # with what is on its way in: its place on the card is taken
        self.moved = Moved()

    @property
    def host(self) -> int:
        """Bytes that are on the host and not on the card."""
        return sum(chunk.size for chunk in self._chunks if chunk.state is State.HOST)

    @property
    def complete(self) -> bool:
        """All of it is on the card."""
        return self.resident == self.allocated and not self._running

    def moved_one(self) -> Signal:
        """Fires when a chunk has arrived or left."""
        return self._moved_one

    def allocate(self, size: int) -> Process:
        """New memory: on the card as far as the target allows, the rest when there is room."""
        self.allocated += size
        mapped = 0
        while size > 0:
            chunk = Chunk(min(size, costs.CHUNK))
            self._chunks.append(chunk)
            size -= chunk.size
            if chunk.size <= self._target - self.resident:
                self._map(chunk)
                chunk.state = State.CARD
                mapped += 1
        yield mapped * costs.mapping(self._card.profile)
        self._report()
        self._start()

    def set_target(self, number: int, target: int) -> None:
        self.applied = number
        self._target = target
        self._report()
        self._start()

    def dirty(self) -> None:
        """The program runs: what the host has is no longer true."""
        for chunk in self._chunks:
            if chunk.state is State.CLEAN:
                chunk.state = State.CARD

    def end(self) -> None:
        """The process is gone, whatever was under way."""
        for running in list(self._running.values()):
            self._engine.kill(running)
        self._running.clear()

    def _start(self) -> None:
        for name, next_chunk, move in (("in", self._arriving, self._bring), ("out", self._leaving, self._send)):
            if name not in self._running and next_chunk() is not None:
                self._running[name] = self._engine.start(self._loop(name, next_chunk, move))

    def _loop(self, name: str, next_chunk: Callable[[], Chunk | None], move: Callable[[Chunk], Process]) -> Process:
        while (chunk := next_chunk()) is not None:
            chunk.moving = True
            yield from move(chunk)
            chunk.moving = False
            if next_chunk() is None:
                self._running.pop(name)
                self._tell()
                return
            self._tell()
        self._running.pop(name)
        self._tell()

    def _tell(self) -> None:
        self._report()
        moved_one, self._moved_one = self._moved_one, Signal()
        moved_one.fire()

    def _arriving(self) -> Chunk | None:
        room = self._target - self.resident
        missing = (chunk for chunk in self._chunks if chunk.state not in _ON_CARD and not chunk.moving)
        return next((chunk for chunk in missing if chunk.size <= room), None)

    def _leaving(self) -> Chunk | None:
        """Clean ones first: they cost no copy. Then those that were allocated last."""
        if self.resident <= self._target:
            return None
        there = [chunk for chunk in self._chunks if chunk.state in _ON_CARD and not chunk.moving]
        clean = next((chunk for chunk in there if chunk.state is State.CLEAN), None)
        return clean or (there[-1] if there else None)

    def _map(self, chunk: Chunk) -> None:
        self.resident += chunk.size
        self._card.allocate(self._user, chunk.size)

    def _bring(self, chunk: Chunk) -> Process:
        self._map(chunk)
        yield costs.mapping(self._card.profile)
        if chunk.state is State.HOST:
            self.moved.in_bytes += chunk.size
            yield self._card.fetch(self._user, chunk.size)
            chunk.state = State.CLEAN
        else:
            chunk.state = State.CARD

    def _send(self, chunk: Chunk) -> Process:
        if chunk.state is State.CARD:
            if not chunk.registered:
                yield costs.registration(self._card.profile, chunk.size)
                chunk.registered = True
            self.moved.out_bytes += chunk.size
            yield self._card.write_back(self._user, chunk.size)
        yield costs.unmapping(self._card.profile)
        chunk.state = State.HOST
        self.resident -= chunk.size
        self._card.free(self._user, chunk.size)
