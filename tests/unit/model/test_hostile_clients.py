"""Clients that lie, beside honest ones: they take no more than one slice beyond their share, whatever they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvshare.bench.fairness.tasks import parse_set
from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.compute.policy.constants import LONGEST
from nvshare.core.compute.slices import SPEAK_BY
from nvshare.core.policy.membership import Process
from nvshare.core.settings import Settings, SliceEnd
from nvshare.gpu.profiles import load
from nvshare.model.card import Card
from nvshare.model.engine import Engine
from nvshare.model.fairness import _Program, _shared_path
from nvshare.model.shell import Shell

BEGIN, END = 2.0, 10.0  # seconds
GIVEN_UP = 100 * (LONGEST + SPEAK_BY) / (END - BEGIN)  # percent: one slice whose client does not answer
LIAR = 0xBAD
EVERY = 0.003  # seconds between two requests
Answer = dict[str, object]
# What it says of a slice, and so many seconds after it was given; None: nothing.
ANSWERS: dict[str, tuple[float, Answer] | None] = {
    "mute": None,
    "sleeps to the end": (0.04, {"used": 0.0, "reason": SliceEnd.ENDED, "wants": True}),
    "seems to think": (0.0001, {"used": 0.0, "reason": SliceEnd.IDLE}),
    "used less than nothing": (0.02, {"used": -1e9, "busy": -1e9}),
    "work without end": (0.02, {"used": 0.0, "pending": 1e6, "wants": True}),
    "runs on": (0.02, {"used": 0.0, "pending": 0.001, "reason": SliceEnd.OVERRUN, "wants": True}),
}


class Liar:
    """Asks all the time, and answers each slice in the same way."""

    def __init__(self, engine: Engine, shell: Shell, gpu: str, answer: str) -> None:
        self._engine, self._shell, self._gpu = engine, shell, gpu
        self._answer, self._last = ANSWERS[answer], 0
        held = (e.HeldGpu(gpu),)
        self._say(lambda now: e.ClientRegistered(now, LIAR, Process(LIAR, (LIAR,)), gpus=held, can_swap=True))
        self._say(lambda now: e.LockRequested(now, LIAR, gpu))
        shell.connect(LIAR, self)
        self._ask()

    def _say(self, make: Callable[[float], e.Event]) -> None:
        self._shell.send(make)

    def _ask(self) -> None:
        if self._engine.now < END:
            self._say(lambda now: e.SliceRequested(now, LIAR, self._gpu))
            self._engine.after(EVERY, self._ask)

    def receive(self, command: c.Command) -> None:
        if not isinstance(command, c.GiveSlice) or command.number == self._last:
            return
        self._last = number = command.number
        if self._answer is not None:
            later, said = self._answer
            self._engine.after(
                later,
                lambda: self._say(lambda now: e.SliceOver(now, LIAR, self._gpu, number, **said)),  # type: ignore[arg-type]
            )


def beside(written: str, answer: str) -> list[float]:
    """Percent of the card's time that honest tasks get."""
    engine, profile = Engine(), load("H200")
    card = Card(engine, "GPU-a", profile)
    shell = Shell(engine, Settings(), validates=False)
    shell.add_card(card.uuid, profile.memory_bytes, profile.name, None)
    programs = []
    for place, task in enumerate(parse_set(written)):
        path = _shared_path(engine, shell, card, client := 0xA0 + place, task)
        programs.append(_Program(engine, card, path, client, task, BEGIN, END))
        engine.start(programs[-1].run(0.0))
    Liar(engine, shell, card.uuid, answer)
    engine.run()
    return [100 * program.used / (END - BEGIN) for program in programs]


@pytest.mark.parametrize("answer", ANSWERS)
def test_honest_tasks_keep_their_shares_beside_a_liar(answer: str) -> None:
    assert min(beside("20+0 20+0", answer)) >= 0.95 * 100 / 3 - GIVEN_UP / 2
