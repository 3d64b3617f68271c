"""Exit codes, JSON keys and options of every command stay as they were recorded."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import differences

pytestmark = pytest.mark.simulated

DATA = Path(__file__).parents[2] / "data"
MISSION = DATA / "recorded" / "mission-2xT4.json"
FILES = {"MISSION": str(MISSION), "LOGS": str(DATA / "concurrency" / "parallel" / "scheduler.log")}
PROGRAMS = {
    "nvshare": "nvshare",
    "nvsharectl": "nvsharectl",
    "nvshare-scheduler": "scheduler",
    "nvshare-device-plugin": "device_plugin",
    "nvshare-pod-watch": "pod_watch",
    "nvshare-exporter": "exporter",
}
HELP = """
nvshare
nvshare run
nvshare launch
nvshare stress
nvshare verify
nvshare verify concurrency
nvshare doctor
nvshare env
nvshare cdi
nvshare install
nvshare sim
nvshare sim up
nvshare sim down
nvshare sim list
nvshare sim show
nvshare demo
nvshare bench
nvshare bench mission
nvshare bench eviction
nvshare bench swap
nvshare bench compute
nvshare report
nvshare kube-test
nvsharectl
nvsharectl status
nvsharectl set
nvsharectl reset
nvsharectl sleep
nvsharectl wake
nvshare-scheduler
nvshare-device-plugin
nvshare-pod-watch
nvshare-exporter
"""
CODES = """
nvshare --version
nvshare frobnicate
nvshare run
nvshare run --cores 0 -- true
nvshare run --mem much -- true
nvshare run --speed 3 -- true
nvshare run --sim 2xNothing -- true
nvshare run -- /nowhere/program
nvshare run --sim 2xT4 -- sh -c 'exit 7'
nvshare run --sim 2xT4 -- sh -c 'kill -TERM $$'
nvshare launch
nvshare launch --timeout nan -- true
nvshare launch --journal j -- true
nvshare launch --gpus 7 --sim 2xT4 -- true
nvshare launch --gpus cpu --mem 4GiB -- true
nvshare launch --gpus cpu --workers 2 -- true
nvshare launch --gpus cpu --workers 2 -- false
nvshare launch --sim 2xT4 --workers 2 --mem 1GiB -- true
nvshare launch --sim 2xT4 --workers 2 --mem 1GiB -- false
nvshare stress --skip-stress --skip-launch
nvshare stress --sim 2xT4 --gpus 9
nvshare stress --sim 2xT4 --memory 99999999
nvshare verify --only nothing
nvshare verify --sim 2xNothing
nvshare verify concurrency
nvshare verify concurrency /nowhere/log
nvshare verify concurrency LOGS --expect serial
nvshare doctor now
nvshare doctor --sim absent
nvshare env --docker --sim T4
nvshare cdi
nvshare install
nvshare install --system --print
nvshare sim up
nvshare sim up 2xNothing
nvshare sim down absent
nvshare sim list
nvshare sim show absent
nvshare demo --json /nowhere/x
nvshare bench nothing
nvshare bench mission --only 9
nvshare bench mission --model T4 --sim T4
nvshare bench mission --scale link=2
nvshare bench swap --html /nowhere/x
nvshare bench swap --model A100-40G --size 1GiB
nvshare bench eviction --model T4 --card-memory 32GiB
nvshare bench compute --real --sim H200
nvshare bench compute --only nothing
nvshare report
nvshare report /nowhere/x
nvshare report LOGS
nvshare report MISSION
nvshare report MISSION MISSION
nvshare kube-test few
nvshare kube-test --serial --mem 1Gi
nvshare kube-test --kubectl /nowhere/kubectl 1
nvsharectl
nvsharectl --version
nvsharectl frobnicate
nvsharectl -T 0
nvsharectl -S maybe
nvsharectl --sim absent status
nvsharectl --socket /nowhere/s status
nvsharectl --socket /nowhere/s set --mode serial
nvsharectl --socket /nowhere/s --sim 2xT4 status
nvsharectl set
nvsharectl set --mode wild
nvsharectl set --pid 1
nvsharectl set --mem 1GiB
nvsharectl set --pid 1 --mem much
nvsharectl set --pid 1 --cores 0
nvsharectl reset
nvsharectl reset --all --settings
nvshare-scheduler --frob
nvshare-scheduler --socket /nowhere/s
nvshare-device-plugin --frob
nvshare-pod-watch --frob
nvshare-exporter --frob
nvshare-exporter --listen here
"""
ROWS = """
nvshare bench eviction --model A100-40G --json ROWS
nvshare bench swap --model A100-40G --json ROWS
nvshare bench mission --sim 2xT4 --only 0 --shorten 0.01 --json ROWS
nvshare verify --sim 2xT4 --only parallel --seconds 1 --json ROWS
nvshare verify concurrency LOGS --json ROWS
nvshare stress --sim 2xT4 --duration 1 --skip-launch --memory 64 --json ROWS
"""
ON_A_NODE = """
nvshare env --sim 4xT4 --json
nvshare sim show 4xT4
nvshare sim show 4xT4 --json
nvshare sim up 4xT4 --speed 3
nvsharectl --sim 4xT4 status
nvsharectl --sim 4xT4 status --json
nvsharectl --sim 4xT4 set --mode serial
nvsharectl --sim 4xT4 set --mode auto
nvsharectl --sim 4xT4 -T 30
nvsharectl --sim 4xT4 -S off
nvsharectl --sim 4xT4 set --run held --mem 2GiB --cores 30 --priority high
nvsharectl --sim 4xT4 set --run absent --mem 2GiB
nvsharectl --sim 4xT4 set --pid 1 --mem 2GiB
nvsharectl --sim 4xT4 reset --run held
nvsharectl --sim 4xT4 reset --run absent
nvsharectl --sim 4xT4 reset --settings
nvsharectl --sim 4xT4 reset --all
"""
DEPENDS_ON_THE_MACHINE = "nvshare doctor --sim 4xT4 --json"  # its exit code
HOLDER = """
import ctypes, sys
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20)) == 0
open(sys.argv[1], "w").close()
open(sys.argv[2]).read()
"""
Run = Callable[[str], "subprocess.CompletedProcess[str]"]
Check = Callable[..., None]


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def argv(line: str) -> list[str]:
    program, *arguments = shlex.split(line)
    start = f"from nvshare.cli.entry import {PROGRAMS[program]} as it; it()"
    return [sys.executable, "-c", start, *(FILES.get(each, each) for each in arguments)]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """A runtime directory of its own, so that a node of any name can be made."""
    with tempfile.TemporaryDirectory(prefix="nvs-", dir="/tmp") as directory:
        yield {**os.environ, "XDG_RUNTIME_DIR": directory}


@pytest.fixture(scope="module")
def run(environment: dict[str, str]) -> Iterator[Run]:
    def run(line: str) -> subprocess.CompletedProcess[str]:
        command = argv(line)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    yield run
    run("nvshare sim down --all")


@pytest.fixture(scope="module")
def node(run: Run, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A simulated node with a run and a leased worker that each hold memory."""
    directory = tmp_path_factory.mktemp("held")
    assert run("nvshare sim up 4xT4 --speed 20").returncode == 0
    held, started = [], []
    for name, quotas in (("run", "--name held --mem 1GiB --cores 50"), ("launch", "--workers 1 --mem 1GiB")):
        ready, end = (directory / f"{name}-{what}" for what in ("ready", "end"))
        os.mkfifo(ready)
        os.mkfifo(end)
        command = argv(f"nvshare {name} --sim 4xT4 {quotas} -- python3 -c")
        started.append(subprocess.Popen([*command, HOLDER, str(ready), str(end)], env=environment))
        ready.read_text()  # waits for the holder to open it
        held.append(end)
    yield
    for end in held:
        end.write_text("")
    assert [process.wait(60) for process in started] == [0, 0]


