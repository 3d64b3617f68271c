"""The exporter as a process: with a scheduler, without one, beside one that hangs."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.observe.conftest import start_exporter
from tests.support.nodes import Node
from tests.support.processes import Run, environment, eventually

REQUESTS = "nvshare_exporter_status_requests_total"


def test_it_waits_for_a_scheduler_and_outlives_it(node: Node, run: Run) -> None:
    exporter = start_exporter(run, "--socket", str(node.sim.socket))
    assert exporter.value("nvshare_up") == 0
    node.start_scheduler()
    exporter.wait_until("nvshare_up", 1)
    node.kill_scheduler()
    exporter.wait_until("nvshare_up", 0)
    exporter.program.send_signal(signal.SIGTERM)
    assert exporter.program.process.wait(30) == 0


def test_a_scrape_answers_while_the_scheduler_hangs(node: Node, run: Run) -> None:
    node.start_scheduler()
    exporter = start_exporter(run, "--sim", node.sim.name)
    exporter.wait_until("nvshare_up", 1)
    node.scheduler.send_signal(signal.SIGSTOP)
    try:
        exporter.wait_until("nvshare_up", 0)
    finally:
        node.scheduler.send_signal(signal.SIGCONT)
    exporter.wait_until("nvshare_up", 1)


def test_any_number_of_scrapes_is_at_most_one_request_a_second(node: Node, run: Run) -> None:
    node.start_scheduler()
    started = time.monotonic()
    exporter = start_exporter(run, "--sim", node.sim.name)
    exporter.wait_until("nvshare_up", 1)
    for _ in range(200):
        exporter.page()
    requests = exporter.value(REQUESTS)
    assert requests is not None
    assert requests <= time.monotonic() - started + 1


def test_nvml_tells_what_it_knows_of_a_simulated_card(node: Node, run: Run) -> None:
    node.start_scheduler()
    exporter = start_exporter(run, "--sim", node.sim.name)
    exporter.wait_until("nvshare_up", 1)
    (uuid,) = node.sim.uuids
    assert eventually(lambda: exporter.values("nvshare_card_utilization_ratio")) == {(uuid, "0"): 0.0}
    assert not exporter.values("nvshare_card_temperature_celsius")
    assert not exporter.values("nvshare_card_power_watts")


def test_peers_that_ask_nothing_harm_nobody(node: Node, run: Run) -> None:
    exporter = start_exporter(run, "--socket", str(node.sim.socket))
    _, _, address = exporter.url.removesuffix("/metrics").partition("//")
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))) as rude:
        rude.sendall(b"\x00\xff\r\n\r\n")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200
        connection.close()


def ended(*options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "nvshare.cli.exporter", *options]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("listen", ["here", "127.0.0.1", "127.0.0.1:70000", "127.0.0.1:-1", "[::1]"])
def test_an_address_that_is_none_is_one_line(listen: str) -> None:
    code, said = ended("--listen", listen)
    assert (code, said.count("\n")) == (2, 1)
    assert "HOST:PORT" in said


def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = ended("--listen", f"127.0.0.1:{port}", "--socket", str(tmp_path / "s"))
    assert (code, said.count("\n")) == (2, 1)
    assert f"--listen 127.0.0.1:{port}: Address already in use" in said


def test_a_socket_and_a_node_at_once_are_refused(tmp_path: Path) -> None:
    assert ended("--socket", str(tmp_path / "s"), "--sim", "2xT4")[0] == 2
    assert ended("--sim", "absent")[0] == 2
