"""Tell the scheduler of the pods: all of them on every new connection, then what changed, a few times a second.

Values stay in the scheduler while we are away; when it was restarted we tell it everything again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nvshare.client.connection import Connection, RequestRefused, SchedulerError
from nvshare.kube.pods.desired import Wanted
from nvshare.wire.messages import MAX_REQUEST

_LOG = logging.getLogger("nvshare")

PERIOD = 0.25  # seconds between two messages
ENTRIES = 400  # pods of one message
_GONE = 200  # pods of one message that are no more
_ROOM = MAX_REQUEST - 80 * _GONE  # bytes of its entries
_PATIENCE = 10.0  # seconds for an answer
_RETRY = (0.05, 1.0)  # seconds until a scheduler that is not there is looked for again: at first, at most
_REFUSED = 5.0  # the same after it said no
_LOOK = 5.0  # seconds between two questions whether all pods have their floors, while some have one

Message = dict[str, Any]
Snapshot = Callable[[], "Mapping[str, Wanted] | None"]
LacksRoom = Callable[[str, str], None]  # hears the uid of a pod without its floor, and why


class Told:
    """What the scheduler knows from this connection; pure."""

    def __init__(self) -> None:
        self._told: dict[str, Wanted] | None = None  # None: nothing yet; by when it was told, oldest first

    def next_messages(self, wanted: Mapping[str, Wanted]) -> Iterator[Message]:
        """The whole list, in parts, when it knows nothing; else one message with what changed, if anything did.

        Those who use a GPU come first, and among them those of whom it has not been told for longest.
        """
        if self._told is None:
            yield from self._whole(wanted)
            return
        told = self._told
        new = [one for uid, one in wanted.items() if uid not in told]
        changed = [wanted[uid] for uid, before in told.items() if uid in wanted and wanted[uid] != before]
        gone = [uid for uid in told if uid not in wanted][:_GONE]
        if new or changed or gone:
            part = next(_parts(_gpus_first([*new, *changed])), [])
            yield {"pods": [one.entry() for one in part], "gone": gone}
            for uid in (*gone, *(one.uid for one in part)):
                told.pop(uid, None)
            told.update({one.uid: one for one in part})

    def _whole(self, wanted: Mapping[str, Wanted]) -> Iterator[Message]:
        told: dict[str, Wanted] = {}
        parts = list(_parts(_gpus_first(wanted.values()))) or [[]]
        for number, part in enumerate(parts, start=1):
            yield {"pods": [one.entry() for one in part], "whole": True, "more": number < len(parts)}
            told.update({one.uid: one for one in part})
        self._told = told


def _gpus_first(pods: Iterable[Wanted]) -> list[Wanted]:
    return sorted(pods, key=lambda one: not one.uses_gpu)


def _parts(pods: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    """As many at a time as a message has room for."""
    part: list[Wanted] = []
    size = 0
    for one in pods:
        length = len(json.dumps(one.entry())) + 2
        if part and (len(part) == ENTRIES or size + length > _ROOM):
            yield part
            part, size = [], 0
        part.append(one)
        size += length
    if part:
        yield part


class Applier:
    """``run`` never returns, unless ``ended`` says so. ``wake`` may be called from any thread. ``lacks_room`` hears of
    pods whose floors are not in force, as often as the scheduler says so."""

    def __init__(self, socket: Path, ended: Callable[[], bool] = lambda: False) -> None:
        self._socket = socket
        self._ended = ended
        self.lacks_room: LacksRoom = lambda uid, reason: None
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        self._retry = _RETRY[0]
        self._problem = ""

    def close(self) -> None:
        os.close(self._woken)
        os.close(self._waker)

    def wake(self) -> None:
        """Something changed, or the end has come."""
        with contextlib.suppress(BlockingIOError):  # it has been told often enough
            os.write(self._waker, b"x")

    def run(self, snapshot: Snapshot) -> None:
        """``snapshot`` is what the pods should have; None: not known yet."""
        while not self._ended():
            if snapshot() is None:
                self._wait(None)
                continue
            try:
                with Connection(self._socket, _PATIENCE) as connection:
                    self._serve(connection, snapshot)
            except RequestRefused as error:
                self._report(f"The scheduler does not take what it is told of pods: {error}")
                self._wait(_REFUSED)
            except SchedulerError as error:
                self._report(str(error))
                self._wait(self._retry)
                self._retry = min(_RETRY[1], 2 * self._retry)

    def _serve(self, connection: Connection, snapshot: Snapshot) -> None:
        """Until the scheduler goes away."""
        told = Told()
        while not self._ended():
            quiet = True
            for message in told.next_messages(snapshot() or {}):
                began = time.monotonic()
                self._tell(connection, message)
                self._well()
                quiet = False
                self._pace(began)
            if not quiet:
                continue
            floors = any(one.floor is not None for one in (snapshot() or {}).values())
            if self._wait(_LOOK if floors else None, connection):
                return
            if floors:
                self._tell(connection, {})

    def _tell(self, connection: Connection, message: Message) -> None:
        answer = connection.request("pods", **message)
        for uid, reason in answer.get("lack_room", {}).items():
            self.lacks_room(uid, reason)

    def _pace(self, since: float) -> None:
        left = since + PERIOD - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _wait(self, seconds: float | None, connection: Connection | None = None) -> bool:
        """For something to do; True: the scheduler hung up."""
        ready, _, _ = select.select([self._woken, *([connection] if connection else ())], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._woken, 4096):
                pass
        return connection in ready

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            _LOG.warning("%s", problem)
        self._problem = problem

    def _well(self) -> None:
        self._retry = _RETRY[0]
        if self._problem:
            _LOG.info("The scheduler takes what it is told of pods again")
        self._problem = ""
