"""A scene whose clients take compute slices: short verbs for what they ask and report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.settings import SliceEnd
from tests.unit.core.core_scene import A, C, Scene

BUSY, TINY = 1.0, 0.2  # part of its time in which the card works for a client


def of(answer: Sequence[c.Command], *kinds: type[C]) -> list[C]:
    return [command for command in answer if isinstance(command, kinds)]


class Stage(Scene):
    """A scene whose clients run on card A and speak about slices."""

    def start(self, client: int, *gpus: str, **options: Any) -> list[c.Command]:
        answer = self.register(client, *gpus, **options)
        return answer + self.request(client)

    def use(self, *clients: int) -> list[c.Command]:
        """They report that they used the card since the last time."""
        answer: list[c.Command] = []
        for client in clients:
            answer += self.send(e.UsageReported(self.now, client, A, self.now + 1.0, 1, 1024))
        return answer

    def ask(self, client: int) -> list[c.Command]:
        return self.send(e.SliceRequested(self.now, client, A))

    def over(
        self, client: int, used: float, *, pending: float = 0.0, ratio: float = BUSY, wants: bool = True,
        reason: SliceEnd = SliceEnd.ENDED,
    ) -> list[c.Command]:  # fmt: skip
        number = self.slice(client)
        event = e.SliceOver(self.now, client, A, number, used, used * ratio, pending, reason, wants)
        return self.send(event)

    def slice(self, client: int) -> int:
        slice = self.scheduler._node.clients[client].gpus[A].compute.slice
        return 0 if slice is None else slice.number

    def attachment(self, client: int) -> Any:
        """The client on card A. Any: where a slice or an account is missing, the test fails by itself."""
        return self.scheduler._node.clients[client].gpus[A]

    def account(self, client: int) -> Any:
        return self.attachment(client).compute.account

    def work(self, client: int, seconds: float, *, then: float) -> list[c.Command]:
        """The client has a burst of this length and then thinks; nobody else has the card."""
        answer = self.ask(client)
        self.pass_time(seconds)
        return answer + self.over(client, seconds, wants=False, reason=SliceEnd.IDLE) + self.pass_time(then)


def given(answer: Sequence[c.Command]) -> list[tuple[int, float | None]]:
    """Whose slice was given or changed, and its length."""
    return [(slice.client, slice.length and round(slice.length, 6)) for slice in of(answer, c.GiveSlice)]


def contending(*clients: int, asking: bool = False) -> Stage:
    """A stage whose clients keep the card busy together."""
    stage = Stage()
    for client in clients:
        stage.start(client)
    stage.use(*clients)
    for client in clients if asking else ():
        stage.ask(client)
    return stage
