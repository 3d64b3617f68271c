"""The pods of this node, as the watcher of the Kubernetes API tells of them: their names and their quotas.

A message may tell of many pods. It is carried out in small steps with everything else in between, so that no number of
pods delays a decision; the answer comes after the last step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nvshare.core import events
from nvshare.daemon import control
from nvshare.daemon.translate import printable
from nvshare.wire import messages as wire

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection
    from nvshare.daemon.server import Daemon

MAX_PODS = 4096  # known at once; a node has some hundreds at most
PODS_PER_STEP = 4
_UID = re.compile(r"[0-9a-f-]{1,64}")
_NAME = re.compile(r"[a-z0-9.-]{1,253}")  # of pods and of namespaces
_QUOTAS = {"mem": "mem_limit", "cores": "core_limit"}


@dataclass(frozen=True)
class Pod:
    uid: str
    namespace: str
    name: str
    gpumem: int | None
    mem: int | None
    cores: int | None
    keep: frozenset[str]  # quotas that are not known now and stay as they are

    @property
    def group(self) -> str:
        return f"pod:{self.uid}"

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    def seen(self, now: float) -> events.PodSeen:
        return events.PodSeen(
            now, self.group, self.namespace, self.name, self.gpumem, self.mem, self.cores, keep=self.keep
        )


@dataclass(frozen=True)
class Update:
    """``whole``: the pods of this message, and of those before it with ``more``, are all there are."""

    pods: tuple[Pod, ...]
    gone: tuple[str, ...]
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
    return Update(tuple(map(_pod, pods)), tuple(_text({"uid": uid}, "uid", _UID) for uid in gone), whole, more)


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
        frozenset(field for name, field in _QUOTAS.items() if name not in entry),
    )


def _text(entry: dict[str, Any], name: str, form: re.Pattern[str]) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise control.ControlError(f"{printable(repr(value)[:80])} is not the {name} of a pod")
    return value


class PodDesk:
    """Values stay when the watcher goes away; one that comes back tells of all pods again."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._known: dict[str, Pod] = {}  # by uid
        self._named: dict[str, str] = {}  # namespace/name -> uid

    def knows(self, group: str) -> bool:
        """Whether this group is a pod whose name the API told: what its clients say of it does not count."""
        return group.removeprefix("pod:") in self._known

    def group_named(self, title: str) -> str | None:
        """The group of the pod that the API calls ``namespace/name``."""
        uid = self._named.get(title)
        return None if uid is None else f"pod:{uid}"

    def ask(self, connection: ClientConnection, request: control.Request) -> None:
        """``pods``."""
        update = parse(request)
        if len(self._known) + len(update.pods) > MAX_PODS:
            raise control.ControlError(f"at most {MAX_PODS} pods of one node are kept")
        if update.whole:
            connection.pods_listed = (connection.pods_listed or set()) | {pod.uid for pod in update.pods}
        connection.wait_for_reply()
        self._step(connection, self._steps(connection, update))

    def _step(self, connection: ClientConnection, steps: Iterator[None]) -> None:
        """Also when the watcher has gone meanwhile: what it said is true."""
        for _ in steps:
            self._daemon.loop.call_later(0, self._step, connection, steps)
            return
        connection.send(wire.ControlReply(control.reply(pods=len(self._known))))
        connection.continue_reading()

    def _steps(self, connection: ClientConnection, update: Update) -> Iterator[None]:
        """Only what changed goes to the core."""
        changes = 0
        for pod in update.pods:
            if self._known.get(pod.uid) != pod:
                self._see(pod)
                changes += 1
                if changes % PODS_PER_STEP == 0:
                    yield
        gone = list(update.gone)
        if update.whole and not update.more:
            listed, connection.pods_listed = connection.pods_listed or set(), None
            gone += self._known.keys() - listed
        for uid in gone:
            if uid in self._known:
                self._forget(self._known.pop(uid))
                changes += 1
                if changes % PODS_PER_STEP == 0:
                    yield

    def _see(self, pod: Pod) -> None:
        self._known[pod.uid] = pod
        self._named[pod.title] = pod.uid
        self._daemon.dispatch(pod.seen(self._daemon.now()))

    def _forget(self, pod: Pod) -> None:
        if self._named.get(pod.title) == pod.uid:
            del self._named[pod.title]
        self._daemon.dispatch(events.GroupClosed(self._daemon.now(), pod.group))
