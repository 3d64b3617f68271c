"""The random world with clients that sleep: they are told late, decline, fail, never answer, and die meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.settings import DenyReason
from nvshare.core.sleep.state import Bar, Outcome
from tests.unit.core.core_programs import Program
from tests.unit.core.core_world import CARDS, MIB, UUIDS, World

ANSWERS = 20  # that may follow from one another at the end
OUTCOMES = (Outcome.ASLEEP,) * 6 + (Outcome.DECLINED, Outcome.FAILED, Outcome.WOKE)


@dataclass
class Rest:
    """A client's sleep as it sees it itself."""

    able: bool = False  # as it said
    asleep: bool = False
    order: int = 0
    told: c.GoToSleep | c.WakeUp | None = None  # and not answered yet


class SleepWorld(World):
    """``GPU-a`` has a declared size that holds the contexts too."""

    def __init__(self) -> None:
        self.rest: dict[int, Rest] = {}
        super().__init__()

    def step(self, action: int, a: int, b: int, d: int) -> None:
        super().step(action, a, b, d)
        SLEEP_ACTIONS[(action // 7) % len(SLEEP_ACTIONS)](self, a, b, d)

    def send(self, event: e.Event) -> list[c.Command]:
        if isinstance(event, e.GpuAdded) and event.declared is not None:
            event = replace(event, contexts_inside=True)
        if isinstance(event, e.ClientRegistered) and event.client in self.programs:
            rest = self.rest.setdefault(event.client, Rest())
            rest.order, rest.told = 0, None
            if rest.asleep and self.programs[event.client].can_swap:
                event = replace(event, asleep=True)
                self.settings = self.settings.changed(anti_thrash=True)
            else:
                rest.asleep = False
        return super().send(event)

    # --- what clients see

    def _obey(self, command: c.Command) -> None:
        super()._obey(command)
        if isinstance(command, c.GoToSleep):
            program, rest = self.programs[command.client], self.rest[command.client]
            assert rest.able, "told to sleep, and never said that it can"
            assert not rest.asleep, "told to sleep while asleep"
            assert rest.told is None, "told twice"
            assert command.order == rest.order + 1, "orders are numbered one after the other"
            for uuid, held in program.gpus.items():
                assert not held.grant, f"told to sleep with a grant of {uuid}"
                assert held.resident == held.most() == 0, f"told to sleep with {held.most()} bytes on {uuid}"
            rest.order, rest.told = command.order, command
        elif isinstance(command, c.WakeUp):
            rest = self.rest[command.client]
            assert rest.asleep, "woken while awake"
            assert rest.told is None, "woken twice"
            assert command.order == rest.order
            rest.told = command
            for uuid in self.programs[command.client].gpus:
                self._check_room(command.client, uuid)

    def _obey_grant(self, command: c.Grant) -> None:
        assert not self.rest[command.client].asleep, "granted while asleep"
        super()._obey_grant(command)

    def _check_room(self, client: int, uuid: str) -> None:
        """Its context fits beside all that others have there now."""
        here = {other: size for (other, gpu), size in self.contexts.items() if gpu == uuid and self._is_here(other)}
        have, own = sum(here.values()) + self._on_card(uuid), self.contexts.get((client, uuid), 0)
        assert not own or have <= self._ceiling(uuid), f"{client} is woken with {own} beside {have} on {uuid}"

    def _is_here(self, client: int) -> bool:
        """Its context is on its cards, or its room is reserved."""
        rest = self.rest.get(client, Rest())
        return not rest.asleep or isinstance(rest.told, c.WakeUp)

    def _forget(self, client: int) -> None:
        super()._forget(client)
        self.rest.pop(client, None)

    # --- the world's own books

    def _is_physical(self, uuid: str) -> bool:
        return True

    def _ceiling(self, uuid: str) -> int:
        total, declared = CARDS[uuid]
        left = total - self.unmanaged.get(uuid, 0)
        return left if declared is None else min(declared, left)

    def _capacity(self, uuid: str) -> int:
        taken = sum(size for (client, gpu), size in self.contexts.items() if gpu == uuid and self._is_here(client))
        return max(0, self._ceiling(uuid) - taken)

    def _tight(self, uuid: str) -> bool:
        away = sum(size for (client, gpu), size in self.contexts.items() if gpu == uuid and not self._is_here(client))
        promised = sum(program.gpus[uuid].promised for program in self.programs.values() if uuid in program.gpus)
        asked = sum(size for gpu, size in self.open.values() if gpu == uuid)
        return promised + asked + away > self._capacity(uuid)

    def _check_drop(self, command: c.Drop, tight: set[str]) -> None:
        """An operator's order to sleep ends a turn as well."""

    def _verdicts(self, program: Program, uuid: str, size: int) -> tuple[object, ...]:
        allowed = super()._verdicts(program, uuid, size)
        if DenyReason.QUOTA in allowed or not any(rest.able or rest.asleep for rest in self.rest.values()):
            return allowed
        return (*allowed, c.GrantMemory, c.HoldMemory, DenyReason.CARD, DenyReason.HOST)

    def _can_run(self, program: Program) -> bool:
        """Contexts that can leave do."""
        kept, rest = self.contexts, self.rest[program.id]
        asleep, rest.asleep = rest.asleep, False
        try:
            self.contexts = {
                (client, uuid): size
                for (client, uuid), size in kept.items()
                if client == program.id or not self._can_leave(client)
            }
            return super()._can_run(program) and all(self._has_place(program, uuid) for uuid in program.gpus)
        finally:
            self.contexts, rest.asleep = kept, asleep

    def _has_place(self, program: Program, uuid: str) -> bool:
        """Its context fits beside the contexts and the memory that stay, and beside its own memory."""
        others = [other for other in self.programs.values() if uuid in other.gpus and other is not program]
        stays = sum(size for (_, gpu), size in self.contexts.items() if gpu == uuid)
        return stays + sum(other.unmovable(uuid) for other in others) + program.gpus[uuid].promised <= self._ceiling(
            uuid
        )

    def _can_leave(self, client: int) -> bool:
        program, rest = self.programs[client], self.rest[client]
        pinned = any(held.pinned for held in program.gpus.values())
        return rest.asleep or (rest.able and program.can_swap and not program.oversize and not pinned)

    # --- what can happen

    def measure(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is not None and not self.rest[program.id].asleep and self.rest[program.id].told is None:
            super().measure(a, b, d)

    def say(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is not None:
            bar = Bar.NONE if d % 4 else Bar(b % 10)
            self.rest[program.id].able = bar is Bar.NONE
            context = 0 if b % 5 else 130 * MIB
            self._note_context(program, context)
            self.send(e.SleepableSaid(self.now, program.id, bar, context))

    def _note_context(self, program: Program, context: int) -> None:
        if context and not self._is_present(program.id):
            for uuid in program.gpus:
                self.contexts[program.id, uuid] = context
                self.largest_context[uuid] = max(context, self.largest_context.get(uuid, 0))

    def _is_present(self, client: int) -> bool:
        return not self.rest[client].asleep and self.rest[client].told is None

    def answer(self, a: int, b: int, d: int) -> None:
        told = [program.id for program in self.programs.values() if self.rest[program.id].told is not None]
        if told:
            self._answer(told[a % len(told)], OUTCOMES[b % len(OUTCOMES)], error=2 if d % 9 == 0 else 0)

    def answer_all(self, a: int, b: int, d: int) -> None:
        for client in [program.id for program in self.programs.values()]:
            if client in self.rest and self.rest[client].told is not None:
                self._answer(client, Outcome.ASLEEP)

    def _answer(self, client: int, outcome: Outcome, error: int = 0) -> None:
        rest = self.rest[client]
        told, rest.told = rest.told, None
        if isinstance(told, c.GoToSleep):
            rest.asleep = outcome is Outcome.ASLEEP
            for uuid in self.programs[client].gpus if rest.asleep else ():
                if not self.contexts.get((client, uuid)):
                    self.contexts[client, uuid] = self.largest_context.get(uuid, 0)
            rest.able = rest.able and outcome is not Outcome.DECLINED
            bar = Bar.IPC if outcome is Outcome.DECLINED else Bar.NONE
            self.send(e.SleepEnded(self.now, client, told.order, outcome, bar, 304))
        elif told is not None:
            rest.asleep = error != 0
            if error:
                self.programs[client].waits = False
            self.send(e.WakeEnded(self.now, client, told.order, error))

    def want(self, a: int, b: int, d: int) -> None:
        sleepers = [program.id for program in self.programs.values() if self.rest[program.id].asleep]
        if sleepers:
            client = sleepers[a % len(sleepers)]
            self.send(e.WakeRequested(self.now, client, self.rest[client].order))

    def order_sleep(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is not None:
            self.send(e.SleepOrdered(self.now, program.id))

    def order_wake(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is not None:
            self.send(e.WakeOrdered(self.now, program.id))

    def answer_wrongly(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        number = self.rest[program.id].order + 1 + d % 3
        wrong = (
            e.SleepEnded(self.now, program.id, number, Outcome.ASLEEP),
            e.WakeEnded(self.now, program.id, number),
            e.WakeRequested(self.now, program.id, number),
            e.WakeRequested(self.now, 99, 0),
        )
        answer = self.send(wrong[b % len(wrong)])
        effects = (c.Grant, c.Drop, c.Expel, c.GoToSleep, c.WakeUp)
        assert not any(isinstance(command, effects) for command in answer), "a wrong number had effects"

    # --- the end

    def _answer_drops(self) -> None:
        """All behave from now on: what failed before does no more."""
        for client in list(self.programs):
            if self.rest[client].told is None and self.rest[client].asleep:
                self.send(e.WakeOrdered(self.now, client))
            elif self.rest[client].told is None and self.rest[client].able:
                self.send(e.SleepableSaid(self.now, client, Bar.NONE))
        for _ in range(ANSWERS):  # in time, what follows from an answer too
            super()._answer_drops()
            self._move_all()
            self.answer_all(0, 0, 0)
            if not any(rest.told for rest in self.rest.values()):
                break

    def _check_survivor(self) -> None:
        movers = [program for program in self.programs.values() if program.can_swap]
        for program in list(self.programs.values()) if movers else ():
            if program is not movers[0]:
                self.send(e.ClientGone(self.now, program.id))
        for _ in range(3):
            if movers and movers[0].id in self.rest:
                self.send(e.WakeOrdered(self.now, movers[0].id))
            self._move_all()
            self.answer_all(0, 0, 0)
        if not movers or all(self._has_place(movers[0], uuid) for uuid in movers[0].gpus):
            super()._check_survivor()

    def restart(self, a: int, b: int, d: int) -> None:
        if d % 3:
            return
        for rest in self.rest.values():
            if isinstance(rest.told, c.WakeUp):  # it tells nobody
                rest.asleep = bool(b % 2)
        super().restart(a, b, d)
        self.rest = {client: self.rest[client] for client in self.programs}
        for client, rest in list(self.rest.items()):
            rest.able = rest.able or rest.asleep
            context = 130 * MIB if rest.asleep else 0
            self._note_context(self.programs[client], context)
            self.send(e.SleepableSaid(self.now, client, Bar.NONE if rest.able else Bar.DRIVER, context))


SLEEP_ACTIONS: tuple[Callable[[SleepWorld, int, int, int], None], ...] = (
    SleepWorld.say,
    SleepWorld.say,
    SleepWorld.say,
    SleepWorld.answer,
    SleepWorld.answer,
    SleepWorld.answer,
    SleepWorld.answer_all,
    SleepWorld.want,
    SleepWorld.want,
    SleepWorld.order_sleep,
    SleepWorld.order_sleep,
    SleepWorld.order_wake,
    SleepWorld.answer_wrongly,
    SleepWorld.measure,
    SleepWorld.measure,
    SleepWorld.move_all,
)

assert set(UUIDS) == set(CARDS)
