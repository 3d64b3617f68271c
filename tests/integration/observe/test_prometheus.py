"""Prometheus itself: it scrapes a node with twelve tasks, and the chart's rules and dashboard work on what it got.

Takes some seconds: rates need several scrapes, a second apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.observe.conftest import ExporterProcess, get, start_exporter
from tests.support.nodes import Node
from tests.support.processes import Program, Run, eventually
from tools import dashboard

pytestmark = [
    pytest.mark.simulated,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")),
        reason="no prometheus and promtool here; on Debian: apt-get install prometheus",
    ),
]

ALERTS = Path(__file__).parents[3] / "deploy" / "chart" / "nvshare" / "alerts.yaml"
CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
scrape_configs:
  - job_name: nvshare
    honor_labels: true
    static_configs: [{targets: [%s]}]
"""
RUNS = (("trainer", "--mem", "2GiB"), ("server", "--cores", "5..20"), ("notebook",))
REAL_CARDS_ALONE = {"nvshare_card_temperature_celsius", "nvshare_card_power_watts"}
NVSHARE_RUN = (sys.executable, "-m", "nvshare", "run")
_RANGE = "4s"


@dataclass
class Scene:
    node: Node
    tasks: list[Program]
    exporter: ExporterProcess
    prometheus: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = json.loads(get(f"{self.prometheus}/api/v1/query?query={urllib.parse.quote(expression)}"))
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


def listens_on(pid: int) -> int | None:
    """The port of a process that was told to take any."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets.add(os.readlink(descriptor))
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].partition(":")[2], 16)
    return None


@pytest.fixture(scope="module")
def scene(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with contextlib.closing(Node("2xT4", speed=1)) as node:
        node.start_scheduler()
        work = ("-m", "nvshare.bench.workloads", "add-small", "--n", "5000", "--iterations", "1000000")
        tasks = [
            run(
                [*NVSHARE_RUN, "--name", name, *quota, "--", sys.executable, *work],
                {**node.env, "CUDA_VISIBLE_DEVICES": uuid},
            )
            for uuid in node.sim.uuids
            for name, *quota in RUNS
            for _ in range(2)
        ]
        node.await_status(lambda status: len(status["clients"]) == 12)
        exporter = start_exporter(run, "--sim", node.sim.name)
        directory = tmp_path_factory.mktemp("prometheus")
        config = directory / "prometheus.yml"
        config.write_text(CONFIG % json.dumps(exporter.url.removeprefix("http://").removesuffix("/metrics")))
        options = (f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}", "--log.level=warn")
        server = run(["prometheus", *options, "--web.listen-address=127.0.0.1:0"])
        port = eventually(lambda: listens_on(server.pid))
        assert port, server.said
        scene = Scene(node, tasks, exporter, f"http://127.0.0.1:{port}")
        assert eventually(lambda: scene.query(f"count_over_time(nvshare_task_floor_ratio[{_RANGE}]) > 2")), server.said
        yield scene


def promtool(*arguments: str, text: str = "") -> None:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_prometheus_finds_nothing_to_complain_of_in_the_page(scene: Scene) -> None:
    promtool("check", "metrics", text=scene.exporter.page())


def test_prometheus_scrapes_all_tasks(scene: Scene) -> None:
    assert [sample["value"][1] for sample in scene.query("up")] == ["1"]
    found = {
        (each["metric"]["gpu_index"], each["metric"]["run"]): float(each["value"][1])
        for each in scene.query("nvshare_task_processes")
    }
    assert found == dict.fromkeys(((card, run[0]) for card in "01" for run in RUNS), 2.0)


def test_every_query_of_the_dashboard_returns_data(scene: Scene) -> None:
    without = []
    for expression in dashboard.queries():
        filled = expression.replace("$__rate_interval", _RANGE)
        filled = re.sub(r"\$(instance|namespace|pod)", ".*", filled)
        if not scene.query(filled):
            without.append(expression)
    assert {expression.partition("{")[0] for expression in without} == REAL_CARDS_ALONE


def test_rules_are_sound_and_fire_when_they_should() -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yaml")))


def test_counters_of_tasks_stay_after_their_end(scene: Scene) -> None:
    """Ends the tasks."""
    seconds = "nvshare_task_gpu_seconds_total"
    before = scene.exporter.values(seconds)
    assert len(before) == len(RUNS) * len(scene.node.sim.uuids)
    for task in scene.tasks:
        task.close()
    scene.exporter.wait_until("nvshare_scheduler_clients", 0)
    after = scene.exporter.values(seconds)
    assert all(after[task] >= value > 0 for task, value in before.items())
    assert not scene.exporter.values("nvshare_task_processes")
