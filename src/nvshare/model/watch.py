"""What switches cost in a modelled run, from the messages that pass: when turns ended and began, and what was moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nvshare.bench.history import Recorder
from nvshare.bench.outcome import Turns
from nvshare.core import commands, events
from nvshare.gpu.profiles import Profile
from nvshare.model import costs


@dataclass(frozen=True)
class Switch:
    """The card passes to another task. Bytes count from the switch before, because what comes next is fetched while the
    holder computes; the stall is the time in which nobody had the card."""

    gpu: str
    at: float
    stall: float
    drain: float
    out_bytes: int
    in_bytes: int


@dataclass
class _Holding:
    """Who has one card."""

    holders: set[int] = field(default_factory=set)
    latest: int = 0  # who got it last
    vacant_since: float = 0.0
    drain: float = 0.0
    moved: tuple[int, int] = (0, 0)


class SwitchWatch:
    """``moved`` tells the bytes that went out of and into a card so far."""

    def __init__(self, profile: Profile, moved: Callable[[str], tuple[int, int]]) -> None:
        self._profile = profile
        self._moved = moved
        self._cards: dict[str, _Holding] = {}
        self.switches: list[Switch] = []

    def event(self, event: events.Event) -> None:
        if isinstance(event, events.LockReleased) and event.gpu in self._cards:
            self._left(self._cards[event.gpu], event.client, event.now, event.drain)
        elif isinstance(event, events.ClientGone):
            for card in self._cards.values():
                self._left(card, event.client, event.now, 0.0)

    @staticmethod
    def _left(card: _Holding, client: int, now: float, drain: float) -> None:
        if client in card.holders:
            card.holders.remove(client)
            card.vacant_since, card.drain = now, drain

    def command(self, now: float, command: commands.Command) -> None:
        if not isinstance(command, commands.Grant):
            return
        card = self._cards.setdefault(command.gpu, _Holding())
        if command.client != card.latest and command.client not in card.holders and command.quantum is not None:
            moved = self._moved(command.gpu)
            if card.latest:
                stall = 0.0 if card.holders else now - card.vacant_since
                out_bytes, in_bytes = (new - old for new, old in zip(moved, card.moved, strict=True))
                self.switches.append(Switch(command.gpu, now, stall, card.drain, out_bytes, in_bytes))
            card.latest, card.moved = command.client, moved
        card.holders.add(command.client)

    def since(self, begin: float, speed: float) -> Turns:
        """All switches after this moment, together, in seconds of a card so many times as fast as life."""
        late = [switch for switch in self.switches if switch.at >= begin]
        return Turns(
            switches=len(late),
            out_bytes=sum(switch.out_bytes for switch in late),
            in_bytes=sum(switch.in_bytes for switch in late),
            stall_s=speed * sum(switch.stall for switch in late),
            drain_s=speed * sum(switch.drain for switch in late),
            map_s=speed * sum(_mapping(switch, self._profile) for switch in late),
            largest_bytes=max((max(switch.out_bytes, switch.in_bytes) for switch in late), default=0),
        )


def _mapping(switch: Switch, profile: Profile) -> float:
    """What a switch spends on handles beside its copies; both sides work at the same time."""
    arriving, leaving = switch.in_bytes / costs.CHUNK, switch.out_bytes / costs.CHUNK
    return max(arriving * costs.mapping(profile), leaving * costs.unmapping(profile))


class HistoryWatch:
    """Tells a recorder who has which card, and where memory is."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def event(self, event: events.Event) -> None:
        recorder = self._recorder
        if isinstance(event, events.LockReleased):
            recorder.leaves(event.now, event.gpu, f"{event.client:016x}")
        elif isinstance(event, events.ClientGone):
            recorder.gone(event.now, f"{event.client:016x}")
        elif isinstance(event, events.MemoryUpdated):
            recorder.has(event.now, event.gpu, f"{event.client:016x}", event.resident, event.host)

    def command(self, now: float, command: commands.Command) -> None:
        if isinstance(command, commands.Grant):
            self._recorder.holds(now, command.gpu, f"{command.client:016x}")
