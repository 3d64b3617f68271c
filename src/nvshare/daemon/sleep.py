"""Puts tasks to sleep and wakes them, for operators and for the users of the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvshare.core import events
from nvshare.daemon import control
from nvshare.wire import messages as wire

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection
    from nvshare.daemon.server import Daemon


class SleepDesk:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def ask(self, connection: ClientConnection, request: control.Request) -> None:
        """``sleep`` and ``wake``. ``ControlError`` says what is allowed, and why a task cannot sleep."""
        control.only(request, "target")
        target = control.target(request)
        core, sleeps = self._daemon.core, request["op"] == "sleep"
        clients = core.clients_named(target.kind, target.value)
        if not clients:
            raise control.ControlError(f"there is no {target}; nvsharectl status shows who is there")
        for client in clients:
            self._require(connection, client)
        reasons = {client: core.why_awake(client) if sleeps else None for client in clients}
        if None not in reasons.values():
            raise control.ControlError("; ".join(f"client {one:016x} cannot sleep: {reasons[one]}" for one in clients))
        for client, reason in reasons.items():
            if reason is None:
                order = events.SleepOrdered if sleeps else events.WakeOrdered
                self._daemon.dispatch(order(self._daemon.now(), client))
        connection.send(wire.ControlReply(control.reply(clients=self._shown(clients))))

    def _require(self, connection: ClientConnection, client: int) -> None:
        """An operator may, and so may who runs the task itself: the same user, in the same pid namespace."""
        task = self._daemon.connection_of(client)
        own = task is not None and task.origin.crowd == connection.origin.crowd and task.origin.crowd[1] != 0
        if not own:
            self._daemon.operators.require(connection)

    def _shown(self, clients: tuple[int, ...]) -> list[dict[str, Any]]:
        known = {entry.id: entry for entry in self._daemon.core.snapshot(self._daemon.now()).clients}
        entries = [known[f"{client:016x}"] for client in clients if f"{client:016x}" in known]
        return [{"id": one.id, "pid": one.pid, "sleep": one.sleep, "cannot_sleep": one.cannot_sleep} for one in entries]
