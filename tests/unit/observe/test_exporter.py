"""The exporter around the figures: what it shows when there is no status, and too many series."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nvshare.client.connection import NoScheduler
from nvshare.observe.exporter import MAX_SCRAPES, Exporter, PageServer, Readings
from tests.unit.observe.observe_status import scene, status_of

LINE = "nvshare_exporter_left_out_series_total"


class Scheduler:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: Any = status_of(scene())

    def ask(self) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def exporter(scheduler: Scheduler, **options: int) -> Exporter:
    return Exporter(scheduler.ask, Readings(dict), **options)


def value(page: bytes, name: str) -> float | None:
    lines = [line for line in page.decode().splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].split()[-1]) if lines else None


def test_before_it_has_asked_there_is_a_page_that_says_down() -> None:
    assert value(exporter(Scheduler()).page, "nvshare_up") == 0


def test_without_a_scheduler_gauges_end_and_counters_stay() -> None:
    scheduler = Scheduler()
    it = exporter(scheduler)
    it.look()
    assert value(it.page, "nvshare_up") == 1
    assert b"nvshare_task_processes{" in it.page
    scheduler.answer = NoScheduler("gone")
    it.look()
    assert value(it.page, "nvshare_up") == 0
    assert b"nvshare_task_processes{" not in it.page
    assert b"nvshare_task_gpu_seconds_total{" in it.page
    assert value(it.page, "nvshare_exporter_status_failures_total") == 1


@pytest.mark.parametrize("answer", [{}, {"clients": 3}, {**status_of(scene()), "gpus": [{}]}, []])
def test_a_status_that_is_none_counts_as_no_answer(answer: Any) -> None:
    scheduler = Scheduler()
    scheduler.answer = answer
    it = exporter(scheduler)
    it.look()
    assert (value(it.page, "nvshare_up"), value(it.page, "nvshare_exporter_status_failures_total")) == (0, 1)


def test_series_beyond_the_limit_are_left_out_and_counted() -> None:
    scheduler = Scheduler()
    client = scheduler.answer["clients"][1]
    scheduler.answer["clients"] = [{**client, "id": f"{n:016x}", "name": f"task-{n}"} for n in range(1200)]
    it = exporter(scheduler)
    it.look()
    series = [line for line in it.page.decode().splitlines() if not line.startswith("#")]
    assert len(series) == 10_000 + 5  # and its own
    left_out = value(it.page, LINE)
    assert left_out is not None
    assert left_out > 0
    assert b"nvshare_scheduler_clients 1200" in it.page


@pytest.fixture
def server() -> Iterator[tuple[PageServer, Scheduler, Exporter]]:
    scheduler = Scheduler()
    it = exporter(scheduler)
    it.look()
    made = PageServer("127.0.0.1", 0, lambda: it.page)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made, scheduler, it
    made.shutdown()
    thread.join()
    made.server_close()


def get(server: PageServer, path: str = "/metrics", method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_scrapes_ask_the_scheduler_nothing(server: tuple[PageServer, Scheduler, Exporter]) -> None:
    it, scheduler, exporter = server
    assert {get(it) for _ in range(30)} == {(200, exporter.page)}
    assert scheduler.asked == 1


def test_other_paths_and_methods(server: tuple[PageServer, Scheduler, Exporter]) -> None:
    it = server[0]
    assert get(it, "/metrics?x=<script>")[0] == 200
    assert get(it, "/metrics", "HEAD") == (200, b"")
    assert b'href="/metrics"' in get(it, "/")[1]
    assert get(it, "/<script>") == (404, b"metrics are at /metrics\n")
    assert get(it, "/metrics", "POST")[0] == 501


def test_peers_that_ask_nothing_do_not_keep_others_out_for_long(
    server: tuple[PageServer, Scheduler, Exporter],
) -> None:
    it = server[0]
    silent = [http.client.HTTPConnection("127.0.0.1", it.server_port, timeout=10) for _ in range(MAX_SCRAPES)]
    for connection in silent:
        connection.connect()
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        get(it)
    silent[0].request("GET", "/metrics")
    assert silent[0].getresponse().read()
    for connection in silent:
        connection.close()
