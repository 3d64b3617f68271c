"""What the pods of this node should have, as far as is known: filled by the watch, read by who tells the scheduler."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from nvshare.kube.pods.api import Object
from nvshare.kube.pods.desired import Complaint, NotAPod, Wanted, desired, is_finished, uid_of, without_room

_LOG = logging.getLogger("nvshare")


class Store:
    """``changed`` is called after every change, ``complain`` with every value that cannot be used."""

    def __init__(self, changed: Callable[[], None], complain: Callable[[Complaint], None]) -> None:
        self._changed = changed
        self._complain = complain
        self._lock = threading.Lock()
        self._wanted: dict[str, Wanted] = {}
        self._listed = False

    def snapshot(self) -> dict[str, Wanted] | None:
        """By uid; None: the pods were never listed."""
        with self._lock:
            return dict(self._wanted) if self._listed else None

    def replace(self, pods: Iterable[Object]) -> None:
        before = self._wanted
        wanted = {one.uid: one for pod in pods if (one := self._read(pod, before)) is not None}
        with self._lock:
            self._wanted, self._listed = wanted, True
        self._changed()

    def put(self, pod: Object) -> None:
        wanted = self._read(pod, self._wanted)
        if wanted is None:
            self.remove(pod)
        elif self._wanted.get(wanted.uid) != wanted:
            with self._lock:
                self._wanted[wanted.uid] = wanted
            self._changed()

    def lacks_room(self, uid: str, reason: str) -> None:
        """The scheduler cannot guarantee this pod what it asks for."""
        wanted = self._wanted.get(uid)
        if wanted is not None:
            self._complain(without_room(wanted, reason))

    def remove(self, pod: Object) -> None:
        try:
            uid = uid_of(pod)
        except NotAPod:
            return
        with self._lock:
            known = self._wanted.pop(uid, None)
        if known is not None:
            self._changed()

    def _read(self, pod: Object, before: dict[str, Wanted]) -> Wanted | None:
        """None: it is of no interest."""
        if is_finished(pod):
            return None
        try:
            wanted, complaints = desired(pod, before.get(uid_of(pod)))
        except NotAPod as error:
            _LOG.warning("Ignored what the API server sent: %s", error)
            return None
        for complaint in complaints:
            self._complain(complaint)
        return wanted
