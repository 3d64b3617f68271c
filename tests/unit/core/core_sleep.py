"""A scene with clients that can sleep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Settings
from nvshare.core.sleep.state import Bar, Outcome
from tests.unit.core.core_scene import GIB, MIB, A, Scene, only

T4 = 14913 * MIB
CONTEXT = 1009 * MIB
TASK = 11968 * MIB


class SleepScene(Scene):
    """An undeclared T4, unless told otherwise."""

    def __init__(self, *, sleeps: bool = True, sleep_after: float | None = None, inside: bool = False, **scene: Any):
        super().__init__(**{"total": T4, **scene})
        if not sleeps or sleep_after is not None:
            self.scheduler._node.settings = Settings(
                **{**vars(self.scheduler.settings), "sleeps": sleeps, "sleep_after": sleep_after}
            )
        if inside:
            self.inside(scene["declared"], *scene.get("gpus", (A,)))
        self.orders: dict[int, c.GoToSleep] = {}
        self.wakes: dict[int, c.WakeUp] = {}

    def inside(self, declared: int, *gpus: str) -> None:
        for gpu in gpus:
            self.send(e.GpuAdded(self.now, gpu, self.gpu(gpu)["total"], "T4", declared, contexts_inside=True))

    def send(self, event: e.Event) -> list[c.Command]:
        answer = super().send(event)
        for command in answer:
            if isinstance(command, c.GoToSleep):
                self.orders[command.client] = command
            elif isinstance(command, c.WakeUp):
                self.wakes[command.client] = command
        return answer

    def task(
        self,
        client: int,
        size: int = TASK,
        gpus: Sequence[str] = (A,),
        *,
        context: int = CONTEXT,
        bar: Bar | None = Bar.NONE,
        works: bool = False,
    ) -> list[c.Command]:
        """A client that can move its memory, and says whether it can sleep."""
        answer = self.register(client, *gpus, can_swap=True)
        if bar is not None:
            answer += self.say(client, bar)
        for gpu in gpus:
            answer += self.context(client, context, gpu)
            if size:
                self.allocate(client, size, gpu)
        return answer + (self.request(client, gpus[0]) if works else [])

    def say(self, client: int, bar: Bar = Bar.NONE, context: int = 0) -> list[c.Command]:
        return self.send(e.SleepableSaid(self.now, client, bar, context))

    def slept(self, client: int, outcome: Outcome = Outcome.ASLEEP, **said: Any) -> list[c.Command]:
        order = self.orders.pop(client)
        return self.send(e.SleepEnded(self.now, client, order.order, outcome, **said))

    def awake(self, client: int, error: int = 0) -> list[c.Command]:
        wake = self.wakes.pop(client)
        return self.send(e.WakeEnded(self.now, client, wake.order, error))

    def want(self, client: int) -> list[c.Command]:
        """A thread of a sleeper wants the driver."""
        return self.send(e.WakeRequested(self.now, client, self.sleep(client).order))

    def put_to_sleep(self, client: int) -> list[c.Command]:
        """By an operator."""
        return self.send(e.SleepOrdered(self.now, client))

    def wake_up(self, client: int) -> list[c.Command]:
        """By an operator."""
        return self.send(e.WakeOrdered(self.now, client))

    def settle_down(self) -> list[c.Command]:
        """Everybody moves and obeys until nothing is left to do; the answers, in order."""
        answers = self.move_all()
        while self.orders or self.wakes:
            for client in list(self.orders):
                answers += self.slept(client)
            for client in list(self.wakes):
                answers += self.awake(client)
            answers += self.move_all()
        return answers

    def hand_over(self, holder: int, again: bool = True) -> list[c.Command]:
        """The holder's turn ends; it asks again; everybody moves and obeys."""
        answers = self.pass_time(30.0)
        for client, gpu in list(self.grants):
            if client == holder:
                answers += self.release(holder, gpu)
        answers += self.request(holder) if again else []
        return answers + self.settle_down()

    def sleep(self, client: int) -> Any:
        return self.scheduler._node.clients[client].sleep

    def states(self) -> dict[int, str]:
        return {client: known.sleep.state.value for client, known in self.scheduler._node.clients.items()}

    def restart(self) -> None:
        """A new scheduler with the same card; nobody has registered yet."""
        self.scheduler = Scheduler(self.scheduler.settings)
        self.grants, self.orders, self.wakes, self.wake = {}, {}, {}, None
        self.send(e.GpuAdded(self.now, A, T4, "T4", None))


def ordered(answer: list[c.Command]) -> list[int]:
    return [order.client for order in only(answer, c.GoToSleep)]


def woken(answer: list[c.Command]) -> list[int]:
    return [wake.client for wake in only(answer, c.WakeUp)]


__all__ = ["CONTEXT", "GIB", "MIB", "T4", "TASK", "SleepScene", "ordered", "woken"]
