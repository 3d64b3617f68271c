"""The daemon: sockets and timers around ``Scheduler.handle``. It carries out what the core decides, no more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from nvshare import __version__
from nvshare.core import commands, events
from nvshare.core.settings import Settings
from nvshare.core.snapshot import Share
from nvshare.daemon import control, identity
from nvshare.daemon.connection import ClientConnection, Origin
from nvshare.daemon.contexts import ContextMeter, Recorded
from nvshare.daemon.leases import LeaseDesk
from nvshare.daemon.offences import OffenceLog
from nvshare.daemon.operators import OperatorDesk
from nvshare.daemon.outsiders import Look, Outsiders
from nvshare.daemon.pods import PodDesk
from nvshare.daemon.translate import registration, to_message
from nvshare.gpu.cards import CardSource, ProcessMemory
from nvshare.wire import messages as wire

_LOG = logging.getLogger("nvshare")

MAX_CONNECTIONS = 4096
SHARE_OF_ONE_USER = 0.75
SHARE_OF_ONE_CONTAINER = 0.25  # whose root is everybody's root
KEPT_FOR_OPERATORS = 64
FRAME_TIMEOUT = 10.0  # seconds a peer has to complete a frame it began, the first one included
SAMPLE_PERIOD = 1.0  # seconds between looks at what processes take on the cards
IDLE_SAMPLES = 5  # periods between them while there is no client
FIRST_SAMPLE_WAIT = 0.2  # seconds that a client's first request waits for such a look, if NVML is slow
EARLY_REQUESTS = 64  # of one client that may wait for that
STATUS_SHARE = 0.05  # part of our time that answering ``status`` may take
_LEVELS = {
    commands.Level.DEBUG: logging.DEBUG,
    commands.Level.INFO: logging.INFO,
    commands.Level.WARN: logging.WARNING,
}
_LOGGED_WHEN_SENT = {
    commands.SchedOn: "SCHED_ON",
    commands.SchedOff: "SCHED_OFF",
    commands.Grant: "LOCK_OK",
    commands.Drop: "DROP_LOCK",
}


class Snapshot(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


class Core(Protocol):
    """The scheduler core, as far as the daemon knows it."""

    @property
    def settings(self) -> Settings: ...

    def handle(self, event: events.Event) -> list[commands.Command]: ...

    def snapshot(self, now: float) -> Snapshot: ...

    def why_unchanged(self, event: events.SettingsChanged) -> str | None: ...

    def has_group(self, name: str) -> bool: ...

    def share(self, group: str, gpu: str) -> Share | None: ...


class Daemon:
    """All connections of one scheduler. Lives in one event loop; only the sampling of cards happens in a thread."""

    def __init__(
        self,
        core: Core,
        source: CardSource,
        loop: asyncio.AbstractEventLoop,
        *,
        card_memory: int | None = None,
        max_connections: int = MAX_CONNECTIONS,
        about: dict[str, Any] | None = None,
        lease_marker: Path | None = None,
        pods_file: Path | None = None,
        kept_file: Path | None = None,
        pod_of: Callable[[int], str | None] | None = None,
    ) -> None:
        self.loop = loop
        self.offences = OffenceLog()
        self._core = core
        self._source = source
        self._max_connections = max_connections
        self._now = loop.time()
        self._connections: set[ClientConnection] = set()
        self._crowds: Counter[tuple[int, int]] = Counter()
        self._clients: dict[int, ClientConnection] = {}
        self._runs: dict[int, str] = {}  # process of an `nvshare run` or lease -> its group
        self._run_owners: dict[int, ClientConnection] = {}
        self._owing: dict[ClientConnection, float] = {}  # connections with an incomplete frame, and since when
        self._events: deque[events.Event] = deque()
        self._dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._meter = ContextMeter()
        self._outsiders = Outsiders()
        self._sampling = False
        self._periods = -1  # since there was a client; the first one begins with a look
        self._early: dict[tuple[int, str], list[events.Event]] = {}  # first requests that wait for a sample
        self._asked_status: list[ClientConnection] = []
        self._status_again = 0.0  # when the next snapshot may be taken
        self._idle_since: float | None = self._now
        self._kernel_pod_of = pod_of or identity.pod_of
        self._own_pod = self._kernel_pod_of(os.getpid())
        self._namespace = identity.namespace_of(os.getpid())
        self._leases = LeaseDesk(self, self._runs, lease_marker)
        cards = source.cards()
        self._about = {**(about or {}), "cards": [card.uuid for card in cards]}
        self.known_gpus = frozenset(card.uuid for card in cards)
        for card in cards:
            self.dispatch(events.GpuAdded(self.now(), card.uuid, card.total, card.name, card_memory))
        self.operators = OperatorDesk(self, core, kept_file)
        self._pods = PodDesk(self, pods_file)
        self._housekeeping = loop.call_later(SAMPLE_PERIOD, self._keep_house)

    def close(self, *, needed_no_more: bool = False) -> None:
        """Hang up on everybody; clients go on by themselves and reconnect when a scheduler is back."""
        self._housekeeping.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._leases.close()
        self._pods.close()
        self.operators.close(forget=needed_no_more)
        self._core = _Stopped()
        for connection in list(self._connections):
            connection.hang_up()

    # --- the core

    def now(self) -> float:
        """The loop's clock, which never goes back even where a timer fired a little early."""
        self._now = max(self._now, self.loop.time())
        return self._now

    def dispatch(self, event: events.Event) -> None:
        """Give the core an event and carry out what it answers. An event raised meanwhile is handled after that."""
        if isinstance(event, events.MemoryRequested) and self._waits_for_sample(event):
            return
        self._events.append(event)
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._events:
                event = self._events.popleft()
                self._meter.watch_event(event)
                for command in self._core.handle(event):
                    self._carry_out(command)
        finally:
            self._dispatching = False

    def _carry_out(self, command: commands.Command) -> None:
        if isinstance(command, commands.WakeAt):
            self._wake_at(command.at)
        elif isinstance(command, commands.Log):
            _LOG.log(_LEVELS[command.level], "%s", command.text)
        elif isinstance(command, (commands.LeaseGranted, commands.LeaseRefused)):
            self._leases.answer(command)
        elif isinstance(command, commands.Expel):
            offender = self._clients.get(command.client)
            if offender is not None:
                offender.refuse(command.reason, wire.RefusalCode.LIMIT, logged=True)
        else:
            client: int = command.client  # type: ignore[attr-defined]
            connection = self._clients.get(client)
            if connection is None:
                return
            self._meter.watch_command(command)
            connection.send(to_message(command, connection.gpus))
            sent = _LOGGED_WHEN_SENT.get(type(command))
            if sent is not None:
                _LOG.info("Sent %s to client %016x", sent, client)

    def _wake_at(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self.loop.call_at(at, self._wake, at)

    def _wake(self, at: float) -> None:
        self._timer = None
        self._now = max(self._now, at)
        self.dispatch(events.TimerFired(self.now()))

    # --- connections

    def origin_of(self, connection: ClientConnection) -> Origin:
        """Asked once, when it connects."""
        peer = connection.peer

        def look(pid: int) -> Origin:
            operator = identity.is_operator(peer, self._kernel_pod_of(pid), self._own_pod)
            return Origin(operator, (peer.uid, identity.namespace_of(pid)))

        found = identity.while_alive(connection.transport.get_extra_info("socket"), peer, look)
        return found or Origin(False, (peer.uid, 0))

    def admit(self, connection: ClientConnection) -> str | None:
        """Take a new connection in, or say why not. Operators find room where others have taken all."""
        crowd, operator = connection.origin.crowd, connection.origin.operator
        self._connections.add(connection)
        self._crowds[crowd] += 1
        self._idle_since = None
        if len(self._connections) > self._max_connections + (KEPT_FOR_OPERATORS if operator else 0):
            return f"{self._max_connections} connections are open, which is all this scheduler takes"
        inside = crowd[1] not in (0, self._namespace)
        share = int(self._max_connections * (SHARE_OF_ONE_CONTAINER if inside else SHARE_OF_ONE_USER))
        if self._crowds[crowd] > share and not operator:
            where = " in one container" if inside else ""
            return f"user {crowd[0]} has {share} connections open, which is all one user gets{where}"
        self._owing[connection] = self.now()
        return None

    def owes_frame(self, connection: ClientConnection, owes: bool) -> None:
        """Note whether a peer is in the middle of a frame; it must not stay there."""
        if owes:
            self._owing.setdefault(connection, self.now())
        elif self._owing:
            self._owing.pop(connection, None)

    def register(self, connection: ClientConnection, message: wire.Register, gpus: tuple[events.HeldGpu, ...]) -> None:
        """REGISTER of a connection that is not registered yet."""
        pod = self._pod_of(connection.peer.pid)

        def proceed() -> None:
            if not connection.closed:
                self._register(connection, message, gpus, pod)
                connection.continue_reading()

        if self._pods.when_known(pod, proceed):
            connection.wait_for_reply()
        else:
            self._register(connection, message, gpus, pod)

    def _register(
        self, connection: ClientConnection, message: wire.Register, gpus: tuple[events.HeldGpu, ...], pod: str | None
    ) -> None:
        pid = connection.peer.pid
        client = self._client_id(message.previous_id, pid)
        connection.ancestors = tuple(identity.ancestry(pid))
        runs = {**self.operators.awaited_runs(), **self._runs}
        group = self._leases.group_of(identity.group_of(connection.ancestors, pod, runs, client), pid)
        event = registration(
            self.now(), message, client=client, group=group, pid=pid, in_pod=pod is not None, gpus=gpus
        )
        connection.client, connection.group = client, group
        connection.pod_name = f"{event.pod_namespace}/{event.pod_name}" if pod else ""
        self._clients[client] = connection
        self._leases.joined(group, pid)
        self.dispatch(event)
        if not group.startswith("lease:"):  # that appears with its holder
            self.operators.appeared(group)

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
        share = self._core.share(self._group_of_process(pid), gpu)
        if share is None:
            return wire.ShareReply()
        members = ((self._clients[client].peer.pid, size) for client, size in share.allocated.items())
        processes = (wire.ProcessEntry(identity.pid_seen_by(pid, member), size) for member, size in members)
        return wire.ShareReply(share.card, sum(share.allocated.values()), tuple(islice(processes, wire.MAX_PROCESSES)))

    def _group_of_process(self, pid: int) -> str:
        """As of a client; of a process outside of pods and runs that of the nearest client above it."""
        ancestors = tuple(identity.ancestry(pid))
        group = identity.group_of(ancestors, self._pod_of(pid), self._runs, 0)
        if not group.startswith("process:"):
            return self._leases.group_of(group, pid)
        groups = {connection.peer.pid: connection.group for connection in self._clients.values()}
        return next((groups[ancestor] for ancestor in ancestors if ancestor in groups), group)

    def forget(self, connection: ClientConnection) -> None:
        """A connection ended: what it held is free at once."""
        self._connections.discard(connection)
        self._owing.pop(connection, None)
        crowd = connection.origin.crowd
        self._crowds[crowd] -= 1
        if not self._crowds[crowd]:
            del self._crowds[crowd]
        if not self._connections:
            self._idle_since = self.now()
        if self._clients.get(connection.client) is connection:
            del self._clients[connection.client]
            self.dispatch(events.ClientGone(self.now(), connection.client))
        self._leases.ended(connection)
        self._pods.ended(connection)
        pid = connection.owned_run
        if pid is not None:
            del self._run_owners[pid]
            self.dispatch(events.GroupClosed(self.now(), self._runs.pop(pid)))

    def idle_for(self) -> float:
        """Seconds without any connection."""
        return 0.0 if self._idle_since is None else self.now() - self._idle_since

    def _keep_house(self) -> None:
        self._housekeeping = self.loop.call_later(SAMPLE_PERIOD, self._keep_house)
        overdue = self.now() - FRAME_TIMEOUT
        for connection in [one for one, since in self._owing.items() if since < overdue]:
            connection.refuse(f"no complete message within {FRAME_TIMEOUT:.0f} s")
        self.operators.look()
        self._periods = 0 if self._clients else self._periods + 1
        if self._periods % IDLE_SAMPLES == 0:
            self._start_sample()

    # --- what contexts cost, and who else is on the cards

    def process_memory(self) -> ProcessMemory:
        """What NVML says that processes take, by (GPU, pid). May take a while: call from a thread."""
        return self._source.process_memory()

    def _waits_for_sample(self, request: events.MemoryRequested) -> bool:
        """What a new client's context takes, and who else is on the card, is known before memory is given out."""
        key = (request.client, request.gpu)
        if key in self._early:
            self._early[key].append(request)
            if len(self._early[key]) > EARLY_REQUESTS:
                self._let_through(key)
            return True
        if not self._meter.is_first(request):
            return False
        self._early[key] = [request]
        self.loop.call_later(FIRST_SAMPLE_WAIT, self._let_through, key)
        self._start_sample()
        return True

    def _let_through(self, key: tuple[int, str]) -> None:
        for request in self._early.pop(key, ()):
            self.dispatch(request)

    def _start_sample(self) -> None:
        if not self._sampling:
            self._sampling = True
            before = (self._meter.recorded(), list(self._early), self._client_pids())
            threading.Thread(target=self._sample, args=before, daemon=True).start()

    def _client_pids(self) -> set[int]:
        return {connection.peer.pid for connection in self._clients.values()}

    def _sample(self, recorded: Recorded, waiting: list[tuple[int, str]], clients: set[int]) -> None:
        """In a thread of its own: NVML may take its time, or never answer."""
        taken = self._source.process_memory()
        looks = self._outsiders.looks(taken, clients)
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self.loop.call_soon_threadsafe(self._sampled, recorded, taken, looks, waiting)

    def _sampled(
        self, recorded: Recorded, taken: ProcessMemory, looks: dict[int, Look], waiting: list[tuple[int, str]]
    ) -> None:
        self._sampling = False

        def pid_of(client: int) -> int:
            connection = self._clients.get(client)
            return connection.peer.pid if connection is not None else 0

        for measured in list(self._meter.measured(self.now(), recorded, taken, pid_of)):
            self.dispatch(measured)
        for seen in list(self._outsiders.seen(self.now(), taken, looks, self._client_pids())):
            self.dispatch(seen)
        for key in waiting:
            self._let_through(key)
        if self._early:  # they came while the sample was taken
            self._start_sample()

    # --- control

    def answer_control(self, connection: ClientConnection, body: bytes) -> None:
        """Answer one control request."""
        if connection.awaits_lease:
            connection.refuse("one request at a time: this connection waits for its lease")
            return
        try:
            request = control.parse(body)
            if request["op"] == "status":
                self._ask_status(connection)
                return
            if request["op"] == "lease":
                self._leases.ask(connection, request)
                return
            if request["op"] == "pods":
                self.operators.require(connection)
                self._pods.ask(connection, request)
                return
            if request["op"] != "run":
                self.operators.answer(connection, request)
                return
            answer = control.reply(**self._run(connection, request))
        except control.ControlError as error:
            answer = control.refusal(error)
        connection.send(wire.ControlReply(answer))

    def _ask_status(self, connection: ClientConnection) -> None:
        """Snapshots of a full node cost milliseconds: all who ask while one may not be taken yet share the next."""
        connection.wait_for_reply()
        self._asked_status.append(connection)
        if len(self._asked_status) == 1:
            self.loop.call_at(self._status_again, self._take_status)

    def _take_status(self) -> None:
        asked, self._asked_status = self._asked_status, []
        started = self.loop.time()
        snapshot = self._core.snapshot(self.now())
        self._status_again = self.loop.time() + (self.loop.time() - started) / STATUS_SHARE
        threading.Thread(target=self._write_status, args=(snapshot, asked), daemon=True).start()

    def _write_status(self, snapshot: Snapshot, asked: list[ClientConnection]) -> None:
        """In a thread of its own: turning a snapshot into text takes longer than taking it."""
        about = {**self._about, "pod_watch": self._pods.watched}
        answer = control.status_reply({**snapshot.to_dict(), "scheduler": about})
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self.loop.call_soon_threadsafe(self._tell_status, answer, asked)

    def _tell_status(self, answer: bytes, asked: list[ClientConnection]) -> None:
        for connection in asked:
            connection.send(wire.ControlReply(answer))
            connection.continue_reading()

    def holder_of(self, group: str) -> ClientConnection | None:
        """The connection of the process that a run, a lease or a process outside of both is known by."""
        kind, _, name = group.partition(":")
        if kind == "run":
            return self._run_owners.get(int(name))
        if kind == "lease":
            return self._leases.holder(name)
        return next((connection for connection in self._clients.values() if connection.group == group), None)

    def group_of(self, target: control.Target) -> str:
        """Whose quotas are meant; ``ControlError`` when nobody there is."""
        if target.kind == "run":
            return self._run_named(target)
        if target.kind == "lease":
            return self._leases.group_named(target.value)
        known_pod = self._pods.group_named(target.value) if target.kind == "pod" else None
        if known_pod is not None:
            return known_pod
        for client, connection in self._clients.items():
            claimed = "" if self._pods.knows(connection.group) else connection.pod_name
            names = {"client": f"{client:016x}", "pid": str(connection.peer.pid), "pod": claimed}
            if names.get(target.kind) == target.value:
                return connection.group
        raise control.ControlError(f"there is no {target}; nvsharectl status shows who is there")

    def _run_named(self, target: control.Target) -> str:
        """A run by its number, a lease by its own, or either by its name where only one has it."""
        if target.value.isdecimal() and int(target.value) in self._runs:
            return self.group_around(tuple(identity.ancestry(int(target.value))))
        known = self._core.snapshot(self.now()).to_dict()["groups"]
        owners = [entry for entry in known if entry["id"].startswith(("run:", "lease:"))]
        groups = [one["id"] for one in owners if target.value in (one["label"], one["id"].removeprefix("lease:"))]
        if len(groups) > 1:
            numbers = ", ".join(sorted(group.partition(":")[2] for group in groups)[:8])
            raise control.ControlError(f"{len(groups)} are called {target.value}: name one by its number ({numbers})")
        if not groups:
            raise control.ControlError(f"there is no {target}; nvsharectl status shows who is there")
        number = groups[0].removeprefix("run:")
        return self.group_around(tuple(identity.ancestry(int(number)))) if number.isdecimal() else groups[0]

    def _run(self, connection: ClientConnection, request: control.Request) -> dict[str, Any]:
        """Open a group for the descendants of the caller; it lives as long as this connection."""
        pid = connection.peer.pid
        if not pid:
            raise control.ControlError("the scheduler cannot see the process that asks (another pid namespace)")
        if connection.owned_run is not None:
            raise control.ControlError("this connection has opened a run already")
        event = control.run_opened(self.now(), f"run:{pid}", request)
        earlier = self._run_owners.get(pid)
        if earlier is not None:
            earlier.hang_up()  # the same process came back before we saw its old connection end
        if not connection.watch_process():
            return {}
        connection.owned_run = pid
        self._run_owners[pid] = connection
        self._runs[pid] = event.group
        self.dispatch(event)
        self.operators.appeared(event.group, pid)
        self.regroup(pid)
        around = self.group_around(tuple(identity.ancestry(pid)))
        inside = around.removeprefix("run:") if around != event.group else None
        return {"run": str(pid), "inside": inside}

    def group_above(self, pid: int) -> str:
        """The group that processes below this one belong to: its pod, else as ``group_around``."""
        pod = self._pod_of(pid)
        return f"pod:{pod}" if pod is not None else self.group_around(tuple(identity.ancestry(pid)))

    def _pod_of(self, pid: int) -> str | None:
        """A scheduler inside a pod that serves that pod: everybody is in it, so it tells nobody apart."""
        pod = self._kernel_pod_of(pid)
        return None if pod == self._own_pod else pod

    def group_around(self, run_and_ancestors: tuple[int, ...]) -> str:
        """The group that the processes of a run belong to: that of the outermost run it is in."""
        return identity.group_of(run_and_ancestors, None, self._runs, 0)

    def regroup(self, run_pid: int) -> None:
        """Clients that registered before their run or lease came back (after our restart) register again."""
        for connection in list(self._clients.values()):
            if connection.group.startswith("pod:") or run_pid not in connection.ancestors:
                continue
            group = self._leases.group_of(self.group_around(connection.ancestors), connection.peer.pid)
            if connection.group != group:
                connection.hang_up()


class _Stopped:
    """Stands in for the core while connections are closed at the end: nobody is left to be told anything."""

    settings = Settings()

    def handle(self, event: events.Event) -> list[commands.Command]:
        return []

    def snapshot(self, now: float) -> Snapshot:
        raise RuntimeError("the scheduler has stopped")

    def why_unchanged(self, event: events.SettingsChanged) -> str | None:
        return "the scheduler has stopped"

    def has_group(self, name: str) -> bool:
        return False

    def share(self, group: str, gpu: str) -> Share | None:
        return None


def about(socket_path: str) -> dict[str, Any]:
    """Who this scheduler is, for ``status`` and for a second scheduler that wants the same cards."""
    return {"release": __version__, "pid": os.getpid(), "uid": os.getuid(), "socket": socket_path}
