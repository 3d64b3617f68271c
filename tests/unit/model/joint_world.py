"""The real scheduler core and the library's real state machine in one random world: sequences of events with names for
all that must hold.

Between them are wires that are late, stutter and break, programs and drivers that do what they like within the gate,
and an operator. A seed gives the same sequence every time. ``JointWorld(seed).run()`` raises ``Broken``, with the
invariant's name and the recent story.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.broken import InvariantBroken
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Cores, Mode, Settings, SwitchTime
from nvshare.core.state import Standing
from tests.unit.model.joint_client import MS, NS, SECOND, Broken, JointClient

CARDS = {"GPU-a": 1 << 34, "GPU-b": 1 << 34}
LATENCIES = (20_000, 50_000, 50_000, 300_000, 2 * MS)  # nanoseconds that a message takes
LATE = (20 * MS, 400 * MS)  # and now and then one
LENGTHS = (50 * MS, 100 * MS, 200 * MS, 600 * MS)  # of a sequence, until all behave
QUANTUM, DRAIN = 0.05, 2.0  # seconds
QUOTAS = (Cores(), Cores(), Cores(), Cores(cap=50), Cores(cap=5), Cores(30, 60), Cores(20), Cores(cap=99))
PAUSE = 20 * MS  # between two disturbances, in the mean
SERVED_WITHIN = 120 * SECOND
SAME_MOMENT = 50  # timers that may fire without time passing


class JointWorld:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.now = SECOND
        self.story: deque[str] = deque(maxlen=60)
        self.clients: list[JointClient] = []
        self.behaves = False  # no faults any more
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._ids = itertools.count(1)
        self._timer = 0
        self._same_moment = self._woken_at = 0
        mode = self.rng.choice((Mode.AUTO, Mode.AUTO, Mode.AUTO, Mode.CONCURRENT, Mode.SERIAL))
        self._settings = Settings(mode, switch_time=SwitchTime.FIXED, quantum=QUANTUM, drain_deadline=DRAIN)
        self._boot()

    # --- time

    def at(self, when: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._count), action))

    def after(self, delay: int, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def _advance(self, until: int) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until

    def latency(self) -> int:
        if self.behaves:
            return LATENCIES[1]
        late = self.rng.random() < 0.005
        return self.rng.choice(LATE if late else LATENCIES)

    # --- a sequence

    def run(self) -> None:
        try:
            for _ in range(self.rng.randint(2, 4)):
                self._newcomer()
            end = self.now + self.rng.choice(LENGTHS)
            while self.now < end:
                self._advance(min(end, self.now + round(self.rng.expovariate(1 / PAUSE))))
                self.rng.choice(DISTURBANCES)(self)
            self._finish()
        except InvariantBroken as fault:
            raise Broken(f"{fault}\n{self._told()}") from None
        except Broken as fault:
            raise Broken(f"{fault}\n{self._told()}") from None

    def _told(self) -> str:
        return f"seed {self.seed}, the recent story, oldest first:\n" + "\n".join(self.story)

    def _finish(self) -> None:
        """From here on all behave: everyone that wants is served, and when all have gone nothing is left."""
        self.behaves = True
        for client in self.clients:
            client.behave()
        end = self.now + SERVED_WITHIN
        while self.now < end and not all(client.satisfied for client in self.clients):
            self._advance(min(end, self.now + 100 * MS))
        for client in self.clients:
            self.check("everyone is served", client.satisfied, f"{client} waits: {client.machine.story}")
        self._advance(self.now + SECOND)
        self._check_views()
        running = [client for client in self.clients if any(seat.overrun for seat in client.seats.values())]
        self.check("what runs on is told to end", not running, f"{running}")
        for client in list(self.clients):
            self.kill(client)
        self._advance(self.now + 30 * SECOND)
        status = self.scheduler.snapshot(self.now / NS).to_dict()
        left = [gpu for gpu in status["gpus"] if gpu["running"] or gpu["waiting"]]
        self.check("nothing is left", not status["clients"] and not left, f"{status['clients']} {left}")
        self.check("nothing is left", not self._armed, "the scheduler wants to be woken for nobody")

    def check(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(f"{name}: {what}")

    # --- what happens to it

    def _newcomer(self) -> None:
        if len(self.clients) < 5:
            cards = self.rng.choice((("GPU-a",), ("GPU-a",), ("GPU-a",), ("GPU-b",), ("GPU-a", "GPU-b")))
            pod = self.rng.choice((None, None, None, "pod"))
            client = JointClient(self, next(self._ids), cards, self.rng.choice(QUOTAS), pod)
            self.clients.append(client)
            client.connect()

    def _any_client(self) -> JointClient | None:
        return self.rng.choice(self.clients) if self.clients else None

    def kill(self, client: JointClient) -> None:
        client.die()
        self.clients.remove(client)

    def _death(self) -> None:
        client = self._any_client()
        if client is not None:
            self.kill(client)

    def _break_wire(self) -> None:
        client = self._any_client()
        if client is not None and client.wire is not None:
            client.wire.broke()

    def _stall(self) -> None:
        """The link thread of a client does not run for a while."""
        client = self._any_client()
        if client is not None:
            client.stall(self.rng.choice((5 * MS, 100 * MS, 1600 * MS, 4000 * MS)))

    def _restart(self) -> None:
        if self.rng.random() < 0.3:
            self.story.append(f"{self.now} the scheduler is restarted")
            for client in self.clients:
                if client.wire is not None:
                    client.wire.broke(told=False)
            self._boot()

    def _quota(self) -> None:
        client = self._any_client()
        if client is not None and client.group is not None:
            self.handle(e.LimitsChanged(self.now / NS, client.group, core_limit=self.rng.choice(QUOTAS)))

    def _setting(self) -> None:
        if self.rng.random() < 0.4:
            mode, slices = self.rng.choice((None, *Mode)), self.rng.choice((None, True, True, False))
            change = e.SettingsChanged(self.now / NS, mode=mode, anti_thrash=slices)
            self._settings = self._settings.changed(mode=change.mode, anti_thrash=change.anti_thrash)
            self.handle(change)

    def _stutter(self) -> None:
        """One message of a client's connection comes twice, in either direction."""
        client = self._any_client()
        if client is not None and client.wire is not None:
            client.wire.stutters = True

    def _long_kernel(self) -> None:
        client = self._any_client()
        if client is not None:
            client.next_kernel = self.rng.choice((80 * MS, 1200 * MS, 2500 * MS, 11 * SECOND))

    def _nothing(self) -> None:
        pass

    # --- the scheduler

    def _boot(self) -> None:
        self.scheduler = Scheduler(self._settings)
        self._wires: dict[int, JointClient] = {}
        self._timer += 1
        self._armed = False
        for uuid, total in CARDS.items():
            self.handle(e.GpuAdded(self.now / NS, uuid, total, "T4"))

    def handle(self, event: e.Event) -> None:
        pending: deque[e.Event] = deque([event])
        while pending:
            event = pending.popleft()
            if isinstance(event, e.ClientRegistered):
                self._wires[event.client] = next(one for one in self.clients if one.id == event.client)
            answer = self.scheduler.handle(event)
            self.story.append(f"{self.now} {event} -> {[one for one in answer if not isinstance(one, c.WakeAt)]}")
            for command in answer:
                if isinstance(command, c.WakeAt):
                    self._set_timer(command.at)
                elif isinstance(command, c.SampleCards):
                    pending.append(e.CardsSampled(self.now / NS, command.sample))
                elif isinstance(command, c.Log):
                    self._note_given_up(command.text)
                elif not isinstance(command, c.GroupAppeared):
                    self._deliver(command)
            self.scheduler.validate()
        self._check_views()

    def _deliver(self, command: c.Command) -> None:
        number: int = command.client  # type: ignore[attr-defined]  # every other command has one
        client = self._wires[number]
        self.check("nobody is expelled", not isinstance(command, (c.Expel, c.Refuse)), f"{client}: {command}")
        if client.wire is not None and client.id == number:
            client.given = command.number if isinstance(command, c.GiveSlice) else client.given
            client.wire.down(command)

    def _note_given_up(self, text: str) -> None:
        for client in self.clients:
            if f"Client {client.id:016x}" in text and "did not end its compute turn" in text:
                client.given_up = client.given

    def _set_timer(self, at: float | None) -> None:
        self._timer += 1
        timer, self._armed = self._timer, at is not None
        if at is None:
            return
        due = max(self.now, -int(-at * NS // 1))

        def fire() -> None:
            if timer != self._timer:
                return
            self._armed = False
            self._same_moment = self._same_moment + 1 if self._woken_at == self.now else 0
            self._woken_at = self.now
            self.check("timers come to rest", self._same_moment < SAME_MOMENT, "the scheduler is woken again and again")
            self.handle(e.TimerFired(max(self.now / NS, at)))

        self.at(due, fire)

    # --- both sides together

    def _check_views(self) -> None:
        """Where nothing is under way between the scheduler and a client, both see the same slice."""
        for client in self.clients:
            known = self.scheduler._node.clients.get(client.id)
            if known is None or client.wire is None or client.wire.busy or not client.settled:
                continue
            for uuid, seat in client.seats.items():
                if seat.grant and known.gpus[uuid].standing is not Standing.RUNNING:
                    continue  # it is stuck in a drain, and keeps its grant until it is told more
                attachment = known.gpus[uuid].compute
                number = 0 if attachment.slice is None else attachment.slice.number
                same = (attachment.state, number) == (seat.view, seat.number)
                excused = attachment.asks if seat.voided else 0 < seat.number <= client.given_up
                self.check(
                    "both sides agree",
                    same or excused,
                    f"{client} is {seat.view.name} with slice {seat.number} on {uuid}, "
                    f"to the scheduler it is {attachment.state.name} with {number}",
                )


DISTURBANCES: tuple[Callable[[JointWorld], None], ...] = (
    JointWorld._newcomer,
    JointWorld._death,
    JointWorld._break_wire,
    JointWorld._stall,
    JointWorld._restart,
    JointWorld._quota,
    JointWorld._quota,
    JointWorld._setting,
    JointWorld._stutter,
    JointWorld._stutter,
    JointWorld._long_kernel,
    JointWorld._long_kernel,
    *[JointWorld._nothing] * 6,
)
