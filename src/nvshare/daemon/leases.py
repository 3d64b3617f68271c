"""Leases as connections hold them: asked for on a control connection, held while it lives, ended when nothing is left.

The core places them and says who belongs to them. Here is what only the kernel and NVML know: whether the processes of
a lease and their contexts are gone.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvshare import procfs
from nvshare.core import commands, events
from nvshare.core.policy.membership import lease_group
from nvshare.daemon import control
from nvshare.wire import messages as wire

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection
    from nvshare.daemon.server import Daemon

_LOG = logging.getLogger("nvshare")

FIRST_LOOK = 0.05  # seconds until what is left of a lease is looked at again, doubled each time
LONGEST_LOOK = 1.0


class LeaseDesk:
    """``marker`` is a file that is there while leases are held: who starts and finds it waits for their holders."""

    def __init__(self, daemon: Daemon, marker: Path | None) -> None:
        self._daemon = daemon
        self._marker = marker
        self._asked: dict[str, ClientConnection] = {}  # waiting or held
        self._members: dict[str, dict[int, int]] = {}  # group -> its processes on cards: number -> start time
        self._ending: dict[str, dict[int, int]] = {}  # lease -> the same, of those whose holder is gone
        self._awaits_holders = marker is not None and marker.exists()
        self._next_look = FIRST_LOOK
        self._looking = False
        self._closed = False

    def start(self) -> None:
        if self._awaits_holders:
            self._daemon.dispatch(events.LeasesAwaited(self._daemon.now()))

    def close(self) -> None:
        """Those who hold leases will ask the next scheduler for them."""
        self._closed = True

    # --- asking

    def ask(self, connection: ClientConnection, request: control.Request) -> None:
        """``lease``; the reply comes when it can be granted, or with the reason why it never can."""
        peer = connection.peer
        if not peer.pid:
            raise control.ControlError("the scheduler cannot see the process that asks (another pid namespace)")
        if connection.owned_lease is not None:
            raise control.ControlError("this connection has a lease already")
        again = control.lease_again(request)
        lease = secrets.token_hex(8) if again is None else again[0]
        event = control.lease_requested(self._daemon.now(), lease, self._daemon.process(peer.pid), request)
        earlier = self._asked.get(lease)
        if earlier is not None and earlier.peer == peer:
            earlier.hang_up()  # the same process came back before we saw its old connection end
        elif earlier is not None or lease in self._ending:
            raise control.ControlError(f"lease {lease} is not free")
        if not connection.watch_process():
            return
        connection.owned_lease = lease
        connection.awaits_lease = True
        self._asked[lease] = connection
        self._daemon.dispatch(event)

    def await_no_more(self, command: commands.LeasesAwaitedNoMore) -> None:
        """From now on the marker says whether leases are held."""
        self._awaits_holders = False
        self._mark()

    def answer(self, command: commands.LeaseGranted | commands.LeaseRefused) -> None:
        """Carry out the core's answer."""
        connection = self._asked.get(command.lease)
        if connection is None:
            return
        connection.awaits_lease = False
        if isinstance(command, commands.LeaseRefused):
            connection.owned_lease = None
            del self._asked[command.lease]
            connection.send(wire.ControlReply(control.refusal(control.ControlError(command.reason))))
            return
        self._members[command.group] = {}
        self._mark()
        answer: dict[str, Any] = {"lease": command.lease, "gpus": list(command.gpus), "inside": command.inside}
        connection.send(wire.ControlReply(control.reply(**answer)))

    def holder(self, lease: str) -> ClientConnection | None:
        """The connection that holds a lease, or waits for it."""
        return self._asked.get(lease)

    def joined(self, group: str, pid: int) -> None:
        """A process of this group is on a card."""
        members = self._members.get(group)
        if members is not None:
            members[pid] = procfs.start_time(pid)

    # --- ending

    def ended(self, connection: ClientConnection) -> None:
        """The connection of a lease is gone."""
        lease = connection.owned_lease
        if lease is None or self._closed:
            return
        del self._asked[lease]
        members = self._members.pop(lease_group(lease), {})
        if members:
            self._ending[lease] = members
            self._daemon.dispatch(events.LeaseReleased(self._daemon.now(), lease, _left(members)))
            self._next_look = FIRST_LOOK
            self._look()
        else:
            self._daemon.dispatch(events.LeaseReleased(self._daemon.now(), lease))
        self._mark()

    def _look(self) -> None:
        if self._ending and not self._looking and not self._closed:
            self._looking = True
            threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        """In a thread of its own: NVML may take its time."""
        taken = self._daemon.source.process_memory()
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self._daemon.loop.call_soon_threadsafe(self._looked, {pid for _, pid in taken})

    def _looked(self, on_cards: set[int]) -> None:
        self._looking = False
        for lease, members in list(self._ending.items()):
            here = {pid: started for pid, started in members.items() if pid in on_cards or _lives(pid, started)}
            self._ending[lease] = here
            if not here:
                del self._ending[lease]
            self._daemon.dispatch(events.LeaseReleased(self._daemon.now(), lease, _left(here)))
        if self._ending:
            self._daemon.loop.call_later(self._next_look, self._look)
            self._next_look = min(LONGEST_LOOK, 2 * self._next_look)

    def _mark(self) -> None:
        if self._marker is None or self._awaits_holders:
            return
        with contextlib.suppress(OSError):  # without it a restart serves newcomers at once, no more
            if self._members:
                self._marker.touch()
            else:
                self._marker.unlink(missing_ok=True)


def _lives(pid: int, started: int) -> bool:
    return bool(started) and procfs.start_time(pid) == started


def _left(members: dict[int, int]) -> str:
    if not members:
        return ""
    named = ", ".join(map(str, sorted(members)[:8])) + (", …" if len(members) > 8 else "")
    return f"process {named} has not left the GPU" if len(members) == 1 else f"processes {named} have not left the GPU"
