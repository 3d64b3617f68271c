"""The client's state machine through its C interface: names, layout, and what it decides."""

from __future__ import annotations

import enum
import random
import re
from pathlib import Path

import pytest

from nvshare.core.settings import SliceEnd
from nvshare.model import machine
from nvshare.model.machine import Action, Do, Entry, EventType, Gate, Machine
from nvshare.wire import messages as wire

HEADER = (Path(__file__).resolve().parents[3] / "native" / "client" / "client.h").read_text()
MS = 10**6
US = 1000
S = 10**9


def enumerators(prefix: str, skip: str = "") -> list[str]:
    """The names of an enumeration in the header, in order; their values count from 0."""
    found = re.findall(rf"\b{prefix}(\w+)\s*[,}}]", HEADER.split("/* ---- what it knows")[0])
    return [name for name in dict.fromkeys(found) if name != skip]


@pytest.mark.parametrize(
    ("prefix", "names"),
    [("NVS_EVENT_", EventType), ("NVS_DO_", Do), ("NVS_CLIENT_(?!ENTRY)", Gate), ("NVS_CLIENT_ENTRY_", Entry)],
    ids=str,
)
def test_names_and_values_are_those_of_the_header(prefix: str, names: type[enum.IntEnum]) -> None:
    assert enumerators(prefix, skip="TYPES") == [one.name for one in names]
    assert [one.value for one in names] == list(range(len(names)))


@pytest.mark.parametrize(("struct", "mirror"), [("event", machine._Event), ("action", machine._Action)])
def test_fields_are_those_of_the_header(struct: str, mirror: type) -> None:
    body = re.search(rf"struct nvs_{struct} {{(.*?)}};", HEADER, re.DOTALL)
    assert body is not None
    plain = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    fields = [(name, int(bits)) for bits, name in re.findall(r"uint(\d+)_t (\w+);", plain)]
    assert fields == [(name, getattr(mirror, name).size * 8) for name, _ in mirror._fields_]  # type: ignore[attr-defined]
    assert f"#define NVS_ACTIONS {machine.MAX_ACTIONS}u" in HEADER


