"""A small world around the scheduler core, for random sequences: clients good and bad, an operator, a clock, restarts.

Most clients can move their memory. They hear of targets and grants of memory in order but late, keep to them chunk by
chunk at any later time, and may die at each of these points.

The world knows only what was said between the scheduler and its clients, and keeps books of its own from that. After
every event it checks the answer against those books and has the scheduler validate its invariants. A sequence is a list
of steps, four small numbers each, so that any source of numbers drives it and a failing one can be shortened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.broken import InvariantBroken
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import SIZE_MAX, Cores, DenyReason, Mode, Priority, Settings, SwitchTime
from nvshare.core.state import NO_TARGET
from tests.unit.core.core_programs import Held, Program
from tests.unit.core.core_scene import process_in

Step = tuple[int, int, int, int]

MIB = 1 << 20
CARDS = {"GPU-a": (1000 * MIB, 800 * MIB), "GPU-b": (1000 * MIB, None), "GPU-c": (2000 * MIB, None)}
UUIDS = tuple(CARDS)
CLIENTS = 7
RUN = process_in("process:2", 0)
GROUPS = ("pod:one", "run:2", "process:3")
PAUSES = (0.0, 0.0, 0.001, 0.1, 1.0, 2.5, 9.0, 11.0, 31.0, 400.0)
SIZES = (0, 1, MIB, 100 * MIB, 250 * MIB, 400 * MIB, 800 * MIB, 2000 * MIB, SIZE_MAX + 1)
CHUNKS = (MIB, 33 * MIB, 128 * MIB, 400 * MIB, SIZE_MAX)
HOST_BUDGET = 1500 * MIB
LIMITS = (None, 1, 200 * MIB, 500 * MIB, 900 * MIB, 0, SIZE_MAX + 1)
WISHES = (Cores(cap=50), Cores(cap=50), Cores(30, 50), Cores(70), None)  # of compute, by environments
STEP_RANGE = 1 << 16
TIMERS = 20_000  # in one pause: a slice that goes on for all of it is told so every 38 ms


def wish(n: int) -> Cores:
    """A compute quota, right or wrong."""
    return Cores(n * 7 % 90 if n % 2 else 0, n % 120)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.actions = ACTIONS
        self.settings = Settings(mode=Mode.AUTO)
        self.programs: dict[int, Program] = {}
        self.wake: float | None = None
        self.open: dict[tuple[int, int], tuple[str, int]] = {}  # requests for memory without an answer
        self.contexts: dict[tuple[int, str], int] = {}  # measured, or expected of newcomers
        self.largest_context: dict[str, int] = {}
        self.unmanaged: dict[str, int] = {}  # bytes of processes that are no clients
        self.next_request = 0
        self.story: deque[tuple[e.Event, list[c.Command]]] = deque(maxlen=20)
        self._boot()

    # --- driving it

    def run(self, steps: Sequence[Step]) -> None:
        try:
            self.actions = BUSY_MEMORY if len(steps) % 2 else ACTIONS
            if len(steps) % 5 == 0:
                self.settings = replace(self.settings, host_budget=HOST_BUDGET)
                self._boot()
            if len(steps) % 3 == 0:
                self._change(e.SettingsChanged(self.now, mode=Mode.SERIAL))
            for step in steps:
                self.step(*step)
            self.finish()
        except InvariantBroken:
            raise  # it tells the story itself
        except (AssertionError, KeyError) as error:
            story = "\n".join(f"  {event}\n    -> {answer}" for event, answer in self.story)
            raise AssertionError(f"{error!r}\nrecent events, oldest first:\n{story}") from error

    def step(self, action: int, a: int, b: int, d: int) -> None:
        self.advance(PAUSES[d % len(PAUSES)])
        chosen = self.actions[action % len(self.actions)].__name__
        getattr(self, chosen)(a, b, d)  # a world made of this one may have its own

    def advance(self, seconds: float) -> None:
        """Time passes; timers fire when they are due."""
        until = self.now + seconds
        for _ in range(TIMERS):
            if self.wake is None or self.wake > until:
                self.now = until
                return
            self.now = max(self.now, self.wake)
            self.wake = None
            self.send(e.TimerFired(self.now))
        raise AssertionError("the scheduler keeps asking to be woken")

    def finish(self) -> None:
        """From here on all behave: every waiter is served in bounded time, and when all have gone nothing is left."""
        for _ in range(2 * CLIENTS * CLIENTS + 10):
            self._answer_drops()
            self._move_all()
            if not any(program.waits for program in self.programs.values()) and not self.open:
                break
            self.advance(self.settings.max_runtime + self.settings.drain_deadline + 1.0)
        waiting = [program.id for program in self.programs.values() if program.waits and self._can_run(program)]
        assert not waiting, f"never granted: {waiting}"
        assert not self.open, f"never answered: {self.open}"
        self._check_survivor()
        for client in list(self.programs):
            self.send(e.ClientGone(self.now, client))
        status = self.scheduler.snapshot(self.now).to_dict()
        assert status["clients"] == []
        for gpu in status["gpus"]:
            left = [gpu[what] for what in ("allocated", "resident", "contexts", "running", "waiting") if gpu[what]]
            assert not left, f"left on {gpu['uuid']}: {left}"
        assert all(not group["clients"] and not group["allocated"] for group in status["groups"])
        assert self.wake is None

    def _check_survivor(self) -> None:
        """When its neighbours go, all of the last one's memory comes back."""
        movers = [program for program in self.programs.values() if program.can_swap]
        if not movers:
            return
        for program in list(self.programs.values()):
            if program is not movers[0]:
                self.send(e.ClientGone(self.now, program.id))
        self._move_all()
        for uuid, held in movers[0].gpus.items():
            most = self._capacity(uuid) if movers[0].oversize else held.allocated
            missing = min(most, held.allocated) - held.resident
            assert missing <= 0, f"{movers[0].id} lacks {missing} of {held.allocated} on {uuid}"

    def _can_run(self, program: Program) -> bool:
        """Nothing that cannot be moved keeps it from its cards for ever."""
        for uuid, held in program.gpus.items() if not program.oversize else ():
            others = [other for other in self.programs.values() if uuid in other.gpus]
            largest = self._largest(uuid)
            fixed = sum(other.unmovable(uuid) for other in others)
            own = held.promised - program.unmovable(uuid)
            if own > max(0, max(self._capacity(uuid), largest) - fixed) and self._tight(uuid):
                return False
        return True

    def _move_all(self) -> None:
        for _ in range(1000):
            moved = False
            for program in list(self.programs.values()):
                for uuid, held in program.gpus.items():
                    before = (held.resident, held.applied, len(held.inbox))
                    while held.inbox:
                        held.read()
                    if program.can_swap:
                        held.move(SIZE_MAX)
                    if (held.resident, held.applied, len(held.inbox)) != before or held.confirmed != held.applied:
                        moved = True
                        self._report(program, uuid)
            if not moved:
                return
        raise AssertionError("memory moves for ever")

    def send(self, event: e.Event) -> list[c.Command]:
        """One event through the door; the answer is checked against the world's own books."""
        if isinstance(event, e.ClientGone):
            self._forget(event.client)
        before = {uuid: self._on_card(uuid, promised=True) for uuid in UUIDS}
        tight = {uuid for uuid in UUIDS if self._tight(uuid)}
        answer = self.scheduler.handle(event)
        self.story.append((event, answer))
        for command in answer:
            self._obey(command)
        for command in answer:
            if isinstance(command, c.Drop) and self.settings.mode is not Mode.SERIAL:
                self._check_drop(command, tight)
        for uuid in UUIDS:
            self._check_card(uuid, before[uuid])
        if self.settings.mode is Mode.SERIAL:
            self._check_alone()
        self.scheduler.validate()
        for command in answer:
            if isinstance(command, c.SampleCards):
                answer = answer + self.send(e.CardsSampled(self.now, command.sample))
        return answer

    def _tight(self, uuid: str) -> bool:
        """Not all that clients have and want fits onto the card."""
        promised = sum(program.gpus[uuid].promised for program in self.programs.values() if uuid in program.gpus)
        return promised + sum(size for gpu, size in self.open.values() if gpu == uuid) > self._capacity(uuid)

    def _on_card(self, uuid: str, promised: bool = False) -> int:
        """What clients can have there; of a silent one what it had, unless all that was promised counts."""
        most = 0
        for program in self.programs.values():
            known = self.scheduler._node.clients.get(program.id)
            attachment = known.gpus.get(uuid) if known is not None else None
            if uuid in program.gpus:
                silent = attachment is not None and attachment.silent and not promised
                most += min(
                    program.gpus[uuid].most(), attachment.held if attachment is not None and silent else SIZE_MAX
                )
        return most

    def _check_card(self, uuid: str, before: int) -> None:
        """What clients may have on a card fits; where too much was brought, the scheduler adds nothing to it."""
        now, most = self._on_card(uuid), max(self._capacity(uuid), self._largest(uuid))
        assert now <= max(most, before), f"{now} bytes on {uuid}, {before} before"

    def _largest(self, uuid: str) -> int:
        """The largest client that must be on the card as a whole, where that may be more than there is."""
        if self._is_physical(uuid) and sum(uuid in program.gpus for program in self.programs.values()) > 1:
            return 0
        sizes = (
            program.gpus[uuid].promised
            for program in self.programs.values()
            if uuid in program.gpus and not program.oversize
        )
        return max(sizes, default=0)

    def _check_drop(self, command: c.Drop, tight: set[str]) -> None:
        program = self.programs.get(command.client)
        if program is None:
            return
        reasons = any(uuid in tight or self._tight(uuid) or held.has_target for uuid, held in program.gpus.items())
        assert reasons, "dropped although everything fits"

    def _boot(self) -> None:
        self.scheduler = Scheduler(self.settings)
        self.numbers: dict[int, tuple[int, str]] = {}
        for uuid, (total, declared) in CARDS.items():
            self.send(e.GpuAdded(self.now, uuid, total, "T4", declared))

    # --- what clients see

    def _obey(self, command: c.Command) -> None:
        if isinstance(command, c.Grant):
            self._obey_grant(command)
        elif isinstance(command, c.Drop):
            held = self.programs[command.client].gpus[command.gpu]
            assert held.grant == command.grant, "dropped what it does not hold"
            assert not held.dropped, "dropped twice"
            if self.numbers.get(command.grant) != (command.client, command.gpu):
                held.grant = 0  # it claimed a turn without having its memory
            else:
                held.dropped = True
                held.drain_by = self.now + command.deadline
        elif isinstance(command, (c.Expel, c.Refuse)):
            self._forget(command.client)
        elif isinstance(command, c.SchedOff) or (isinstance(command, c.SchedOn) and not self._registering()):
            program = self.programs[command.client]
            program.waits = False
            for held in program.gpus.values():
                held.grant, held.exclusive, held.dropped = 0, False, False
        elif isinstance(command, c.WakeAt):
            self.wake = command.at
        elif isinstance(command, (c.SetLimit, c.SetCoreLimit)):
            assert command.client in self.programs, "spoke to a client that is gone"
        elif isinstance(command, (c.GrantMemory, c.DenyMemory, c.HoldMemory, c.SetResidency)):
            self._obey_memory(command)

    def _obey_memory(self, command: c.GrantMemory | c.DenyMemory | c.HoldMemory | c.SetResidency) -> None:
        program = self.programs[command.client]
        held = program.gpus[command.gpu]
        if isinstance(command, c.SetResidency):
            assert program.can_swap, "told one that cannot move its memory"
            assert not held.grant or command.target >= min(held.promised, held.last_target()), "lowered under its work"
            held.has_target = True
            held.inbox.append(command)
        else:
            asked = self.open[command.client, command.request]
            assert asked == (command.gpu, command.bytes), "answered something else"
            if not isinstance(command, c.HoldMemory):
                del self.open[command.client, command.request]
            if isinstance(command, c.GrantMemory):
                held.inbox.append(command)
                if not program.can_swap:
                    held.read()

    def _obey_grant(self, command: c.Grant) -> None:
        program = self.programs[command.client]
        held = program.gpus[command.gpu]
        owner = (command.client, command.gpu)
        if command.grant != held.grant:
            assert self.numbers.get(command.grant, owner) == owner, "a grant number was given twice"
            while held.inbox:
                held.read()
            assert program.oversize or held.resident == held.allocated, "runs without its memory"
            if self.settings.mode is Mode.SERIAL and not self._registering():  # an adopted grant exists already
                drainers = [
                    other.id
                    for other in self.programs.values()
                    for uuid, attachment in other.gpus.items()
                    if uuid == command.gpu and attachment.dropped and attachment.drain_by > self.now
                ]
                assert not drainers, f"granted while {drainers} drain"
            assert not held.dropped or held.drain_by <= self.now, "granted anew before it answered"
        self.numbers[command.grant] = owner
        held.grant, held.exclusive, held.dropped = command.grant, command.exclusive, False
        program.waits = False

    def _registering(self) -> bool:
        return isinstance(self.story[-1][0], e.ClientRegistered)

    def _check_alone(self) -> None:
        for uuid in UUIDS:
            holders = [
                program.id
                for program in self.programs.values()
                if uuid in program.gpus and program.gpus[uuid].grant and not program.gpus[uuid].dropped
            ]
            assert len(holders) <= 1, f"{holders} hold {uuid} in serial mode"

    def _forget(self, client: int) -> None:
        self.programs.pop(client, None)
        self.contexts = {key: size for key, size in self.contexts.items() if key[0] != client}
        self.open = {key: asked for key, asked in self.open.items() if key[0] != client}

    def _answer_drops(self) -> None:
        for program in list(self.programs.values()):
            for uuid, held in list(program.gpus.items()):
                if held.dropped:
                    self._release(program, uuid)

    def _release(self, program: Program, uuid: str, stuck: bool = False, drain: float = 0.1) -> None:
        held = program.gpus[uuid]
        number = held.grant
        if not stuck:
            held.grant, held.exclusive, held.dropped = 0, False, False
        else:
            held.dropped, held.drain_by = True, self.now
        self.send(e.LockReleased(self.now, program.id, uuid, number, stuck, drain))

    def _pick(self, n: int) -> Program | None:
        programs = list(self.programs.values())
        return programs[n % len(programs)] if programs else None

    # --- what can happen

    def register(self, a: int, b: int, d: int) -> None:
        client = 1 + a % CLIENTS
        uuids = [uuid for i, uuid in enumerate(UUIDS) if b >> i & 1] or [UUIDS[a % len(UUIDS)]]
        if client in self.programs:
            if b % 4 == 0:
                self._expect_expelled(client, self._registration(client, (e.HeldGpu(UUIDS[0]),)))
            return
        gpus = {uuid: Held() for uuid in uuids}
        program = Program(client, GROUPS[b % len(GROUPS)], gpus, can_swap=a % 5 != 0, oversize=a % 5 == 1)
        if d % 9 == 0:  # it comes back from an earlier scheduler
            for held in program.gpus.values():
                held.allocated = held.resident = SIZES[2 + (a + d) % 6]
        self._register(program, adopt=d % 6 == 0, limit=LIMITS[b % len(LIMITS)])

    def _register(self, program: Program, adopt: bool, limit: int | None = None) -> None:
        if program.group == GROUPS[1]:
            self.send(e.RunAwaited(self.now, RUN))
        gpus = []
        for uuid, held in program.gpus.items():
            if held.dropped:
                held.grant = 0
            elif adopt:
                held.grant = 1 + max(self.numbers, default=0)
            gpus.append(e.HeldGpu(uuid, held.allocated, held.resident, held.grant))
            held.released, held.dropped, held.exclusive = 0, False, False
            held.applied = held.confirmed = held.pinned = 0
            held.has_target = held.resident < held.allocated
            held.target = held.resident if held.has_target else NO_TARGET
        program.waits = False
        self.programs[program.id] = program
        self._expect_contexts(program, program.gpus)
        answer = self.send(
            e.ClientRegistered(
                self.now,
                program.id,
                process_in(program.group, program.id),
                tuple(gpus),
                can_swap=program.can_swap,
                oversize=program.oversize,
                mem_limit=limit,
                core_limit=WISHES[program.id % len(WISHES)],
            )
        )
        said = [command for command in answer if not isinstance(command, (c.Log, c.WakeAt))]
        own = [command for command in said if getattr(command, "client", None) == program.id]
        if any(held.has_target for held in program.gpus.values()) and program.can_swap:
            self.settings = self.settings.changed(anti_thrash=True)  # it cannot run freely, so nobody does
        assert isinstance(own[0], c.SchedOn if self.settings.anti_thrash else c.SchedOff)
        assert [command.gpu for command in own if isinstance(command, c.SetLimit)] == [held.gpu for held in gpus]

    def _expect_contexts(self, program: Program, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            expected = self.largest_context.get(uuid, 0) if self._is_physical(uuid) else 0
            self.contexts[(program.id, uuid)] = expected

    def come_back_swapped_out(self, a: int, b: int, d: int) -> None:
        """A client of an earlier scheduler brings so much that the card is oversubscribed, half of it on the host."""
        client, size = 1 + a % CLIENTS, SIZES[4 + b % 3]
        if client in self.programs:
            return
        uuids = UUIDS[:2] if d % 4 == 0 else UUIDS[b % 2 : b % 2 + 1]
        gpus = {uuid: Held(size, resident=size // 2) for uuid in uuids}
        self._register(Program(client, GROUPS[b % 3], gpus), adopt=d % 5 == 0)

    def register_badly(self, a: int, b: int, d: int) -> None:
        client = 100 + a % CLIENTS
        bad = (
            (),
            (e.HeldGpu("GPU-unknown"),),
            (e.HeldGpu(UUIDS[0]), e.HeldGpu(UUIDS[0])),
            (e.HeldGpu(UUIDS[0], allocated=SIZE_MAX + 1),),
            (e.HeldGpu(UUIDS[0], allocated=1, resident=2),),
            (e.HeldGpu(UUIDS[0], grant=1 << 63),),
        )
        self._expect_expelled(client, self._registration(client, bad[b % len(bad)]))

    def _registration(self, client: int, gpus: tuple[e.HeldGpu, ...]) -> e.ClientRegistered:
        return e.ClientRegistered(self.now, client, process_in(GROUPS[0], client), gpus)

    def _expect_expelled(self, client: int, event: e.Event) -> None:
        answer = self.send(event)
        assert [command.client for command in answer if isinstance(command, (c.Expel, c.Refuse))] == [client]

    def attach(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        uuid = UUIDS[b % len(UUIDS)]
        event = e.GpuAttached(self.now, program.id, (e.HeldGpu(uuid),))
        if uuid not in program.gpus:
            program.gpus[uuid] = Held()
            self._expect_contexts(program, [uuid])
            self.send(event)
        elif d % 8 == 0:
            self._expect_expelled(program.id, event)

    def go(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        self.send(e.ClientGone(self.now, program.id if program else 1 + a % CLIENTS))

    def request(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        uuid = list(program.gpus)[b % len(program.gpus)]
        if self.settings.anti_thrash:
            program.waits = True
        free = self.settings.mode is not Mode.SERIAL and not any(
            held.has_target or self._tight(gpu) for gpu, held in program.gpus.items()
        )
        drains = any(held.dropped and held.drain_by > self.now for held in program.gpus.values())
        answer = self.send(e.LockRequested(self.now, program.id, uuid))
        if self.settings.anti_thrash and free and not drains:
            assert any(isinstance(command, c.Grant) and command.gpu == uuid for command in answer), "kept waiting"

    def release(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        held = [uuid for uuid, attachment in program.gpus.items() if attachment.grant]
        if not held:
            return
        if b % 3:
            for uuid in held:
                if program.id in self.programs:
                    self._release(program, uuid, drain=0.01 * (d % 50))
        else:
            self._release(program, held[b % len(held)])

    def get_stuck(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        # Mostly when told to stop; now and then when it ends its turn itself.
        held = [
            uuid for uuid, attachment in program.gpus.items() if attachment.grant and (attachment.dropped or d % 4 == 0)
        ]
        if held:
            self._release(program, held[b % len(held)], stuck=True)

    def release_wrongly(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        uuid, held = list(program.gpus.items())[b % len(program.gpus)]
        number = (held.grant + 1 + d) if d % 2 else 0
        answer = self.send(e.LockReleased(self.now, program.id, uuid, number, stuck=bool(d & 4), drain=float("nan")))
        effects = [command for command in answer if isinstance(command, (c.Grant, c.Drop, c.Expel))]
        assert not effects, "a wrong number had effects"

    def ask_memory(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        uuid = list(program.gpus)[d % len(program.gpus)]
        size = SIZES[b % len(SIZES)]
        self.next_request += 1
        number = self.next_request
        allowed = self._verdicts(program, uuid, size)
        self.open[program.id, number] = (uuid, size)
        answer = self.send(e.MemoryRequested(self.now, program.id, uuid, number, size))
        verdicts = [
            command
            for command in answer
            if isinstance(command, (c.GrantMemory, c.DenyMemory, c.HoldMemory)) and command.request == number
        ]
        assert verdicts, "no answer"
        verdict = verdicts[0]
        assert (verdict.client, verdict.gpu, verdict.bytes) == (program.id, uuid, size)
        said = verdict.reason if isinstance(verdict, c.DenyMemory) else type(verdict)
        assert said in allowed, f"{said} instead of {allowed}"

    def _verdicts(self, program: Program, uuid: str, size: int) -> tuple[object, ...]:
        """How a request may be answered, by the world's own books."""
        capacity, limit = self._capacity(uuid), self._limit(program)
        asked: dict[int, int] = {}
        for (client, _), (gpu, wanted) in self.open.items():
            asked[client] = asked.get(client, 0) + wanted * (gpu == uuid)
        have = {
            other.id: other.gpus[uuid].promised + asked.get(other.id, 0)
            for other in self.programs.values()
            if uuid in other.gpus
        }
        in_group = sum(have[other] for other in have if self.programs[other].group == program.group)
        if limit is not None and in_group + size > limit:
            return (DenyReason.QUOTA,)
        if sum(have.values()) + size <= capacity:
            return (c.GrantMemory,)
        fixed = {
            other: self.programs[other].unmovable(uuid) if self.programs[other].can_swap else have[other]
            for other in have
        }
        headroom = capacity - sum(fixed.values())
        concerned = [
            other for other in have if other == program.id or not program.can_swap if not self.programs[other].oversize
        ]
        if program.oversize and have[program.id] + size > SIZE_MAX:
            return (DenyReason.CARD,)
        if not self.settings.anti_thrash or any(have[other] - fixed[other] + size > headroom for other in concerned):
            return (DenyReason.CARD,)
        if self.settings.host_budget is not None and self._beyond(uuid, size) > self.settings.host_budget:
            return (DenyReason.HOST,)
        if program.can_swap and not program.gpus[uuid].grant:
            return (c.GrantMemory,)
        return (c.GrantMemory, c.HoldMemory)

    def _beyond(self, uuid: str, size: int) -> int:
        beyond = 0
        for gpu in UUIDS:
            have = sum(program.gpus[gpu].promised for program in self.programs.values() if gpu in program.gpus)
            asked = sum(wanted for where, wanted in self.open.values() if where == gpu)
            beyond += max(0, have + asked + size * (gpu == uuid) - self._capacity(gpu))
        return beyond

    def _limit(self, program: Program) -> int | None:
        groups = self.scheduler.snapshot(self.now).groups
        return next(group.mem_limit for group in groups if group.id == program.group)

    def _is_physical(self, uuid: str) -> bool:
        """What contexts take there counts."""
        return CARDS[uuid][1] is None or bool(self.unmanaged.get(uuid))

    def _capacity(self, uuid: str) -> int:
        total, declared = CARDS[uuid]
        contexts = sum(size for (_, gpu), size in self.contexts.items() if gpu == uuid)
        unmanaged = self.unmanaged.get(uuid, 0)
        left = max(0, total - contexts - unmanaged)
        return left if declared is None else min(declared, left) if unmanaged else declared

    def start_task(self, a: int, b: int, d: int) -> None:
        """A program on one of two cards, or both, that allocates in two steps and begins to work."""
        client = 1 + a % CLIENTS
        if client in self.programs:
            self.request(a, b, d)
            return
        uuids = UUIDS[:2] if b % 5 == 0 else UUIDS[:1]
        gpus = {uuid: Held() for uuid in uuids}
        self._register(Program(client, GROUPS[0], gpus, can_swap=b % 6 != 1, oversize=b % 6 == 2), adopt=False)
        chosen = list(self.programs).index(client)
        for half in (b, d):
            for i in range(len(uuids)):
                self.ask_memory(chosen, 3 + half % 3, i)
        self.request(chosen, b, d)

    def obey_drop(self, a: int, b: int, d: int) -> None:
        """Who was told to stop does, and mostly asks again."""
        dropped = [program for program in self.programs.values() if any(held.dropped for held in program.gpus.values())]
        if dropped:
            program = dropped[a % len(dropped)]
            for uuid, held in program.gpus.items():
                if held.dropped:
                    self._release(program, uuid)
            if b % 4 and program.id in self.programs:
                self.request(list(self.programs).index(program.id), b, d)

    def free_memory(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        uuid, held = list(program.gpus.items())[d % len(program.gpus)]
        size = held.allocated * (b % 5) // 4
        held.allocated -= size
        held.released += size
        if program.can_swap:
            least = max(0, held.resident - size)
            held.resident = (least, min(held.resident, held.allocated))[a % 2] if held.has_target else least
        else:
            held.resident = held.allocated
        held.pinned = min(held.resident, 100 * MIB if b % 7 == 0 else held.pinned)
        self._report(program, uuid)

    def move(self, a: int, b: int, d: int) -> None:
        """A client reads some of what it was told, and moves a chunk."""
        movers = [
            (program, uuid)
            for program in self.programs.values()
            if program.can_swap
            for uuid, held in program.gpus.items()
            if held.inbox or held.has_target
        ]
        if not movers:
            return
        program, uuid = movers[a % len(movers)]
        held = program.gpus[uuid]
        for _ in range((0, 1, len(held.inbox))[b % 3]):
            if held.inbox:
                held.read()
                if d % 2:
                    self._report(program, uuid)  # it keeps to the target before it has moved anything
        held.move(CHUNKS[b % len(CHUNKS)])
        self._report(program, uuid)

    def move_much(self, a: int, b: int, d: int) -> None:
        for i in range(1 + b % 12):
            self.move(a + i, 2 + 3 * b, d)

    def move_all(self, a: int, b: int, d: int) -> None:
        self._move_all()

    def _report(self, program: Program, uuid: str) -> None:
        held = program.gpus[uuid]
        held.confirmed = held.applied
        host = held.allocated - held.resident
        answer = self.send(
            e.MemoryUpdated(self.now, program.id, uuid, held.released, held.resident, host, held.pinned, held.applied)
        )
        assert not any(isinstance(command, c.Expel) for command in answer), "expelled for a true report"

    def lie_about_memory(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None or b % 3:
            return
        uuid, held = list(program.gpus.items())[d % len(program.gpus)]
        granted = held.promised + held.released
        lies = (
            e.MemoryUpdated(self.now, program.id, uuid, granted + 1, 0),
            e.MemoryUpdated(self.now, program.id, uuid, held.released, held.promised + 1),
            e.MemoryUpdated(self.now, program.id, uuid, held.released, 0, applied=1 << 60),
            e.MemoryUpdated(self.now, program.id, uuid, held.released - 1, 0),
            e.MemoryUpdated(self.now, program.id, uuid, held.released, 0, host=SIZE_MAX + 1),
            e.UsageReported(self.now, program.id, uuid, 0.0, 0, 1, swapped_out=SIZE_MAX + 1),
        )
        self._expect_expelled(program.id, lies[a % len(lies)])

    def measure(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is None:
            return
        uuid = list(program.gpus)[b % len(program.gpus)]
        size = (d % 8) * 40 * MIB
        self.contexts[(program.id, uuid)] = size
        self.largest_context[uuid] = max(size, self.largest_context.get(uuid, 0))
        self.send(e.ContextMeasured(self.now, program.id, uuid, size))

    def intrude(self, a: int, b: int, d: int) -> None:
        """Processes that are no clients take some of a card, or leave it."""
        uuid = UUIDS[a % len(UUIDS)]
        size = (d % 6) * 90 * MIB * (b % 3)
        self.unmanaged[uuid] = size
        self.send(e.UnmanagedSeen(self.now, uuid, (e.Unmanaged(77, "outsider", size),) if size else ()))

    def report_usage(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        if program is not None:
            uuid = list(program.gpus)[b % len(program.gpus)]
            self.send(e.UsageReported(self.now, program.id, uuid, self.now * (b % 3) / 2, d, 1 + b % 1024, a, b))

    def change_mode(self, a: int, b: int, d: int) -> None:
        self._change(e.SettingsChanged(self.now, mode=tuple(Mode)[a % len(Mode)]))

    def change_turns(self, a: int, b: int, d: int) -> None:
        choices = (
            e.SettingsChanged(self.now, quantum=float(1 + b % 40)),
            e.SettingsChanged(self.now, switch_time=SwitchTime.AUTO),
            e.SettingsChanged(self.now, max_runtime=float(10 + b % 300)),
            e.SettingsChanged(self.now, quantum=0.5),
            e.SettingsChanged(self.now, quantum=1e9),
        )
        self._change(choices[a % len(choices)])

    def change_anti_thrash(self, a: int, b: int, d: int) -> None:
        self._change(e.SettingsChanged(self.now, anti_thrash=a % 3 != 0))

    def _change(self, event: e.SettingsChanged) -> None:
        # Commands of this event are already under the new settings.
        before = self.settings
        with suppress(ValueError):
            self.settings = before.changed(
                mode=event.mode,
                anti_thrash=event.anti_thrash,
                switch_time=event.switch_time,
                quantum=event.quantum,
                max_runtime=event.max_runtime,
            )
        self.send(event)
        if event.anti_thrash is False and self.scheduler.settings.anti_thrash:
            lacking = any(held.has_target for program in self.programs.values() for held in program.gpus.values())
            assert lacking or self.open, "anti-thrash was not switched off although all memory is there"
            self.settings = before
        assert self.scheduler.settings == self.settings

    def open_run(self, a: int, b: int, d: int) -> None:
        if b % 3 == 0:
            self.send(e.RunClosed(self.now, RUN.pid))
        else:
            self.send(
                e.RunOpened(self.now, RUN, "label", LIMITS[d % len(LIMITS)], WISHES[b % len(WISHES)], Priority.HIGH)
            )

    def see_pod(self, a: int, b: int, d: int) -> None:
        gpumem, annotation = LIMITS[b % len(LIMITS)], LIMITS[d % len(LIMITS)]
        if a % 4 == 3:
            self.send(e.PodGone(self.now, "one"))
        else:
            self.send(e.PodSeen(self.now, e.Pod("one", "ns", f"pod-{a % 3}", gpumem, annotation, wish(b))))

    def change_limits(self, a: int, b: int, d: int) -> None:
        clear = frozenset({"mem_limit"}) if b % 4 == 0 else frozenset()
        limit = LIMITS[d % len(LIMITS)]
        self.send(e.LimitsChanged(self.now, GROUPS[a % len(GROUPS)], limit, wish(b), None, clear, kept=d % 3 == 0))

    def wake_early(self, a: int, b: int, d: int) -> None:
        self.wake = None
        self.send(e.TimerFired(self.now))

    def speak_of_strangers(self, a: int, b: int, d: int) -> None:
        program = self._pick(a)
        strangers = (
            e.LockRequested(self.now, 99, UUIDS[0]),
            e.LockReleased(self.now, 99, UUIDS[0], 1),
            e.MemoryRequested(self.now, 99, UUIDS[0], 1, 1),
            e.GpuAttached(self.now, 99, (e.HeldGpu(UUIDS[0]),)),
            e.LockRequested(self.now, program.id if program else 99, "GPU-unknown"),
            e.LimitsChanged(self.now, "pod:unknown", 1),
            e.PodGone(self.now, "unknown"),
        )
        answer = self.send(strangers[b % len(strangers)])
        assert all(isinstance(command, (c.Log, c.WakeAt)) for command in answer)
        assert any(isinstance(command, c.Log) for command in answer)

    def restart(self, a: int, b: int, d: int) -> None:
        """The scheduler dies; a new one learns from its clients what they hold. Some never come back."""
        if d % 3:
            return
        survivors = [program for i, program in enumerate(self.programs.values()) if (b >> i & 3) != 3]
        self.programs, self.contexts, self.wake, self.open = {}, {}, None, {}
        self.largest_context, self.unmanaged = {}, {}
        for held in chain.from_iterable(program.gpus.values() for program in survivors):
            while held.inbox:
                held.read()
        self._boot()
        for program in survivors:
            self._register(program, adopt=False)


ACTIONS: tuple[Callable[[World, int, int, int], None], ...] = (
    World.register,
    World.register,
    World.request,
    World.request,
    World.request,
    World.request,
    World.release,
    World.release,
    World.release,
    World.ask_memory,
    World.ask_memory,
    World.ask_memory,
    World.ask_memory,
    World.ask_memory,
    World.free_memory,
    World.free_memory,
    World.move,
    World.move,
    World.move,
    World.move_much,
    World.move_much,
    World.move_all,
    World.get_stuck,
    World.get_stuck,
    World.get_stuck,
    World.attach,
    World.go,
    World.change_mode,
    World.change_mode,
    World.change_turns,
    World.change_anti_thrash,
    World.release_wrongly,
    World.come_back_swapped_out,
    World.come_back_swapped_out,
    World.register_badly,
    World.lie_about_memory,
    World.measure,
    World.intrude,
    World.report_usage,
    World.open_run,
    World.see_pod,
    World.change_limits,
    World.wake_early,
    World.speak_of_strangers,
    World.restart,
)

BUSY_MEMORY: tuple[Callable[[World, int, int, int], None], ...] = (
    World.start_task,
    World.start_task,
    World.start_task,
    World.start_task,
    World.obey_drop,
    World.obey_drop,
    World.obey_drop,
    World.obey_drop,
    World.request,
    World.request,
    World.release,
    World.ask_memory,
    World.ask_memory,
    World.ask_memory,
    World.free_memory,
    World.move,
    World.move,
    World.move,
    World.move_much,
    World.move_much,
    World.move_much,
    World.move_all,
    World.move_all,
    World.move_all,
    World.get_stuck,
    World.go,
    World.change_mode,
    World.change_anti_thrash,
    World.measure,
    World.intrude,
    World.report_usage,
    World.report_usage,
    World.report_usage,
    World.restart,
)
