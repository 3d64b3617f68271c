"""HTTP to the API server: objects, and streams of them. Everything it may cost us is bounded.

The standard library's client, because what is needed beside it is little and has to be certain: a token that is read
again for each request (it is rotated while we run), a bound on every answer and on every line of a stream, and an end
to a stream that went silent.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

_LOG = logging.getLogger("nvshare")

MAX_ANSWER = 64 << 20  # bytes of one page of a list
MAX_LINE = 4 << 20  # bytes of one event of a stream; the largest object that a cluster keeps has 1.5 MiB
TIMEOUT = 10.0  # seconds for an answer, a stream's first byte included
_CHUNK = 1 << 16
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

Object = dict[str, Any]


class ApiError(Exception):
    """The API server said no, or something that makes no sense. ``code`` is that of HTTP, 0 without one."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


TROUBLE = (ApiError, OSError, http.client.HTTPException)  # what a request may end with; all of them may pass


@dataclass(frozen=True)
class Access:
    """Where the API server is, and who we are to it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    token: Callable[[], str | None] = lambda: None
    prefix: str = ""  # of all paths


class Api:
    """One connection per request; several threads may ask at once."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def get(self, path: str, query: Mapping[str, str]) -> Object:
        with self._request("GET", path, query) as (_, answer):
            return _object(_read(answer))

    def post(self, path: str, body: Object) -> Object:
        with self._request("POST", path, {}, json.dumps(body).encode()) as (_, answer):
            return _object(_read(answer))

    def stream(
        self, path: str, query: Mapping[str, str], silence: float, opened: Callable[[], None]
    ) -> Iterator[Object]:
        """The objects of a stream, until it ends; ``TimeoutError`` after so many seconds without a byte.

        ``opened`` is called when the server has agreed.
        """
        with self._request("GET", path, query) as (connection, answer):
            opened()
            connection.sock.settimeout(silence)
            lines = Lines(MAX_LINE)
            while data := answer.read1(_CHUNK):
                for line in lines.feed(data):
                    yield _object(line)

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None = None
    ) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
        access = self._access
        if access.tls is None:
            connection = http.client.HTTPConnection(access.host, access.port, timeout=TIMEOUT)
        else:
            connection = http.client.HTTPSConnection(access.host, access.port, timeout=TIMEOUT, context=access.tls)
        try:
            connection.connect()
            _keep_alive(connection.sock)
            target = access.prefix + path + (f"?{urlencode(query)}" if query else "")
            connection.request(method, target, body, self._headers(body))
            answer = connection.getresponse()
            if answer.status >= 400:
                raise ApiError(_reason(answer), answer.status)
            yield connection, answer
        finally:
            connection.close()

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "nvshare-pod-watch"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        token = self._access.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers


class Lines:
    """Bytes in, whole lines out. A line longer than ``limit`` is passed over with a warning."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        *ended, rest = data.split(b"\n")
        for piece in ended:
            line = bytes(self._pending) + piece
            self._pending.clear()
            if self._skipping or len(line) > self._limit:
                self._skipping = False
                _LOG.warning("Passed over an event of more than %d bytes", self._limit)
            elif line.strip():
                yield line
        if not self._skipping:
            self._pending += rest
            if len(self._pending) > self._limit:
                self._pending.clear()
                self._skipping = True


def _keep_alive(connection: socket.socket) -> None:
    """A server that vanished without a word is noticed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        with contextlib.suppress(OSError):  # not a TCP connection of this kind
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _read(answer: http.client.HTTPResponse) -> bytes:
    data = answer.read(MAX_ANSWER + 1)
    if len(data) > MAX_ANSWER:
        raise ApiError(f"an answer of more than {MAX_ANSWER >> 20} MiB")
    return data


def _object(data: bytes) -> Object:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ApiError("an answer that is not JSON") from None
    if not isinstance(found, dict):
        raise ApiError("an answer that is not a JSON object")
    return found


def _reason(answer: http.client.HTTPResponse) -> str:
    """The API's own words, if it has any."""
    data = answer.read(_CHUNK)
    with contextlib.suppress(ApiError):
        message = _object(data).get("message")
        if isinstance(message, str):
            return f"{answer.status}: {message[:300]}"
    return f"{answer.status} {answer.reason}"
