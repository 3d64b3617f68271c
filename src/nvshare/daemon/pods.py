"""The pods of this node, as the watcher of the Kubernetes API tells of them: their names and their quotas.

A message may tell of many pods. It is carried out in small steps with everything else in between, so that no number of
pods delays a decision; the answer comes after the last step.

Where there is or was a watcher, a process of a pod that it has not told of yet waits a moment for it, so that its quota
holds from the beginning. What was told is kept in a file too: a scheduler that is started anew knows it at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvshare.core import events
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
UNKNOWN_WAIT = 1.5  # seconds that a process waits until its pod is told of; the library gives up after two
SAVE_PERIOD = 1.0  # seconds between two looks at whether there is something new to keep
_UID = re.compile(r"[0-9a-f-]{1,64}")
_NAME = re.compile(r"[a-z0-9.-]{1,253}")  # of pods and of namespaces


@dataclass(frozen=True)
class Pod:
    uid: str
    namespace: str
    name: str
    gpumem: int | None
    mem: int | None
    cores: int | None
    keep: frozenset[str] = field(default_factory=frozenset)  # quotas not known now: they stay as they are

    @property
    def group(self) -> str:
        return f"pod:{self.uid}"

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    def seen(self, now: float) -> events.PodSeen:
        return events.PodSeen(now, self.group, self.namespace, self.name, self.gpumem, self.mem, self.cores)

    def after(self, before: Pod | None) -> Pod:
        """With what was known before in place of what is not known now."""
        if not self.keep:
            return self
        mem = self.mem if before is None or "mem" not in self.keep else before.mem
        cores = self.cores if before is None or "cores" not in self.keep else before.cores
        return replace(self, mem=mem, cores=cores, keep=frozenset())

    def line(self) -> str:
        """Of the file: as it is told."""
        return json.dumps({name: value for name, value in vars(self).items() if name != "keep"}) + "\n"


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


def _pod(entry: Any) -> Pod:
    if not isinstance(entry, dict):
        raise control.ControlError("a pod is a JSON object")
    return Pod(
        _text(entry, "uid", _UID),
        _text(entry, "namespace", _NAME),
        _text(entry, "name", _NAME),
        control.memory(entry, "gpumem"),
        control.memory(entry, "mem"),
        control.cores(entry),
        frozenset({"mem", "cores"} - entry.keys()),
    )


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
        self._named: dict[str, str] = {}  # namespace/name -> uid
        self._lines: dict[str, str] = {}  # of the file, by uid
        self._watchers: set[ClientConnection] = set()  # those who have told of all pods
        self._is_watched = False  # now, or it was before: then a watcher will come back
        self._awaited: dict[str, list[Callable[[], None]]] = {}  # uid -> who waits for it
        what = "what is known of pods"
        self._file = KeptFile(daemon.loop, file, "pods", what, lambda: list(self._lines.values()), SAVE_PERIOD)
        known = self._file.load(_pod)
        self._is_watched = known is not None
        for pod in (known or [])[:MAX_PODS]:
            self._see(pod)

    def close(self) -> None:
        self._file.close()

    def knows(self, group: str) -> bool:
        """Whether this group is a pod whose name the API told: what its clients say of it does not count."""
        return group.removeprefix("pod:") in self._known

    @property
    def watched(self) -> bool:
        """Whether somebody is there who has told of all pods and goes on to do so."""
        return bool(self._watchers)

    def group_named(self, title: str) -> str | None:
        """The group of the pod that the API calls ``namespace/name``."""
        uid = self._named.get(title)
        return None if uid is None else f"pod:{uid}"

    def when_known(self, uid: str | None, proceed: Callable[[], None]) -> bool:
        """Call ``proceed`` when this pod has been told of, or will not be; False: there is nothing to wait for."""
        if uid is None or uid in self._known or not self._is_watched:
            return False
        self._awaited.setdefault(uid, []).append(proceed)
        self._daemon.loop.call_later(UNKNOWN_WAIT, self._wait_no_more, uid, proceed)
        return True

    def _wait_no_more(self, uid: str, proceed: Callable[[], None]) -> None:
        waiting = self._awaited.get(uid, [])
        if proceed in waiting:
            waiting.remove(proceed)
            if not waiting:
                del self._awaited[uid]
            proceed()

    def ended(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        self._watchers.discard(connection)

    def ask(self, connection: ClientConnection, request: control.Request) -> None:
        """``pods``."""
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
            answer = control.reply(pods=len(self._known))
        except control.ControlError as error:
            answer = control.refusal(error)
        connection.send(wire.ControlReply(answer))
        connection.continue_reading()

    def _steps(self, connection: ClientConnection, update: Update) -> Iterator[None]:
        """Read all of it, then carry it out; only what changed goes to the core."""
        pods: list[Pod] = []
        for number, entry in enumerate(update.entries, start=1):
            pods.append(_pod(entry))
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
        for told in pods:
            pod = told.after(self._known.get(told.uid))
            if self._known.get(pod.uid) != pod:
                self._see(pod)
                self._file.save()
                yield
        if update.whole:
            gone += self._not_listed(connection, pods, update.more)
        for uid in gone:
            if uid in self._known:
                self._forget(self._known.pop(uid))
                self._file.save()
                yield

    def _not_listed(self, connection: ClientConnection, pods: list[Pod], more: bool) -> set[str]:
        """Uids that are in no part of a list that is complete now; none while more is to come."""
        listed = connection.pods_listed = (connection.pods_listed or set()) | {pod.uid for pod in pods}
        if more:
            return set()
        connection.pods_listed = None
        self._is_watched = True
        if not connection.closed:
            self._watchers.add(connection)
        return self._known.keys() - listed

    def _see(self, pod: Pod) -> None:
        self._known[pod.uid] = pod
        self._named[pod.title] = pod.uid
        self._lines[pod.uid] = pod.line()
        self._daemon.dispatch(pod.seen(self._daemon.now()))
        self._daemon.operators.appeared(pod.group)
        for proceed in self._awaited.pop(pod.uid, ()):
            proceed()

    def _forget(self, pod: Pod) -> None:
        if self._named.get(pod.title) == pod.uid:
            del self._named[pod.title]
        del self._lines[pod.uid]
        self._daemon.dispatch(events.GroupClosed(self._daemon.now(), pod.group))
