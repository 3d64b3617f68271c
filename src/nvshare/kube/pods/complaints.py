"""Values that cannot be used, told to the owners of the pods: a line in the log and an Event, once per value."""

from __future__ import annotations

import hashlib
import logging
import queue
import time
from collections.abc import Callable
from datetime import datetime, timezone

from nvshare.kube.pods.api import TROUBLE, Api, ApiError, Object
from nvshare.kube.pods.desired import Complaint
from nvshare.kube.pods.watch import Backoff

_LOG = logging.getLogger("nvshare")

REASON = "InvalidQuota"
COMPONENT = "nvshare-pod-watch"
MAX_WAITING = 1000  # complaints; what comes beyond is in the log only
MAX_REMEMBERED = 10_000
_TRIES = 20  # about a minute and a half
_MAX_MESSAGE = 1000  # characters; the API takes 1024


class Complaints:
    """``run`` posts what ``complain`` was told, in a thread of its own: a slow API keeps nobody else waiting."""

    def __init__(self, api: Api, node: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api = api
        self._node = node
        self._sleep = sleep
        self._seen: dict[tuple[str, ...], None] = {}  # oldest first
        self._waiting: queue.Queue[Complaint | None] = queue.Queue(MAX_WAITING)

    def complain(self, complaint: Complaint) -> None:
        said = (complaint.namespace, complaint.name, complaint.uid, complaint.annotation, complaint.value)
        if said in self._seen:
            return
        self._seen[said] = None
        if len(self._seen) > MAX_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        _LOG.warning("Pod %s/%s: %s", complaint.namespace, complaint.name, complaint.text)
        try:
            self._waiting.put_nowait(complaint)
        except queue.Full:
            _LOG.debug("No event for pod %s/%s: too many wait", complaint.namespace, complaint.name)

    def run(self) -> None:
        while (complaint := self._waiting.get()) is not None:
            self._post(complaint)

    def end(self) -> None:
        """``run`` returns when all that waits is posted."""
        self._waiting.put(None)

    def _post(self, complaint: Complaint) -> None:
        backoff = Backoff()
        path = f"/api/v1/namespaces/{complaint.namespace}/events"
        for _ in range(_TRIES):
            try:
                self._api.post(path, event(complaint, self._node, datetime.now(timezone.utc)))
                return
            except TROUBLE as error:
                code = error.code if isinstance(error, ApiError) else 0
                if code == 409:
                    return  # it was said before we were restarted
                if 400 <= code < 500 and code != 429:
                    _LOG.warning("No event for pod %s/%s: %s", complaint.namespace, complaint.name, error)
                    return
                self._sleep(backoff.pause())
        _LOG.warning("No event for pod %s/%s: the API server does not answer", complaint.namespace, complaint.name)


def event(complaint: Complaint, node: str, now: datetime) -> Object:
    """The Event; its name follows from what it says, so that the same is never said twice."""
    said = "\n".join((complaint.uid, complaint.annotation, complaint.value))
    digest = hashlib.sha256(said.encode(errors="replace")).hexdigest()[:16]
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{complaint.name[:200].rstrip('.-')}.{digest}", "namespace": complaint.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": complaint.namespace,
            "name": complaint.name,
            "uid": complaint.uid,
        },
        "type": "Warning",
        "reason": REASON,
        "message": complaint.text[:_MAX_MESSAGE],
        "count": 1,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    }
