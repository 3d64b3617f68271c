"""Runs as connections hold them: ``nvshare run`` opens one on its control connection, and it lives as long as that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvshare.core import commands, events
from nvshare.daemon import control
from nvshare.wire import messages as wire

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection
    from nvshare.daemon.server import Daemon


class RunDesk:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._owners: dict[int, ClientConnection] = {}  # by process

    def ask(self, connection: ClientConnection, request: control.Request) -> None:
        """``run``."""
        pid = connection.peer.pid
        if not pid:
            raise control.ControlError("the scheduler cannot see the process that asks (another pid namespace)")
        if connection.owned_run is not None:
            raise control.ControlError("this connection has opened a run already")
        event = control.run_opened(self._daemon.now(), self._daemon.process(pid), request)
        earlier = self._owners.get(pid)
        if earlier is not None:
            earlier.hang_up()  # the same process came back before we saw its old connection end
        if not connection.watch_process():
            return
        connection.owned_run = pid
        self._owners[pid] = connection
        self._daemon.dispatch(event)

    def answer(self, command: commands.RunGranted) -> None:
        """Carry out the core's answer."""
        owner = self._owners.get(command.pid)
        if owner is not None:
            inside = command.inside and command.inside.removeprefix("run:")
            owner.send(wire.ControlReply(control.reply(run=str(command.pid), inside=inside)))

    def owner(self, pid: int) -> ClientConnection | None:
        """The connection that holds a run."""
        return self._owners.get(pid)

    def ended(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        if connection.owned_run is not None:
            del self._owners[connection.owned_run]
            self._daemon.dispatch(events.RunClosed(self._daemon.now(), connection.owned_run))
