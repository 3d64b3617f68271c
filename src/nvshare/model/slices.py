"""Compute slices as the library keeps to them: shuts its gate, paces what is in flight, measures, tells."""

from __future__ import annotations

from collections.abc import Callable

from nvshare.core import commands, events
from nvshare.core.settings import SliceEnd
from nvshare.model import costs
from nvshare.model.engine import Engine, Process, Signal
from nvshare.model.shell import Shell

ROUNDED_UP = 0.75  # of a submission that may be in flight beyond the budget


class ComputeSlices:
    """One client on one card. ``in_flight`` tells the seconds of submitted work that have not ended."""

    def __init__(self, engine: Engine, shell: Shell, client: int, gpu: str, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._shell = shell
        self._client = client
        self._gpu = gpu
        self._wake = wake  # those who wait at the gate
        self._told = False
        self._budget = 0.0
        self._slice: commands.GiveSlice | None = None
        self._opened_at = 0.0
        self._asked = False
        self._waits = False  # a submitter stands at the shut gate
        self._in_flight = 0.0
        self._oldest_since = 0.0  # when the card began with the oldest piece in flight
        self._pieces = 0
        self._eased = Signal()
        self._used = 0.0
        self._busy_since: float | None = None
        self._at_work = 0.0  # as events show it: from a piece's begin to its end, whoever else is on the card
        self._at_work_since: float | None = None
        self._idle_since = 0.0
        self._closing: tuple[int, SliceEnd] | None = None

    # --- the program's side

    @property
    def open(self) -> bool:
        return not self._told or self._slice is not None

    @property
    def paced(self) -> float | None:
        """Seconds of one piece of work in slices; None: as much as the program likes."""
        return self._budget / 2 if self._told else None

    def knock(self) -> None:
        """There is work, and no slice."""
        self._waits = True
        if not self._asked and self._closing is None:
            self._asked = True
            self._shell.send(lambda now: events.SliceRequested(now, self._client, self._gpu))

    def pace(self, seconds: float) -> Process:
        """Wait until so much more may be in flight; of the oldest piece only a part is left, as the library reckons."""
        while self._told and self._pieces and self._in_flight + seconds * (1 - ROUNDED_UP) > self._budget:
            self._eased = Signal()
            yield self._eased
            yield costs.WAKE

    def submitted(self, seconds: float, done: Signal) -> None:
        now = self._engine.now
        self._waits = False
        if not self._pieces:
            if self._busy_since is None:
                gap = now - self._idle_since
                self._busy_since = now - gap if gap <= costs.SHORT_GAP and self._idle_since > self._opened_at else now
            self._oldest_since = self._at_work_since = now
        self._pieces += 1
        self._in_flight += seconds
        done.then(lambda _: self._finished(seconds))

    def _finished(self, seconds: float) -> None:
        self._pieces -= 1
        self._oldest_since = self._engine.now
        self._in_flight = self._in_flight - seconds if self._pieces else 0.0
        if not self._pieces:
            self._idle_since = self._engine.now
            if self._busy_since is not None:
                self._used += self._engine.now - self._busy_since
                self._busy_since = None
            if self._at_work_since is not None:
                self._at_work += self._engine.now - self._at_work_since
                self._at_work_since = None
            if self._closing is not None:
                self._engine.after(costs.SEE_END, self._say_all_ended)
            else:
                self._watch_idleness()
        self._eased.fire()

    # --- the scheduler's side

    def on_terms(self, command: commands.SetTerms) -> None:
        self._told, self._budget = command.slices, command.in_flight
        if not command.slices:
            self.lost()
            self._wake()

    def on_slice(self, command: commands.GiveSlice) -> None:
        if not self._told:
            return
        renewed = self._slice is not None and self._slice.number == command.number
        if self._slice is None:
            self._opened_at = self._engine.now
            self._idle_since = self._engine.now
            self._used = self._at_work = 0.0
            self._busy_since = self._engine.now if self._waits else None
            self._at_work_since = self._engine.now if self._pieces else None
        self._slice = command
        self._asked = False
        if command.length is not None:
            end = self._opened_at + command.length
            self._engine.at(end, lambda: self._time_over(command))
        self._watch_idleness()
        if not renewed:
            self._engine.after(costs.OPEN_GATE, self._wake)

    def _time_over(self, command: commands.GiveSlice) -> None:
        if self._slice is command:
            self._close(SliceEnd.ENDED)

    def on_end(self, command: commands.EndSlice) -> None:
        if self._slice is not None and self._slice.number == command.number:
            self._close(SliceEnd.TOLD)

    def lost(self) -> None:
        """The grant is gone, or no slice is needed: whatever there was of a slice is void."""
        self._slice, self._asked, self._closing = None, False, None

    def _close(self, reason: SliceEnd) -> None:
        assert self._slice is not None
        number, self._slice = self._slice.number, None
        self._closing = (number, reason)
        if self._pieces:
            run = self._engine.now - self._oldest_since
            self._say(number, reason, pending=max(1e-6, self._in_flight - run))
        else:
            self._say_all_ended()

    def _say_all_ended(self) -> None:
        if self._closing is None:
            return
        number, reason = self._closing
        self._closing = None
        self._asked = self._waits
        self._say(number, reason, pending=0.0)

    def _say(self, number: int, reason: SliceEnd, pending: float) -> None:
        used = self._used + self._since(self._busy_since)
        busy, wants = min(self._at_work + self._since(self._at_work_since), used), self._waits
        self._shell.send(
            lambda now: events.SliceOver(now, self._client, self._gpu, number, used, busy, pending, reason, wants)
        )

    def _since(self, begin: float | None) -> float:
        return 0.0 if begin is None else self._engine.now - begin

    def _watch_idleness(self) -> None:
        if self._slice is None or self._slice.length is None or self._pieces:
            return
        turn, since = self._slice, self._idle_since

        def look() -> None:
            same = self._slice is not None and self._slice.number == turn.number and self._slice.length is not None
            if same and not self._pieces and self._idle_since == since:
                self._close(SliceEnd.IDLE)

        self._engine.at(max(self._engine.now, since + turn.patience + costs.SEE_END), look)
