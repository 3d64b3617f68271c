"""A double of the API server: pods by HTTP, with lists, watches, versions, bookmarks and events.

A real server on a real socket, so that what talks to it is what talks to a cluster. It can drop every connection, be
away for a while, forget old versions (410), and count what it was asked.
"""

from __future__ import annotations

import contextlib
import copy
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]


@dataclass(frozen=True)
class Change:
    version: int
    kind: str  # ADDED, MODIFIED or DELETED
    pod: Object


@dataclass
class Cluster:
    """What the server keeps. Every change has a version, one higher than that before."""

    version: int = 100
    oldest: int = 100  # a watch from before that is answered with 410
    pods: dict[tuple[str, str], Object] = field(default_factory=dict)
    events: list[Object] = field(default_factory=list)
    log: list[Change] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, kind: str, pod: Object) -> None:
        """Call with the lock held."""
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.log.append(Change(self.version, kind, copy.deepcopy(pod)))
        self.changed.notify_all()


class ApiDouble:
    """Serves from its construction to ``close``."""

    def __init__(self, bookmarks: float = 1.0) -> None:
        self.cluster = Cluster()
        self.bookmarks = bookmarks  # seconds between two
        self.asked: list[tuple[str, str, dict[str, str]]] = []  # method, path, query
        self.tokens: list[str | None] = []
        self.refuse: Callable[[str, str, dict[str, str]], int] = lambda method, path, query: 0  # a code to answer with
        self._connections: set[socket.socket] = set()
        self._server: _Server | None = None
        self._port = 0
        self.start()

    # --- the server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path, **user: str) -> Path:
        config = {
            "current-context": "double",
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "double"}}],
            "clusters": [{"name": "double", "cluster": {"server": self.url}}],
            "users": [{"name": "double", "user": user}],
        }
        path.write_text(json.dumps(config))
        return path

    def start(self) -> None:
        """Also after ``stop``, at the same address."""
        assert self._server is None
        self._server = _Server(("127.0.0.1", self._port), _Handler, self)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Away: connections are refused, streams end in the middle. What it keeps stays."""
        server, self._server = self._server, None
        if server is not None:
            server.ended.set()
            server.shutdown()
            server.server_close()
            self.drop_connections()

    close = stop

    def drop_connections(self) -> None:
        """Every stream ends without a word."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def forget_versions(self) -> None:
        """Watches from any version up to now are too old."""
        with self.cluster.changed:
            self.cluster.version += 1
            self.cluster.oldest = self.cluster.version
            self.cluster.changed.notify_all()

    def watches(self) -> int:
        return sum("watch" in query for _, _, query in self.asked)

    # --- what a cluster does

    def create(
        self,
        name: str,
        *,
        namespace: str = "default",
        node: str = "node-1",
        annotations: Mapping[str, str] | None = None,
        limits: Mapping[str, str] | None = None,
        uid: str | None = None,
    ) -> Object:
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": uid or str(uuid.uuid4())},
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": dict(limits or {})}}]},
            "status": {"phase": "Running"},
        }
        if annotations:
            pod["metadata"]["annotations"] = dict(annotations)
        with self.cluster.changed:
            self.cluster.pods[namespace, name] = pod
            self.cluster.note("ADDED", pod)
        return copy.deepcopy(pod)

    def annotate(self, name: str, key: str, value: str | None, namespace: str = "default") -> None:
        def change(pod: Object) -> None:
            annotations = pod["metadata"].setdefault("annotations", {})
            if value is None:
                annotations.pop(key, None)
            else:
                annotations[key] = value

        self.change(name, change, namespace)

    def change(self, name: str, change: Callable[[Object], None], namespace: str = "default") -> None:
        with self.cluster.changed:
            pod = self.cluster.pods[namespace, name]
            change(pod)
            self.cluster.note("MODIFIED", pod)

    def delete(self, name: str, namespace: str = "default") -> None:
        with self.cluster.changed:
            self.cluster.note("DELETED", self.cluster.pods.pop((namespace, name)))

    def pods(self) -> list[Object]:
        with self.cluster.changed:
            return copy.deepcopy(list(self.cluster.pods.values()))

    def holds(self, name: str, uid: str, namespace: str = "default") -> bool:
        with self.cluster.changed:
            pod = self.cluster.pods.get((namespace, name))
            return pod is not None and pod["metadata"]["uid"] == uid

    def events_of(self, name: str, namespace: str = "default") -> list[Object]:
        with self.cluster.changed:
            return [
                event
                for event in self.cluster.events
                if (event["involvedObject"]["namespace"], event["involvedObject"]["name"]) == (namespace, name)
            ]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], double: ApiDouble) -> None:
        self.double = double
        self.ended = threading.Event()
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.double._connections.add(self.connection)

    def finish(self) -> None:
        self.server.double._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        double = self.server.double
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        double.asked.append((method, parts.path, query))
        double.tokens.append(self.headers.get("Authorization"))
        code = double.refuse(method, parts.path, query)
        if code:
            self._send(code, _status(code, "refused, as told"))
        elif method == "POST" and parts.path.endswith("/events"):
            self._post_event()
        elif method == "GET" and parts.path == "/api/v1/pods":
            self._watch(query) if "watch" in query else self._list(query)
        else:
            self._send(404, _status(404, f"no {parts.path}"))

    def _send(self, code: int, body: Object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _list(self, query: dict[str, str]) -> None:
        cluster = self.server.double.cluster
        with cluster.changed:
            version, _, start = query.get("continue", "").partition(":")
            if version and int(version) < cluster.oldest:
                self._send(410, _status(410, "the continue parameter is too old"))
                return
            pods = [pod for _, pod in sorted(cluster.pods.items()) if _selected(pod, query)]
            begin, version = int(start or 0), version or str(cluster.version)
            end = begin + int(query.get("limit", len(pods) + 1))
            metadata = {"resourceVersion": version}
            if end < len(pods):
                metadata["continue"] = f"{version}:{end}"
            body = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods[begin:end]}
            text = copy.deepcopy(body)
        self._send(200, text)

    def _watch(self, query: dict[str, str]) -> None:
        cluster = self.server.double.cluster
        after = int(query.get("resourceVersion") or cluster.version)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._events(after, query):
            self._chunk(json.dumps(event).encode() + b"\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _events(self, after: int, query: dict[str, str]) -> Iterator[Object]:
        """Until the time that the client set is over, or the server goes away."""
        double = self.server.double
        cluster = double.cluster
        end = time.monotonic() + float(query.get("timeoutSeconds", 1800))
        while not self.server.ended.is_set() and time.monotonic() < end:
            with cluster.changed:
                expired = after < cluster.oldest
                first = next((i for i in range(len(cluster.log), 0, -1) if cluster.log[i - 1].version <= after), 0)
                news = cluster.log[first:]
                if not news and not expired:
                    told = cluster.changed.wait(min(double.bookmarks, max(0.0, end - time.monotonic())))
                    if told:
                        continue
            if expired:
                yield {"type": "ERROR", "object": _status(410, "too old resource version")}
                return
            for change in news:
                after = change.version
                if _selected(change.pod, query):
                    yield {"type": change.kind, "object": change.pod}
            if not news and query.get("allowWatchBookmarks") == "true":
                bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(after)}}
                yield {"type": "BOOKMARK", "object": bookmark}

    def _post_event(self) -> None:
        cluster = self.server.double.cluster
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with cluster.changed:
            known = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in cluster.events}
            metadata = event["metadata"]
            twice = (metadata["namespace"], metadata["name"]) in known
            if not twice:
                cluster.events.append(event)
                cluster.changed.notify_all()
        if twice:
            self._send(409, _status(409, "already exists"))
        else:
            self._send(201, event)


def _selected(pod: Object, query: dict[str, str]) -> bool:
    """Field selectors of the form ``spec.nodeName=NAME``."""
    name, _, value = query.get("fieldSelector", "").partition("=")
    return name != "spec.nodeName" or pod["spec"].get("nodeName") == value


def _status(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
