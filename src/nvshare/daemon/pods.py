"""The pods of this node, as the watcher of the Kubernetes API tells of them: their names and their quotas.

A quota passes three owners. The watcher parses the annotation (``kube/pods/desired.py``). ``_read`` here translates its
request to the core's ``Pod``, which is also what the file beside the socket keeps: a scheduler that is started anew
knows it at once. The core owns the pod's group (``core/limits.py``) and what waits for it (``core/awaited_facts.py``).

A message may tell of many pods. It is carried out in small steps with everything else in between, so that no number of
pods delays a decision; the answer comes after the last step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvshare.core import events
from nvshare.core.events import Pod
from nvshare.core.policy.membership import pod_group
from nvshare.core.settings import Cores
from nvshare.daemon import control
from nvshare.daemon.keptfile import KeptFile
from nvshare.daemon.translate import printable
from nvshare.wire import messages as wire

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection
    from nvshare.daemon.server import Daemon

MAX_PODS = 4096  # known at once; a node has some hundreds at most
READ_PER_STEP = 8
CHANGED_PER_STEP = 2  # some 0.03 ms, or ten times that where they have processes; a step costs the loop half as much
SAVE_PERIOD = 1.0  # seconds between two looks at whether there is something new to keep
_UID = re.compile(r"[0-9a-f-]{1,64}")
_NAME = re.compile(r"[a-z0-9.-]{1,253}")  # of pods and of namespaces


@dataclass(frozen=True)
class Update:
    """``whole``: the pods of this message, and of those before it with ``more``, are all there are."""

    entries: list[Any]  # of pods, not read yet
    gone: list[Any]  # uids, not read yet
    whole: bool
    more: bool


def parse(request: control.Request) -> Update:
    """``pods``; ``ControlError`` says what is allowed."""
    control.only(request, "pods", "gone", "whole", "more")
    pods, gone = request.get("pods", []), request.get("gone", [])
    if not isinstance(pods, list) or not isinstance(gone, list):
        raise control.ControlError("pods and gone are lists")
    whole, more = request.get("whole", False), request.get("more", False)
    if not isinstance(whole, bool) or not isinstance(more, bool):
        raise control.ControlError("whole and more are true or false")
    return Update(pods, gone, whole, more)


def _read(entry: Any) -> Pod:
    """A pod from an entry of a request or of a line of the file. A quota that is absent is None."""
    if not isinstance(entry, dict):
        raise control.ControlError("a pod is a JSON object")
    return Pod(
        _text(entry, "uid", _UID),
        _text(entry, "namespace", _NAME),
        _text(entry, "name", _NAME),
        control.memory(entry, "gpumem"),
        control.memory(entry, "mem"),
        _quota(control.floor(entry), control.cap(entry)),
    )


def _line(pod: Pod) -> str:
    """Of the file: as the pod is told."""
    floor, cap = _parts(pod.cores)
    return json.dumps({**vars(pod), "cores": cap, "core_floor": floor}) + "\n"


def _parts(cores: Cores | None) -> tuple[int | None, int | None]:
    """The floor and the cap, each None where no annotation says it."""
    if cores is None:
        return None, None
    return cores.floor or None, None if cores.floor and cores.cap == Cores().cap else cores.cap


def _quota(floor: int | None, cap: int | None) -> Cores | None:
    """What two annotations come to. A floor above the cap counts as none."""
    if floor is None and cap is None:
        return None
    cap = Cores().cap if cap is None else cap
    return Cores(0 if floor is None or floor > cap else floor, cap)


def _text(entry: dict[str, Any], name: str, form: re.Pattern[str]) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise control.ControlError(f"{printable(repr(value)[:80])} is not the {name} of a pod")
    return value


class PodDesk:
    """Values stay when the watcher goes away; one that comes back tells of all pods again."""

    def __init__(self, daemon: Daemon, file: Path | None) -> None:
        self._daemon = daemon
        self._known: dict[str, Pod] = {}  # by uid
        self._lines: dict[str, str] = {}  # of the file, by uid
        self._watchers: set[ClientConnection] = set()  # those who have told of all pods
        what = "what is known of pods"
        self._file = KeptFile(daemon.loop, file, "pods", what, lambda: list(self._lines.values()), SAVE_PERIOD)
        known = self._file.load(_read)
        for pod in (known or [])[:MAX_PODS]:
            self._see(pod)
        self._listed = known is not None  # there was a watcher: it will come back
        if self._listed:
            daemon.dispatch(events.PodsListed(daemon.now()))

    def close(self) -> None:
        self._file.close()

    @property
    def watched(self) -> bool:
        """Whether somebody is there who has told of all pods and goes on to do so."""
        return bool(self._watchers)

    def ended(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        self._watchers.discard(connection)

    def ask(self, connection: ClientConnection, request: control.Request) -> None:
        """``pods``."""
        self._daemon.operators.require(connection)
        update = parse(request)
        if len(self._known) + len(update.entries) > MAX_PODS:
            raise control.ControlError(f"at most {MAX_PODS} pods of one node are kept")
        connection.wait_for_reply()
        self._daemon.loop.call_later(0, self._step, connection, self._steps(connection, update))

    def _step(self, connection: ClientConnection, steps: Iterator[None]) -> None:
        """Also when the watcher has gone meanwhile: what it said is true."""
        try:
            for _ in steps:
                self._daemon.loop.call_later(0, self._step, connection, steps)
                return
            lack_room = self._lack_room()
            answer = control.reply(pods=len(self._known), **({"lack_room": lack_room} if lack_room else {}))
        except control.ControlError as error:
            answer = control.refusal(error)
        connection.send(wire.ControlReply(answer))
        connection.continue_reading()

    def _lack_room(self) -> dict[str, str]:
        """By uid why a pod is not guaranteed what its annotation asks for."""
        asking = (uid for uid, pod in self._known.items() if pod.cores is not None and pod.cores.floor)
        reasons = ((uid, self._daemon.core.why_without_floor(pod_group(uid))) for uid in asking)
        return {uid: reason for uid, reason in reasons if reason is not None}

    def _steps(self, connection: ClientConnection, update: Update) -> Iterator[None]:
        """Read all of it, then carry it out; only what changed goes to the core."""
        pods: list[Pod] = []
        for number, entry in enumerate(update.entries, start=1):
            pods.append(_read(entry))
            if number % READ_PER_STEP == 0:
                yield
        gone = [_text({"uid": uid}, "uid", _UID) for uid in update.gone]
        for changed, _ in enumerate(self._changes(connection, update, pods, gone), start=1):
            if changed % CHANGED_PER_STEP == 0:
                yield

    def _changes(
        self, connection: ClientConnection, update: Update, pods: list[Pod], gone: list[str]
    ) -> Iterator[None]:
        """Carry them out, one at each step."""
        for entry, told in zip(update.entries, pods, strict=True):
            pod = self._complete(told, entry.keys())
            if self._known.get(pod.uid) != pod:
                self._see(pod)
                self._file.save()
                yield
        if update.whole:
            gone += self._not_listed(connection, pods, update.more)
        for uid in gone:
            if uid in self._known:
                self._forget(uid)
                self._file.save()
                yield

    def _complete(self, told: Pod, names: Collection[str]) -> Pod:
        """With what was known before in place of the quotas that the watcher does not know now, and so leaves out."""
        before = self._known.get(told.uid)
        if before is None:
            return told
        (floor, cap), (floor_before, cap_before) = _parts(told.cores), _parts(before.cores)
        return replace(
            told,
            mem=told.mem if "mem" in names else before.mem,
            cores=_quota(floor if "core_floor" in names else floor_before, cap if "cores" in names else cap_before),
        )

    def _not_listed(self, connection: ClientConnection, pods: list[Pod], more: bool) -> set[str]:
        """Uids that are in no part of a list that is complete now; none while more is to come."""
        listed = connection.pods_listed = (connection.pods_listed or set()) | {pod.uid for pod in pods}
        if more:
            return set()
        connection.pods_listed = None
        if not self._listed:
            self._listed = True
            self._daemon.dispatch(events.PodsListed(self._daemon.now()))
        if not connection.closed:
            self._watchers.add(connection)
        return self._known.keys() - listed

    def _see(self, pod: Pod) -> None:
        self._known[pod.uid] = pod
        self._lines[pod.uid] = _line(pod)
        self._daemon.dispatch(events.PodSeen(self._daemon.now(), pod))

    def _forget(self, uid: str) -> None:
        del self._known[uid], self._lines[uid]
        self._daemon.dispatch(events.PodGone(self._daemon.now(), uid))
