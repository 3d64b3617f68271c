"""Asks the scheduler for its status on a period of its own, and serves the page made of the last answer.

A scrape reads a page that is there already: any number of scrapes costs the scheduler nothing, and none waits for it.
"""

from __future__ import annotations

import http
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nvshare import __version__
from nvshare.client.connection import SchedulerError
from nvshare.gpu.reading import Reading
from nvshare.observe import families as f
from nvshare.observe import figures
from nvshare.observe.figures import Sample, Status
from nvshare.observe.ledger import Ledger
from nvshare.observe.page import CONTENT_TYPE, render

_LOG = logging.getLogger("nvshare")

MAX_SERIES = 10_000
MAX_SCRAPES = 16  # at once
SCRAPE_PATIENCE = 10.0  # seconds that a peer may take to ask and to read
_FRESH_S = 10.0  # readings of NVML that are older are not shown
_UNUSABLE = (SchedulerError, OSError, LookupError, TypeError, ValueError, AttributeError)


class Readings:
    """What NVML says of the cards, asked in a thread of its own: NVML may take its time, or never answer."""

    def __init__(self, read: Callable[[], Mapping[str, Reading]]) -> None:
        self._read = read
        self._latest: tuple[float, Mapping[str, Reading]] = (0.0, {})

    def fresh(self, now: float) -> Mapping[str, Reading]:
        read_at, readings = self._latest
        return readings if now - read_at < _FRESH_S else {}

    def look(self) -> None:
        self._latest = (time.monotonic(), self._read())


class Exporter:
    def __init__(self, ask: Callable[[], Status], readings: Readings, max_series: int = MAX_SERIES) -> None:
        """``ask`` answers the scheduler's status, or raises ``SchedulerError``."""
        self._ask = ask
        self._readings = readings
        self._max_series = max_series
        self._ledger = Ledger()
        self._requests = self._failures = self._left_out = 0
        self._complained = ""
        self.page = self._render(None, 0.0)

    def look(self) -> None:
        """Ask once, and make the page of what is answered."""
        self._requests += 1
        now = time.monotonic()
        try:
            status = self._ask()
            self.page = self._render(status, now)
            self._complained = ""
        except _UNUSABLE as error:
            self._failures += 1
            self._complain(str(error) if isinstance(error, SchedulerError) else f"its status is unusable ({error!r})")
            self.page = self._render(None, now)

    def _complain(self, text: str) -> None:
        if text != self._complained:
            _LOG.warning("No metrics of the scheduler: %s", text)
        self._complained = text

    def _render(self, status: Status | None, now: float) -> bytes:
        kept = self._limited(status, now)
        return render([*self._own(status is not None), *kept])

    def _limited(self, status: Status | None, now: float) -> list[Sample]:
        """At most so many samples: those of the scheduler and of cards go before those of tasks."""
        if status is not None:
            self._ledger.book(status, now)
        samples = itertools.chain(
            () if status is None else figures.of_scheduler(status),
            () if status is None else figures.of_cards(status, self._readings.fresh(now)),
            () if status is None else figures.of_tasks(status),
            self._ledger.samples(now),
        )
        kept = list(itertools.islice(samples, self._max_series))
        self._left_out += sum(1 for _ in samples)
        return kept

    def _own(self, is_up: bool) -> Iterator[Sample]:
        yield Sample(f.UP, (), is_up)
        yield Sample(f.BUILD, (__version__,), 1)
        yield Sample(f.STATUS_REQUESTS, (), self._requests)
        yield Sample(f.STATUS_FAILURES, (), self._failures)
        yield Sample(f.LEFT_OUT, (), self._left_out)


def every(period: float, look: Callable[[], None]) -> None:
    """Look again and again in a thread: at most once in a period."""

    def work() -> None:
        while True:
            look()
            time.sleep(period)

    threading.Thread(target=work, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = SCRAPE_PATIENCE
    server_version = f"nvshare-exporter/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(http.HTTPStatus.OK, CONTENT_TYPE, self.server.page())
        elif path == "/":
            self._answer(http.HTTPStatus.OK, "text/html; charset=utf-8", b'<a href="/metrics">nvshare metrics</a>\n')
        else:
            self._answer(http.HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"metrics are at /metrics\n")

    do_HEAD = do_GET

    def _answer(self, code: http.HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class PageServer(ThreadingHTTPServer):
    """Serves the page at ``/metrics``. Drops peers that do not ask or read, and those beyond ``MAX_SCRAPES``."""

    daemon_threads = True

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        """``OSError`` where this cannot be listened to."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.page = page
        self._free = threading.BoundedSemaphore(MAX_SCRAPES)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without asking a name server who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that hung up or was too slow is no news."""
