"""Answers to ``status``, within a bounded part of the scheduler's time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nvshare.core.snapshot import Snapshot
from nvshare.daemon import control
from nvshare.wire import messages as wire

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection
    from nvshare.daemon.server import Daemon

STATUS_SHARE = 0.05  # part of our time that taking snapshots may take


class StatusDesk:
    """Snapshots of a full node cost milliseconds: all who ask while none may be taken share the next one. ``about``
    says who this scheduler is."""

    def __init__(self, daemon: Daemon, about: Callable[[], dict[str, Any]]) -> None:
        self._daemon = daemon
        self._about = about
        self._asked: list[ClientConnection] = []
        self._again = 0.0  # when the next snapshot may be taken

    def ask(self, connection: ClientConnection) -> None:
        connection.wait_for_reply()
        self._asked.append(connection)
        if len(self._asked) == 1:
            self._daemon.loop.call_at(self._again, self._take)

    def _take(self) -> None:
        loop = self._daemon.loop
        asked, self._asked = self._asked, []
        started = loop.time()
        snapshot = self._daemon.core.snapshot(self._daemon.now())
        self._again = loop.time() + (loop.time() - started) / STATUS_SHARE
        threading.Thread(target=self._write, args=(snapshot, self._about(), asked), daemon=True).start()

    def _write(self, snapshot: Snapshot, about: dict[str, Any], asked: list[ClientConnection]) -> None:
        """In a thread of its own: turning a snapshot into text takes longer than taking it."""
        answer = control.status_reply({**snapshot.to_dict(), "scheduler": about})
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self._daemon.loop.call_soon_threadsafe(_tell, answer, asked)


def _tell(answer: bytes, asked: list[ClientConnection]) -> None:
    for connection in asked:
        connection.send(wire.ControlReply(answer))
        connection.continue_reading()
