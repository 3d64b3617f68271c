"""The daemon: sockets and timers around ``Scheduler.handle``. It hands facts in and carries out what the core decides.

``admission.py`` says who may connect, ``sampling.py`` what is on the cards. Each kind of control request has a desk:
``status.py``, ``operators.py``, ``sleep.py``, ``runs.py``, ``leases.py``, ``pods.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from nvshare import __version__, config, procfs
from nvshare.core import commands, events
from nvshare.core.policy.membership import Process
from nvshare.core.scheduler import Scheduler
from nvshare.daemon import control, identity
from nvshare.daemon.admission import MAX_CONNECTIONS, Admission
from nvshare.daemon.connection import ClientConnection
from nvshare.daemon.leases import LeaseDesk
from nvshare.daemon.offences import OffenceLog
from nvshare.daemon.operators import OperatorDesk
from nvshare.daemon.pods import PodDesk
from nvshare.daemon.pulse import Pulse
from nvshare.daemon.runs import RunDesk
from nvshare.daemon.sampling import SAMPLE_PERIOD, Sampler
from nvshare.daemon.sleep import SleepDesk
from nvshare.daemon.status import StatusDesk
from nvshare.daemon.translate import REFUSALS, registration, to_message
from nvshare.gpu.cards import CardSource
from nvshare.wire import messages as wire

_LOG = logging.getLogger("nvshare")

_LEVELS = {commands.Level.DEBUG: logging.DEBUG, commands.Level.INFO: logging.INFO, commands.Level.WARN: logging.WARNING}
_LOGGED_WHEN_SENT = {
    commands.SchedOn: "SCHED_ON",
    commands.SchedOff: "SCHED_OFF",
    commands.Grant: "LOCK_OK",
    commands.Drop: "DROP_LOCK",
}


class Daemon:
    """All connections of one scheduler. Lives in one event loop; only samples, files and text are made in threads."""

    def __init__(
        self,
        core: Scheduler,
        source: CardSource,
        loop: asyncio.AbstractEventLoop,
        *,
        card_memory: int | None = None,
        contexts_inside: bool = False,
        max_connections: int = MAX_CONNECTIONS,
        about: dict[str, Any] | None = None,
        lease_marker: Path | None = None,
        pods_file: Path | None = None,
        kept_file: Path | None = None,
        pod_of: Callable[[int], str | None] | None = None,
    ) -> None:
        self.loop = loop
        self.core = core
        self.source = source
        self.kernel = identity.Kernel(pod_of)
        self.offences = OffenceLog()
        self.pulse = Pulse()
        self._now = loop.time()
        self.admission = Admission(max_connections, self.now)
        self._clients: dict[int, ClientConnection] = {}
        self._events: deque[events.Event] = deque()
        self._dispatching = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._sampler = Sampler(self, source, self._clients)
        cards = source.cards()
        self._said = {**(about or {}), "cards": [card.uuid for card in cards], "started_at": round(time.time(), 3)}
        self._status = StatusDesk(self, self._about)
        self._runs = RunDesk(self)
        self._sleep = SleepDesk(self)
        self._leases = LeaseDesk(self, lease_marker)
        self._carry = self._carriers()
        self._leases.start()
        for card in cards:
            size = (card.total, card.name, card_memory, contexts_inside)
            self.dispatch(events.GpuAdded(self.now(), card.uuid, *size))
        self.operators = OperatorDesk(self, kept_file)
        self._pods = PodDesk(self, pods_file)
        self._keep_house_next()

    def _about(self) -> dict[str, Any]:
        """What ``status`` says of the scheduler itself."""
        return {
            **self._said,
            "pod_watch": self._pods.watched,
            "connections": len(self.admission.connections),
            "offences": self.offences.count,
            "loop": self.pulse.to_dict(),
        }

    def close(self, *, needed_no_more: bool = False) -> None:
        """Hang up on everybody; clients go on by themselves and reconnect when a scheduler is back."""
        self._housekeeping.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._leases.close()
        self._pods.close()
        self.operators.close(forget=needed_no_more)
        self._closed = True
        for connection in list(self.admission.connections):
            connection.hang_up()

    # --- the core

    def now(self) -> float:
        """The loop's clock, which never goes back even where a timer fired a little early."""
        self._now = max(self._now, self.loop.time())
        return self._now

    def dispatch(self, event: events.Event) -> None:
        """Give the core an event and carry out what it answers. An event raised meanwhile is handled after that."""
        if self._closed:
            return
        self._events.append(event)
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._events:
                event = self._events.popleft()
                self.pulse.events += 1
                self._sampler.meter.watch_event(event)
                for command in self.core.handle(event):
                    self._carry_out(command)
        finally:
            self._dispatching = False

    def _carry_out(self, command: commands.Command) -> None:
        carry = self._carry.get(type(command))
        if carry is not None:
            carry(command)
            return
        client: int = command.client  # type: ignore[attr-defined]  # every other command is for one
        connection = self._clients.get(client)
        if connection is None:
            return
        self._sampler.meter.watch_command(command)
        connection.send(to_message(command, connection.gpus))
        sent = _LOGGED_WHEN_SENT.get(type(command))
        if sent is not None:
            _LOG.info("Sent %s to client %016x", sent, client)

    def _carriers(self) -> dict[type[commands.Command], Callable[[Any], None]]:
        """What carries out the commands that are no messages to clients."""
        return {
            commands.WakeAt: self._wake_at,
            commands.Log: lambda command: _LOG.log(_LEVELS[command.level], "%s", command.text),
            commands.Expel: lambda command: self._refuse(command, logged=True),
            commands.Refuse: lambda command: self._refuse(command, logged=False),
            commands.AwaitPod: self._await_pod,
            commands.Registered: self._registered,
            commands.RegisterAgain: self._hang_up,
            commands.SampleCards: self._sampler.order,
            commands.GroupAppeared: lambda command: self.operators.appeared(command.group, command.owner),
            commands.RunGranted: self._runs.answer,
            commands.LeaseGranted: self._leases.answer,
            commands.LeaseRefused: self._leases.answer,
            commands.LeasesAwaitedNoMore: self._leases.await_no_more,
        }

    def _wake_at(self, command: commands.WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if command.at is None else self.loop.call_at(command.at, self._wake, command.at)

    def _wake(self, at: float) -> None:
        self._timer = None
        self.pulse.fired(self.loop.time() - at)
        self._now = max(self._now, at)
        self.dispatch(events.TimerFired(self.now()))

    def _refuse(self, command: commands.Expel | commands.Refuse, *, logged: bool) -> None:
        offender = self._clients.get(command.client)
        if offender is not None:
            offender.refuse(command.reason, REFUSALS[command.fault], logged=logged)

    def _await_pod(self, command: commands.AwaitPod) -> None:
        connection = self._clients.get(command.client)
        if connection is not None:
            connection.wait_for_reply()

    def _hang_up(self, command: commands.RegisterAgain) -> None:
        connection = self._clients.get(command.client)
        if connection is not None:
            connection.hang_up()

    # --- processes and clients

    def process(self, pid: int) -> Process:
        """What the kernel says of a process now."""
        self.operators.forget_dead_runs()
        process = self.kernel.process(pid)
        if self.core.depends_on_environment(process):
            return replace(process, lease=procfs.variable(pid, config.LEASE_VARIABLE))
        return process

    def register(self, connection: ClientConnection, message: wire.Register) -> None:
        """REGISTER of a connection that is not registered yet."""
        client = self._client_id(message.previous_id, connection.peer.pid)
        connection.client = client
        self._clients[client] = connection
        self.dispatch(registration(self.now(), message, client, self.process(connection.peer.pid)))

    def _registered(self, command: commands.Registered) -> None:
        connection = self._clients.get(command.client)
        if connection is None:
            return
        connection.group = command.group
        self._leases.joined(command.group, connection.peer.pid)
        if connection.waits:
            self.loop.call_later(0, connection.continue_reading)

    def _client_id(self, previous: int, pid: int) -> int:
        """The id a process had before, unless another has it now; else a new one."""
        holder = self._clients.get(previous)
        if previous and holder is None:
            return previous
        if holder is not None and holder.peer.pid == pid:
            holder.hang_up()  # the same process came back before we saw its old connection end
            return previous
        while True:
            client = secrets.randbits(64)
            if client and client not in self._clients:
                return client

    def share_of(self, connection: ClientConnection, gpu: str) -> wire.ShareReply:
        """What the task around a process has of a card; the process itself need not be a client."""
        pid = connection.peer.pid
        share = self.core.share(self.process(pid), gpu)
        if share is None:
            return wire.ShareReply()
        members = ((self._clients[client].peer.pid, size) for client, size in share.allocated.items())
        processes = (wire.ProcessEntry(identity.pid_seen_by(pid, member), size) for member, size in members)
        return wire.ShareReply(share.card, sum(share.allocated.values()), tuple(islice(processes, wire.MAX_PROCESSES)))

    def connection_of(self, client: int) -> ClientConnection | None:
        """The connection of a client."""
        return self._clients.get(client)

    def holder_of(self, group: str) -> ClientConnection | None:
        """The connection of the process that a run, a lease or a process outside of both is known by."""
        kind, _, name = group.partition(":")
        if kind == "run":
            return self._runs.owner(int(name))
        if kind == "lease":
            return self._leases.holder(name)
        return next((connection for connection in self._clients.values() if connection.group == group), None)

    def forget(self, connection: ClientConnection) -> None:
        """A connection ended: what it held is free at once."""
        self.admission.leave(connection)
        if self._clients.get(connection.client) is connection:
            del self._clients[connection.client]
            self.dispatch(events.ClientGone(self.now(), connection.client))
        self._leases.ended(connection)
        self._pods.ended(connection)
        self._runs.ended(connection)

    def _keep_house_next(self) -> None:
        due = self.loop.time() + SAMPLE_PERIOD
        self._housekeeping = self.loop.call_at(due, self._keep_house, due)

    def _keep_house(self, due: float) -> None:
        self.pulse.fired(self.loop.time() - due)
        self._keep_house_next()
        self.admission.refuse_overdue()
        self.operators.look()
        self._sampler.each_period()

    # --- control

    def answer_control(self, connection: ClientConnection, body: bytes) -> None:
        """Hand one control request to its desk."""
        if connection.awaits_lease:
            connection.refuse("one request at a time: this connection waits for its lease")
            return
        desks: dict[str, Callable[[ClientConnection, control.Request], None]] = {
            "status": lambda connection, _: self._status.ask(connection),
            "run": self._runs.ask,
            "sleep": self._sleep.ask,
            "wake": self._sleep.ask,
            "lease": self._leases.ask,
            "pods": self._pods.ask,
        }
        try:
            request = control.parse(body)
            desks.get(request["op"], self.operators.answer)(connection, request)
        except control.ControlError as error:
            connection.send(wire.ControlReply(control.refusal(error)))


def about(socket_path: str) -> dict[str, Any]:
    """Who this scheduler is, for ``status`` and for a second scheduler that wants the same cards."""
    return {"release": __version__, "pid": os.getpid(), "uid": os.getuid(), "socket": socket_path}