class Client:
    """A machine with one card, and a clock that a test sets."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.now = S
        self.gate = Gate.OPEN
        self.entry = Entry.OPEN
        self.driver: EventType | None = None  # what it is at, as the event that ends it
        self.said: list[Action] = []

    def feed(self, kind: EventType, **fields: int) -> list[Action]:
        if kind is self.driver:
            self.driver = None
        actions = self.machine.feed(kind, self.now, **fields)
        for action in actions:
            assert action.type is not Do.REPORT, self.machine.story
            if action.type is Do.SET_GATE:
                self.gate = Gate(action.gate)
            elif action.type is Do.SET_ENTRY:
                self.entry = Entry(action.gate)
            elif action.type in (Do.LEAVE_CARDS, Do.RETURN_TO_CARDS):
                self.entry = Entry.SHUT
                self.driver = EventType.LEFT if action.type is Do.LEAVE_CARDS else EventType.RETURNED
            elif action.type is Do.OPEN_MEMORY:
                actions = actions + self.feed(EventType.PLACE, flags=1)
            elif action.type is Do.DRAIN_TURN:
                self.gate = Gate.SHUT
                actions = actions + self.feed(EventType.DRAINED, flags=1)
        return actions

    def later(self, ns: int) -> list[Action]:
        self.now += ns
        return self.feed(EventType.TIME)

    def taking_slices(self) -> Client:
        self.feed(EventType.CARD)
        self.feed(EventType.CONTROL, flags=1)
        self.feed(EventType.WANT)
        self.feed(EventType.GRANT, number=7)
        self.feed(EventType.TERMS, flags=wire.FLAG_TURNS, length=MS)
        assert self.gate is Gate.REST
        return self

    def in_slice(self, length: int, patience: int = 0) -> Client:
        self.taking_slices()
        self.feed(EventType.WANT)
        self.feed(EventType.GIVE, number=1, length=length, patience=patience)
        assert self.gate is Gate.PACED
        self.feed(EventType.WORK, at=self.now)
        return self


def kinds(actions: list[Action]) -> list[Do]:
    return [action.type for action in actions if action.type is not Do.COUNT_USED]


def over(actions: list[Action]) -> Action:
    (found,) = [action for action in actions if action.type is Do.SEND_TURN_OVER]
    return found


def test_a_grant_is_asked_for_once_and_opens_the_gate() -> None:
    client = Client()
    client.feed(EventType.CARD)
    assert Do.DRAIN_TURN in kinds(client.feed(EventType.CONTROL, flags=1))
    assert kinds(client.feed(EventType.WANT)) == [Do.SEND_REQ_LOCK]
    assert kinds(client.feed(EventType.WANT)) == []
    client.feed(EventType.GRANT, number=7)
    assert client.gate is Gate.OPEN


@pytest.mark.parametrize("patience", [200 * US, 500 * US, 3 * MS])
def test_a_slice_with_a_length_ends_after_its_patience_and_not_before(patience: int) -> None:
    client = Client().in_slice(50 * MS, patience)
    idle = client.now = client.now + 5 * MS
    client.feed(EventType.IDLE, at=idle)
    assert client.machine.wake_at == idle + patience
    assert kinds(client.later(patience - 1)) == []
    assert kinds(client.later(1)) == [Do.SET_GATE, Do.CLOSE_SLICE]
    assert client.gate is Gate.REST
    ended = over(client.feed(EventType.ENDED, at=idle))
    assert (ended.reason, ended.used, ended.length) == (SliceEnd.IDLE, 5 * MS, 0)


def test_who_waits_for_the_gpu_has_a_millisecond_to_wake_whatever_the_patience() -> None:
    client = Client().in_slice(50 * MS, 200 * US)
    client.feed(EventType.IDLE, at=client.now, waits=1)
    assert client.machine.wake_at == client.now + MS


def test_a_slice_in_which_nothing_was_submitted_yet_ends_after_a_millisecond() -> None:
    client = Client().taking_slices()
    client.feed(EventType.GIVE, number=1, length=50 * MS, patience=200 * US)
    client.feed(EventType.IDLE, at=client.now)
    assert client.machine.wake_at == client.now + MS


def test_a_slice_in_which_nothing_was_submitted_costs_nothing() -> None:
    client = Client().in_slice(20 * MS)  # in which work from before could have run on
    client.later(20 * MS)
    client.feed(EventType.ENDED, at=client.now)
    client.feed(EventType.WANT)
    client.feed(EventType.GIVE, number=2, length=20 * MS)
    client.now += 5 * MS
    client.feed(EventType.END, number=2)
    assert over(client.feed(EventType.ENDED, at=client.now)).used == 0


def test_a_short_gap_counts_as_used_and_a_long_one_does_not() -> None:
    client = Client().in_slice(0)
    begun = client.now
    for gap in (MS // 2, 10 * MS):
        idle = client.now = client.now + 4 * MS
        client.feed(EventType.IDLE, at=idle)
        told = client.later(gap)
        assert (Do.WATCH_IDLE in kinds(told)) is (gap > MS)
        client.feed(EventType.WORK, at=client.now)
    client.now += 3 * MS
    client.feed(EventType.END, number=1)
    assert over(client.feed(EventType.PENDING, length=MS)).used == client.now - begun - 10 * MS


def test_what_is_in_flight_is_told_once_and_the_gpus_clock_corrects_the_end() -> None:
    client = Client().in_slice(20 * MS)  # in which work from before could have run on
    client.later(20 * MS)
    client.feed(EventType.ENDED, at=client.now)
    client.feed(EventType.WANT)
    client.feed(EventType.GIVE, number=2, length=20 * MS)
    client.feed(EventType.WORK, at=client.now)
    assert kinds(client.later(20 * MS)) == [Do.SET_GATE, Do.CLOSE_SLICE]
    first = over(client.feed(EventType.PENDING, length=3 * MS))
    assert (first.reason, first.length, first.used) == (SliceEnd.ENDED, 3 * MS, 20 * MS)
    assert client.feed(EventType.PENDING, length=2 * MS) == []
    client.now += 3 * MS
    last = over(client.feed(EventType.ENDED, at=client.now, length=22 * MS + 500 * US))
    assert (last.length, last.used) == (0, 22 * MS + 500 * US)


def test_work_that_does_not_end_runs_on_and_is_told_every_second() -> None:
    client = Client().in_slice(20 * MS)
    client.later(20 * MS)
    client.feed(EventType.PENDING, length=3 * MS)
    stuck = over(client.later(S))
    assert stuck.reason == SliceEnd.OVERRUN
    assert stuck.length > 0
    again = over(client.later(S))
    assert again.used == stuck.used + S
    last = over(client.feed(EventType.ENDED, at=client.now))
    assert (last.reason, last.length) == (SliceEnd.OVERRUN, 0)
    # WHEN there is work again, THEN a slice is asked for and opens the gate
    assert kinds(client.feed(EventType.WANT)) == [Do.SEND_REQ_TURN]
    client.feed(EventType.GIVE, number=2, length=20 * MS)
    assert client.gate is Gate.PACED


def test_a_gang_begins_when_all_its_cards_are_given_and_ends_on_all() -> None:
    client = Client()
    for card in (0, 1):
        client.feed(EventType.CARD, card=card)
    client.feed(EventType.CONTROL, flags=1)
    for card in (0, 1):
        client.feed(EventType.GRANT, card=card, number=7 + card)
    for card in (0, 1):
        client.feed(EventType.TERMS, card=card, flags=wire.FLAG_TURNS, length=MS)
    assert kinds(client.feed(EventType.WANT)) == [Do.SEND_REQ_TURN] * 2
    assert kinds(client.feed(EventType.GIVE, card=0, number=1)) == []
    client.feed(EventType.GIVE, card=1, number=2, length=20 * MS)
    assert client.gate is Gate.PACED
    client.later(20 * MS)
    ends = [one for one in client.feed(EventType.ENDED, at=client.now) if one.type is Do.SEND_TURN_OVER]
    assert [(one.card, one.number) for one in ends] == [(0, 1), (1, 2)]


def test_a_dropped_grant_ends_the_slice_before_it_is_given_back() -> None:
    client = Client().in_slice(0)
    client.now += 5 * MS
    told = client.feed(EventType.DROP, number=7)
    assert [one.type for one in told if one.type in (Do.SEND_TURN_OVER, Do.SEND_RELEASED)] == [
        Do.SEND_TURN_OVER,
        Do.SEND_RELEASED,
    ]
    assert client.gate is Gate.SHUT


def test_an_idle_turn_is_given_up_only_while_others_wait() -> None:
    client = Client()
    client.feed(EventType.CARD)
    client.feed(EventType.CONTROL, flags=1)
    client.feed(EventType.GRANT, number=7)
    client.feed(EventType.IDLE, at=client.now)
    assert client.machine.wake_at == 0
    client.feed(EventType.GRANT, number=7, flags=wire.FLAG_CONTENDED)
    assert client.machine.wake_at == client.now + 20 * MS
    assert Do.SEND_RELEASED in kinds(client.later(20 * MS))


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_no_change_is_illegal_and_time_always_goes_on(seed: int) -> None:
    """Random events, sensible or not, of a scheduler and of cards: nothing is reported, and what is due is done by
    TIME, so that a shell that waits for it never turns in circles."""
    rng = random.Random(seed)
    client = Client()
    client.feed(EventType.CARD)
    for _ in range(300):
        client.now += rng.choice((0, 50 * US, MS, 20 * MS, 2 * S))
        kind = rng.choice([*EventType, EventType.GIVE, EventType.WANT, EventType.CONTROL])
        flags = rng.choice((0, 1, 2, 3))
        if kind is EventType.CONTROL:
            flags = int(rng.random() < 0.9)
        if kind in (EventType.LEFT, EventType.RETURNED) and kind is not client.driver:
            continue  # nobody waits for the driver
        if kind is EventType.LOST and rng.random() < 0.9:
            continue
        client.feed(
            kind,
            card=rng.choice((0, 0, 1)),
            number=rng.choice((0, 1, 2, 3, rng.randrange(1, 100))),
            at=max(0, client.now - rng.choice((0, MS))),
            length=rng.choice((0, 300 * US, 5 * MS, 50 * MS)),
            patience=rng.choice((0, 200 * US)),
            flags=flags,
            waits=rng.randrange(2),
        )
        for _ in range(8):
            if not 0 < client.machine.wake_at <= client.now:
                break
            client.feed(EventType.TIME)
        else:
            pytest.fail(f"TIME is due again and again: {client.machine.story}")
