"""The random world with compute slices: clients that take them, lie about them, do not answer, and die in them.

Like ``core_world`` it keeps books of its own from what was said, and checks every answer against them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.settings import Cores, Priority, SliceEnd
from tests.unit.core.core_world import World

PAUSES = (0.0, 0.0, 0.0003, 0.002, 0.01, 0.03, 0.06, 0.3, 2.1)
QUOTAS = (100, 1, 10, 30, 50, 80, 99)
FLOORS = (0, 0, 30, 100)  # percent of the cap
BURSTS = (0.0, 0.0002, 0.002, 0.005, 0.02)
GAPS = (0.0003, 0.0009, 0.0011, 0.003, 0.01, 0.03)


@dataclass
class Seat:
    """What a client was last told about compute slices on one card."""

    slices: bool = False
    in_flight: float = 0.0
    number: int = 0  # of its slice, 0 for none
    exclusive: bool = False
    given_at: float = 0.0
    length: float | None = None
    pending_until: float | None = None  # it said that its gate is shut
    asked: bool = False
    overrun: int = 0  # the number of an earlier slice whose work runs on


class ComputeWorld(World):
    def __init__(self) -> None:
        self.seats: dict[tuple[int, str], Seat] = {}
        self.slice_numbers: set[int] = set()
        super().__init__()

    def step(self, action: int, a: int, b: int, d: int) -> None:
        """Two of three steps are about compute slices."""
        if action % 3:
            self.advance(PAUSES[d % len(PAUSES)])
            COMPUTE_ACTIONS[action // 3 % len(COMPUTE_ACTIONS)](self, a, b, d)
        else:
            super().step(action // 3, a, b, d)

    def _boot(self) -> None:
        self.seats, self.slice_numbers = {}, set()
        super()._boot()

    def _forget(self, client: int) -> None:
        super()._forget(client)
        self.seats = {key: seat for key, seat in self.seats.items() if key[0] != client}

    def _seat(self, client: int, gpu: str) -> Seat:
        return self.seats.setdefault((client, gpu), Seat())

    # --- what clients see

    def _obey(self, command: c.Command) -> None:
        super()._obey(command)
        if isinstance(command, c.SetTerms):
            assert command.client in self.programs, "spoke to a client that is gone"
            seat = self._seat(command.client, command.gpu)
            terms = command.slices, command.in_flight
            assert (seat.slices, seat.in_flight) != terms, "told what it knew"
            seat.in_flight = command.in_flight
            if seat.slices is not command.slices:
                self.seats[command.client, command.gpu] = Seat(*terms)
        elif isinstance(command, c.GiveSlice):
            self._obey_slice(command)
        elif isinstance(command, c.EndSlice):
            seat = self._seat(command.client, command.gpu)
            assert seat.number == command.number, "ended a slice that it does not have"
        elif isinstance(command, c.Drop) or (isinstance(command, c.Grant) and not self._holds(command)):
            self.seats[command.client, command.gpu] = Seat(*self._terms(command))

    def _terms(self, command: c.Drop | c.Grant) -> tuple[bool, float]:
        seat = self._seat(command.client, command.gpu)
        return seat.slices, seat.in_flight

    def _holds(self, command: c.Grant) -> bool:
        return bool(self.programs[command.client].gpus[command.gpu].grant)

    def _obey_slice(self, command: c.GiveSlice) -> None:
        seat = self._seat(command.client, command.gpu)
        held = self.programs[command.client].gpus[command.gpu]
        assert seat.slices, "a slice for one who needs none"
        assert held.grant, "a slice without a grant"
        assert not held.dropped, "a slice for one who was told to leave"
        assert command.length is None or command.length > 0.0, "a slice of no length"
        if command.number != seat.number:
            assert command.number not in self.slice_numbers, "a slice's number was given twice"
            assert seat.asked, "a slice for one who did not ask"
            self.slice_numbers.add(command.number)
            seat.number, seat.given_at, seat.pending_until, seat.asked = command.number, self.now, None, False
        seat.length = command.length

    def _seats_with(self, wanted: Callable[[Seat], bool]) -> list[tuple[int, str, Seat]]:
        found = []
        for (client, gpu), seat in self.seats.items():
            program = self.programs.get(client)
            held = program.gpus.get(gpu) if program is not None else None
            if held is not None and held.grant and not held.dropped and wanted(seat):
                found.append((client, gpu, seat))
        return found

    def _choose(self, a: int, wanted: Callable[[Seat], bool]) -> tuple[int, str, Seat] | None:
        found = self._seats_with(wanted)
        return found[a % len(found)] if found else None

    # --- what clients do

    def ask_slice(self, a: int, b: int, d: int) -> None:
        chosen = self._choose(a, lambda seat: seat.slices and not seat.number)
        if chosen is not None:
            client, gpu, seat = chosen
            seat.asked = True
            self.send(e.SliceRequested(self.now, client, gpu))

    def ask_all(self, a: int, b: int, d: int) -> None:
        for client, gpu, seat in self._seats_with(lambda seat: seat.slices and not seat.number):
            if (client, gpu) in self.seats and self.seats[client, gpu] is seat:
                seat.asked = True
                self.send(e.SliceRequested(self.now, client, gpu))

    def end_slice(self, a: int, b: int, d: int) -> None:
        """As the library does: first with what is in flight, then with the final figures."""
        chosen = self._choose(a, lambda seat: bool(seat.number))
        if chosen is None:
            return
        client, gpu, seat = chosen
        number, elapsed = seat.number, self.now - seat.given_at
        reason = SliceEnd(b % 3)
        if d % 2:
            pending = (0.0002, 0.003, 0.5)[b % 3]
            seat.pending_until = self.now + pending
            self.send(e.SliceOver(self.now, client, gpu, number, elapsed, elapsed / 2, pending, reason, wants=False))
            self.advance(pending)
            if self.seats.get((client, gpu)) is not seat or seat.number != number:
                return
        wants = bool(a % 2)
        seat.number, seat.asked = 0, seat.asked or wants
        self.send(e.SliceOver(self.now, client, gpu, number, elapsed, elapsed * (a % 3) / 2, 0.0, reason, wants))
        self._assert_heard(client, gpu, seat, wants)

    def think(self, a: int, b: int, d: int) -> None:
        """A client has bursts with gaps between them: it ends its slices early and comes back."""
        for _ in range(1 + d % 4):
            chosen = self._choose(a, lambda seat: bool(seat.number))
            if chosen is None:
                return
            client, gpu, seat = chosen
            number = seat.number
            self.advance(BURSTS[b % len(BURSTS)])
            if self.seats.get((client, gpu)) is not seat or seat.number != number:
                return
            used, seat.number = self.now - seat.given_at, 0
            self.send(e.SliceOver(self.now, client, gpu, number, used, used, 0.0, SliceEnd.IDLE, wants=False))
            self.advance(GAPS[d % len(GAPS)])
            if self.seats.get((client, gpu)) is not seat or not seat.slices or seat.number:
                return
            held = self.programs[client].gpus[gpu]
            if held.grant and not held.dropped:
                seat.asked = True
                self.send(e.SliceRequested(self.now, client, gpu))

    def change_quota_in_slice(self, a: int, b: int, d: int) -> None:
        """The quota of a client changes while it has a slice, and that goes on for a while."""
        chosen = self._choose(a, lambda seat: bool(seat.number))
        if chosen is not None:
            self.change_quota(list(self.programs).index(chosen[0]), b, d)
            self.advance(BURSTS[d % len(BURSTS)])

    def run_on(self, a: int, b: int, d: int) -> None:
        """A kernel does not end with its slice: told again and again, until it has."""
        chosen = self._choose(a, lambda seat: bool(seat.number or seat.overrun))
        if chosen is None:
            return
        client, gpu, seat = chosen
        if seat.number and not (seat.overrun and b % 2):
            seat.overrun, seat.number = seat.number, 0
        number, pending = seat.overrun, 0.0 if d % 3 == 0 else 0.001
        wants = bool(a % 2) and not seat.number
        seat.overrun, seat.asked = number if pending else 0, seat.asked or wants
        used = self.now - seat.given_at
        self.send(e.SliceOver(self.now, client, gpu, number, used, used, pending, SliceEnd.OVERRUN, wants))
        self._assert_heard(client, gpu, seat, wants)

    def _assert_heard(self, client: int, gpu: str, seat: Seat, wants: bool) -> None:
        """Who wants a slice, as it said with the end of one, is not forgotten: it does not say so again."""
        if wants and self.seats.get((client, gpu)) is seat:
            state = self.scheduler._node.clients[client].gpus[gpu].compute
            assert state.asks or state.slice is not None, "one who wants a slice was not heard"

    def lie(self, a: int, b: int, d: int) -> None:
        """Figures that cannot be, numbers of slices long gone, requests for what it has."""
        chosen = self._choose(a, lambda seat: seat.slices)
        if chosen is None:
            return
        client, gpu, seat = chosen
        if b % 3 == 0:
            seat.asked = True
            self.send(e.SliceRequested(self.now, client, gpu))
        elif b % 3 == 1:
            answer = self.send(e.SliceOver(self.now, client, gpu, seat.number + 1 + d, 1e9, 1e9, 1e6))
            assert not [one for one in answer if isinstance(one, (c.Expel, c.Drop))], "a wrong number had effects"
        elif seat.number:
            number, seat.number, seat.asked = seat.number, 0, True
            said = (-1.0, 0.0, 1e9)[d % 3]
            self.send(e.SliceOver(self.now, client, gpu, number, said, said, 0.0, SliceEnd(a % 4), wants=True))

    def stay_silent(self, a: int, b: int, d: int) -> None:
        """Nobody speaks for a while: deadlines pass, and who asks is served all the same. Who was given up on does not
        know, and ends its slice when it wakes up."""
        self.advance((1.0, 3.0, 13.0)[d % 3])

    def change_quota(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is not None:
            rank = Priority(d % 2) if b % 5 == 0 else None
            cap = QUOTAS[b % len(QUOTAS)]
            quota = Cores(cap * FLOORS[d % len(FLOORS)] // 100, cap)
            self.send(e.LimitsChanged(self.now, program.group, core_limit=quota, priority=rank))

    def work(self, a: int, b: int, d: int) -> None:
        """Those who hold a grant use the card, and say so."""
        for program in list(self.programs.values()):
            for uuid, held in list(program.gpus.items()):
                if held.grant and program.id in self.programs:
                    self.send(e.UsageReported(self.now, program.id, uuid, self.now, d, 1024))


COMPUTE_ACTIONS: tuple[Callable[[ComputeWorld, int, int, int], None], ...] = (
    ComputeWorld.ask_slice,
    ComputeWorld.ask_slice,
    ComputeWorld.ask_slice,
    ComputeWorld.ask_all,
    ComputeWorld.ask_all,
    ComputeWorld.end_slice,
    ComputeWorld.end_slice,
    ComputeWorld.end_slice,
    ComputeWorld.end_slice,
    ComputeWorld.think,
    ComputeWorld.think,
    ComputeWorld.think,
    ComputeWorld.change_quota_in_slice,
    ComputeWorld.run_on,
    ComputeWorld.run_on,
    ComputeWorld.lie,
    ComputeWorld.stay_silent,
    ComputeWorld.change_quota,
    ComputeWorld.work,
    ComputeWorld.work,
    ComputeWorld.register,
    ComputeWorld.request,
    ComputeWorld.request,
)
