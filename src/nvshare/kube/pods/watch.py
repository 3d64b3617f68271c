"""List the pods of this node, then watch them, for ever: what changed goes to a sink.

A version of the list that is too old (410) is followed by a new list; a stream that drops by another watch from where
it was; anything else by a pause that grows to 5 s. While the API is away nothing changes.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from nvshare.kube.pods.api import TROUBLE, Api, ApiError, Object

_LOG = logging.getLogger("nvshare")

PODS = "/api/v1/pods"
PAGE = 250  # pods of one answer
LONGEST_WATCH = 60  # seconds after which the server ends a stream; another takes over from there
SILENCE = LONGEST_WATCH + 10.0  # seconds without a byte after which we do
SHORT = 1.0  # seconds; streams that end sooner are trouble
PATIENCE = 3  # watches that the server refuses in a row before everything is listed again
_GONE = 410


class Sink(Protocol):
    def replace(self, pods: Iterable[Object]) -> None:
        """These are all pods there are."""

    def put(self, pod: Object) -> None: ...

    def remove(self, pod: Object) -> None: ...


class Backoff:
    """Pauses that double up to a bound, each with some luck in it so that a thousand nodes do not come at once."""

    FIRST, LONGEST = 0.1, 5.0

    def __init__(self, luck: Callable[[], float] = random.random) -> None:
        self._luck = luck
        self._next = self.FIRST

    def pause(self) -> float:
        longest, self._next = self._next, min(self.LONGEST, 2 * self._next)
        return longest * (1 + self._luck()) / 2

    def reset(self) -> None:
        self._next = self.FIRST


class Expired(Exception):
    """The version that a watch began with is too old."""


class PodWatch:
    """``run`` never returns, unless ``ended`` says so."""

    def __init__(
        self,
        api: Api,
        node: str,
        sink: Sink,
        sleep: Callable[[float], None] = time.sleep,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._api = api
        self._sink = sink
        self._sleep = sleep
        self._ended = ended
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._version: str | None = None  # of what the sink knows; None: it has to be listed
        self._failing = False
        self._refused = 0  # in a row
        self._backoff = Backoff()

    def run(self) -> None:
        while not self._ended():
            try:
                if self._version is None:
                    self._list()
                self._watch()
            except Expired:
                _LOG.debug("The watch of pods is out of date: listing them again")
                self._version = None
            except TROUBLE as error:
                self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        if not self._failing:
            hint = ""
            if isinstance(error, ApiError) and error.code in (401, 403):
                hint = "; the service account needs to list and watch pods"
            _LOG.warning("The API server does not answer (%s)%s: quotas stay as they are, trying on", error, hint)
        self._failing = True
        self._refused += isinstance(error, ApiError)
        if self._refused >= PATIENCE:
            self._refused, self._version = 0, None
        self._sleep(self._backoff.pause())

    def _well(self) -> None:
        if self._failing:
            _LOG.info("The API server answers again")
        self._failing = False

    def _list(self) -> None:
        pods: list[Object] = []
        query = {**self._query, "limit": str(PAGE)}
        while True:
            try:
                page = self._api.get(PODS, query)
            except ApiError as error:
                if error.code == _GONE and "continue" in query:
                    raise Expired from None  # a page of a list that is too old by now
                raise
            items = page.get("items")
            pods += (one for one in items if isinstance(one, dict)) if isinstance(items, list) else ()
            metadata = _metadata(page)
            if not metadata.get("continue"):
                break
            query["continue"] = str(metadata["continue"])
        version = metadata.get("resourceVersion")
        if not isinstance(version, str):
            raise ApiError("a list without a version")
        self._sink.replace(pods)
        self._version = version
        self._well()
        self._backoff.reset()

    def _watch(self) -> None:
        began = time.monotonic()
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(LONGEST_WATCH),
        }
        try:
            for event in self._api.stream(PODS, query, SILENCE, self._well):
                self._take(event)
                self._refused = 0
                self._backoff.reset()
                if self._ended():
                    return
        except ApiError as error:
            if error.code == _GONE:
                raise Expired from None
            raise
        if time.monotonic() - began < SHORT:
            self._sleep(self._backoff.pause())

    def _take(self, event: Object) -> None:
        kind, pod = event.get("type"), event.get("object")
        if not isinstance(pod, dict):
            raise ApiError("an event without an object")
        if kind == "ERROR":
            raise ApiError(str(pod.get("message", "an error in the stream"))[:300], _code(pod))
        version = _metadata(pod).get("resourceVersion")
        if kind in ("ADDED", "MODIFIED"):
            self._sink.put(pod)
        elif kind == "DELETED":
            self._sink.remove(pod)
        if isinstance(version, str):
            self._version = version


def _metadata(found: Object) -> dict[str, Any]:
    metadata = found.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _code(status: Object) -> int:
    code = status.get("code")
    return code if isinstance(code, int) else 0
