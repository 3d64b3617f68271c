"""A simulated node with tasks, and an exporter beside its scheduler."""

from __future__ import annotations

import contextlib
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.nodes import Node
from tests.support.processes import Program, Run, environment, eventually, programs


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: str = answer.read().decode()
    return body


@dataclass
class ExporterProcess:
    program: Program
    url: str  # of the metrics

    def page(self) -> str:
        return get(self.url)

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Of all series of this name, by the values of their labels in alphabetical order."""
        samples = (sample for family in text_string_to_metric_families(self.page()) for sample in family.samples)
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for sample in samples
            if sample.name == name
        }

    def value(self, name: str) -> float | None:
        return self.values(name).get(())

    def wait_until(self, name: str, value: float) -> None:
        assert eventually(lambda: self.value(name) == value), (name, self.page(), self.program.said)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with programs() as run:
        yield run


def start_exporter(run: Run, *options: str) -> ExporterProcess:
    program = run([sys.executable, "-m", "nvshare.cli.exporter", "--listen", "127.0.0.1:0", *options], environment())
    line = program.heard("nvshare-exporter: http://").text
    return ExporterProcess(program, line.split()[2])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A simulated T4; its scheduler is not started yet."""
    with contextlib.closing(Node("T4", speed=10)) as node:
        yield node