@pytest.mark.parametrize("line", lines(HELP))
def test_options_are_as_recorded(run: Run, recorded: Check, line: str) -> None:
    done = run(f"{line} --help")
    options = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", done.stdout, re.MULTILINE)
    recorded(f"{line} --help", done.returncode, options=sorted(set(options)))


@pytest.mark.parametrize("line", lines(CODES))
def test_exit_codes_are_as_recorded(run: Run, recorded: Check, line: str) -> None:
    recorded(line, run(line).returncode)


@pytest.mark.parametrize("line", lines(ROWS))
def test_written_rows_have_the_recorded_keys(run: Run, recorded: Check, tmp_path: Path, line: str) -> None:
    target = tmp_path / "rows.json"
    done = run(line.replace("ROWS", str(target)))
    recorded(line, done.returncode, json.loads(target.read_text()))


@pytest.mark.parametrize("line", lines(ON_A_NODE))
@pytest.mark.usefixtures("node")
def test_commands_on_a_busy_node_are_as_recorded(run: Run, recorded: Check, line: str) -> None:
    done = run(line)
    recorded(line, done.returncode, json.loads(done.stdout) if "--json" in line else None)


@pytest.mark.usefixtures("node")
def test_what_doctor_saw_has_the_recorded_keys(run: Run, recorded: Check) -> None:
    recorded(DEPENDS_ON_THE_MACHINE, None, json.loads(run(DEPENDS_ON_THE_MACHINE).stdout))


def test_compute_rows_that_an_interrupt_left_have_the_recorded_keys(
    environment: dict[str, str], recorded: Check, tmp_path: Path
) -> None:
    """GIVEN a measurement of which one row is known, WHEN it is interrupted, THEN the row is in the file."""
    line, target = "nvshare bench compute --sim H200 --only quotas --seconds 0.2 --json ROWS", tmp_path / "rows.json"
    command = argv(line.replace("ROWS", str(target)))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stderr is not None
        assert "about" in bench.stderr.readline()
        assert bench.stderr.readline()  # the first row
        bench.send_signal(signal.SIGINT)
        bench.communicate()
    recorded(line, bench.returncode, json.loads(target.read_text()))


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of a core of its own
def test_the_modelled_mission_is_the_recorded_one_to_the_digit(run: Run, recorded: Check, tmp_path: Path) -> None:
    line, target = "nvshare bench mission --model 2xT4 --json ROWS", tmp_path / "rows.json"
    done = run(line.replace("ROWS", str(target)))
    content = json.loads(target.read_text())
    recorded(line, done.returncode, content)
    if os.environ.get("RECORD"):
        MISSION.write_text(json.dumps(content, indent=1) + "\n")
    assert measured(content) == measured(json.loads(MISSION.read_text()))


def measured(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in ("date", "machine", "versions")}


@pytest.mark.parametrize(
    ("seen", "known", "different"),
    [
        (["a", "tasks"], ["a", "tasks[]"], set()),
        (["a", "rows[].x", "rows[].y"], ["a", "rows"], set()),
        (["rows[].x"], ["rows[].x", "rows[].y"], {"rows[].y"}),
        (["a", "b"], ["a", "c"], {"b", "c"}),
        (["rows[].figures.host_stood_still_ms"], [], set()),
    ],
)
def test_lists_that_happen_to_be_empty_are_no_difference(
    seen: list[str], known: list[str], different: set[str]
) -> None:
    assert differences(seen, known) == different
