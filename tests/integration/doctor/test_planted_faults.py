"""Faults planted into a simulated node or its surroundings: the real command names each of them and its remedy."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nvshare import native
from nvshare.client.connection import Connection, SchedulerError
from nvshare.client.spawn import ensure_scheduler
from nvshare.config import child_environment
from nvshare.doctor.look.driver import look
from tests.support.processes import eventually, programs

if TYPE_CHECKING:
    from tests.integration.doctor.conftest import Patient, Report

Diagnose = Callable[..., "Report"]
MakePatient = Callable[..., "Patient"]

MIB = 1 << 20
PATIENCE = 20.0
STRANGER = """
import sys
from nvshare.bench.driver import Context, Driver
with Context(Driver()) as context:
    context.allocate(512 << 20)
    print("there", flush=True)
    sys.stdin.read()
"""


def has_driver() -> bool:
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return True
    return False


@pytest.fixture
def broken_driver(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The environment of a machine whose driver is such."""

    def make(how: str) -> dict[str, str]:
        source = Path(__file__).with_name("broken_driver.c")
        subprocess.run(["cc", "-shared", "-fPIC", f"-D{how}", source, "-o", tmp_path / "libcuda.so.1"], check=True)
        return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}

    return make


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory for sockets, whose paths have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="nvs-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def runtime(short: Path) -> dict[str, str]:
    """A runtime directory of the test's own, so that a fault planted there meets nobody else."""
    return {"XDG_RUNTIME_DIR": str(short)}


@contextlib.contextmanager
def stranger(environ: dict[str, str]) -> Iterator[int]:
    """A program on the first card, which nvshare has no part in unless the environment says so; its number."""
    with programs() as run:
        program = run([sys.executable, "-c", STRANGER], environ)
        assert program.line() == "there"
        yield program.pid
        program.result()


def start_scheduler(patient: Patient) -> None:
    assert ensure_scheduler(patient.node.socket, child_environment(patient.node.env()))


def await_status(path: Path, satisfied: Callable[[dict[str, Any]], bool]) -> None:
    with Connection(path) as connection:
        assert eventually(lambda: satisfied(connection.status()))


# ---- a node without a fault


def tree(directory: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mode, path.lstat().st_ino) for path in directory.rglob("*")}


def test_a_healthy_node_has_nothing_to_do_and_is_left_as_it_was(patient: Patient) -> None:
    start_scheduler(patient)
    patient.examined()  # the simulated driver makes its state when it is first used
    before = tree(patient.node.directory.parent)
    report = patient.examined()
    assert report.code == 0
    assert set().union(*report.states.values()) <= {"ok", "note"}
    assert "of the simulated node answers" in report.of("scheduler", "ok")["seen"]
    assert "active in programs" in report.of("library", "ok")["seen"]
    # AND no card was touched, no client was seen, no file came or went
    assert tree(patient.node.directory.parent) == before
    assert [gpu["contexts_created"] for gpu in patient.node.counters()] == [0, 0]
    with Connection(patient.node.socket) as connection:
        assert connection.status()["counters"]["grants"] == 0


def test_a_shell_that_takes_part_is_well(patient: Patient) -> None:
    start_scheduler(patient)
    report = patient.examined(LD_PRELOAD=str(native.interposer()), NVSHARE_SOCK=str(patient.node.socket))
    assert report.code == 0
    assert "libnvshare.so, from LD_PRELOAD" in report.of("this shell", "ok")["seen"]


def test_the_table_shows_what_was_seen_and_what_to_do(make_patient: MakePatient) -> None:
    patient = make_patient(compute_mode=3)
    done = subprocess.run(
        [sys.executable, "-m", "nvshare", "doctor", "--sim", patient.node.name],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "problem  compute mode" in done.stdout
    assert "→ as root: nvidia-smi -i 1 -c DEFAULT" in done.stdout
    assert "2 problems" in done.stdout.splitlines()[-1]


# ---- the driver


@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_no_driver(diagnose: Diagnose, runtime: dict[str, str]) -> None:
    found = diagnose({**os.environ, **runtime}).of("driver", "problem")
    assert "libcuda.so.1 cannot be loaded" in found["seen"]


def test_a_driver_that_hangs(diagnose: Diagnose, broken_driver: Callable[[str], dict[str, str]]) -> None:
    found = diagnose(broken_driver("HANGS"), "--timeout", "2").of("driver", "problem")
    assert "did not answer within 2 s" in found["seen"]
    assert "dmesg" in found["remedy"]


def test_a_driver_that_crashes(diagnose: Diagnose, broken_driver: Callable[[str], dict[str, str]]) -> None:
    found = diagnose(broken_driver("CRASHES")).of("driver", "problem")
    assert "was ended by SIGABRT" in found["seen"]
    assert "reinstall" in found["remedy"]


def test_a_driver_that_was_updated_while_in_use(
    diagnose: Diagnose, broken_driver: Callable[[str], dict[str, str]]
) -> None:
    found = diagnose(broken_driver("FAILS")).of("driver", "problem")
    assert "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)" in found["seen"]
    assert "reboot" in found["remedy"]


# ---- the cards


def test_cuda_counts_the_cards_in_another_order(make_patient: MakePatient) -> None:
    patient = make_patient(cuda_reversed=1)
    found = patient.examined().of("card order", "warning")
    assert f"card 0 of nvidia-smi ({patient.node.uuids[0]}) is card 1 of CUDA" in found["seen"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found["remedy"]
    # AND the remedy helps
    assert patient.examined(CUDA_DEVICE_ORDER="PCI_BUS_ID").states["card order"] == {"ok"}


def test_visible_devices_is_empty(patient: Patient) -> None:
    found = patient.examined(CUDA_VISIBLE_DEVICES="").of("CUDA_VISIBLE_DEVICES", "problem")
    assert "see no card" in found["seen"]
    assert "unset CUDA_VISIBLE_DEVICES" in found["remedy"]


@pytest.mark.parametrize(("value", "state"), [("7", "problem"), ("0,7", "warning"), ("GPU-nobody", "problem")])
def test_visible_devices_names_no_card(patient: Patient, value: str, state: str) -> None:
    found = patient.examined(CUDA_VISIBLE_DEVICES=value).of("CUDA_VISIBLE_DEVICES", state)
    assert f"names {value.rsplit(',', maxsplit=1)[-1]!r}, which is no card here" in found["seen"]
    assert patient.node.uuids[0] in found["remedy"]


@pytest.mark.parametrize(("mode", "words"), [(2, "prohibited"), (3, "exclusive to one process")])
def test_a_compute_mode_that_keeps_others_out(make_patient: MakePatient, mode: int, words: str) -> None:
    report = make_patient(compute_mode=mode).examined()
    found = [one for one in report.findings if one["check"] == "compute mode"]
    assert [one["state"] for one in found] == ["problem", "problem"]
    assert all(words in one["seen"] for one in found)


def test_mig_mode_without_an_instance(make_patient: MakePatient) -> None:
    report = make_patient(mig_mode=1).examined()
    found = [one for one in report.findings if one["check"] == "MIG"]
    assert [one["state"] for one in found] == ["problem", "problem"]
    assert "-mig 0" in found[0]["remedy"]
    assert "see MIG below" in report.of("driver", "problem")["remedy"]


def test_a_stranger_on_the_card(patient: Patient) -> None:
    with stranger(patient.environ) as pid:
        found = patient.examined().of("on the cards", "warning")
        assert f"(pid {pid}) holds " in found["seen"]
        assert " of card 0, outside nvshare" in found["seen"]
        assert "nvshare run" in found["remedy"]


def test_a_stranger_on_the_card_as_the_scheduler_sees_it(patient: Patient) -> None:
    start_scheduler(patient)
    with stranger(patient.environ) as pid:
        await_status(patient.node.socket, lambda status: any(gpu["unmanaged"] for gpu in status["gpus"]))
        assert f"(pid {pid}) holds " in patient.examined().of("on the cards", "warning")["seen"]


def test_a_program_that_found_no_scheduler_when_it_started(patient: Patient) -> None:
    with stranger({**patient.environ, "LD_PRELOAD": str(native.interposer())}):
        found = patient.examined().of("on the cards", "warning")
        assert "although libnvshare.so is in it" in found["seen"]
        assert "NVSHARE_REQUIRE=1" in found["remedy"]


def test_a_task_that_was_stopped_and_keeps_its_memory(patient: Patient) -> None:
    start_scheduler(patient)
    sharing = {"LD_PRELOAD": str(native.interposer()), "NVSHARE_SOCK": str(patient.node.socket)}
    with stranger({**patient.environ, **sharing}) as pid:
        await_status(patient.node.socket, lambda status: status["clients"][0]["gpus"][0]["resident"] >= 512 << 20)
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # it has stopped when this returns
        try:
            found = patient.examined().of("on the cards", "warning")
        finally:
            os.kill(pid, signal.SIGCONT)
    assert f"(pid {pid}) is stopped, and keeps 512.0 MiB of card 0" in found["seen"]
    assert f"kill -CONT {pid}" in found["remedy"]


def test_an_mps_daemon(patient: Patient, tmp_path: Path) -> None:
    daemon = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("cat") or "", daemon)
    with subprocess.Popen([daemon], stdin=subprocess.PIPE) as process:
        found = patient.examined().of("MPS", "warning")
        assert f"(process {process.pid})" in found["seen"]
        assert "echo quit | nvidia-cuda-mps-control" in found["remedy"]
        process.communicate()


# ---- the library


def test_a_shell_that_should_take_part_has_the_library_not_preloaded(patient: Patient) -> None:
    start_scheduler(patient)
    found = patient.examined(NVSHARE_SOCK=str(patient.node.socket)).of("this shell", "problem")
    assert "libnvshare.so is not in LD_PRELOAD" in found["seen"]
    assert "nvshare run" in found["remedy"]


def test_a_preloaded_library_that_is_not_there(patient: Patient) -> None:
    found = patient.examined(LD_PRELOAD="/nowhere/libnvshare.so").of("this shell", "problem")
    assert "/nowhere/libnvshare.so, which is not there" in found["seen"]


def test_a_preloaded_library_of_another_architecture(patient: Patient, tmp_path: Path) -> None:
    library = tmp_path / "libnvshare.so"
    code = bytearray(native.interposer().read_bytes())
    code[18:20] = (8).to_bytes(2, sys.byteorder)  # MIPS
    library.write_bytes(code)
    found = patient.examined(LD_PRELOAD=str(library)).of("this shell", "problem")
    assert "which is for machine 8 and not for" in found["seen"]


def test_another_copy_of_the_library_comes_first(patient: Patient, tmp_path: Path) -> None:
    other = Path(shutil.copy(native.interposer(), tmp_path / "libnvshare.so"))
    found = patient.examined(LD_PRELOAD=str(other)).of("library", "warning")
    assert f"{other} is in LD_PRELOAD before" in found["seen"]


def test_the_same_library_under_another_name_is_no_other_copy(patient: Patient, tmp_path: Path) -> None:
    link = tmp_path / "libnvshare.so"
    link.symlink_to(native.interposer())
    assert patient.examined(LD_PRELOAD=str(link)).states["library"] == {"ok"}


def test_a_library_whose_path_the_loader_would_split(patient: Patient, tmp_path: Path) -> None:
    library = tmp_path / "a b" / "libnvshare.so"
    library.parent.mkdir()
    shutil.copy(native.interposer(), library)
    views = look(patient.environ, library, PATIENCE)
    assert views.shared.interposer == str(library)
    assert views.native.interposer is None


# ---- the scheduler


def test_a_dead_socket(patient: Patient, diagnose: Diagnose, runtime: dict[str, str]) -> None:
    # GIVEN the socket of a scheduler that was killed, where a user's own would be
    path = Path(runtime["XDG_RUNTIME_DIR"]) / "nvshare" / "scheduler.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert "left behind" in diagnose({**patient.environ, **runtime}).of("scheduler", "warning")["seen"]
    # WHEN a shell relies on it, it is worse
    found = diagnose({**patient.environ, "NVSHARE_SOCK": str(path)}).of("scheduler", "problem")
    assert "programs started here run unshared" in found["seen"]
    assert "nvshare-scheduler --user" in found["remedy"]


def test_a_socket_that_is_not_there(patient: Patient, diagnose: Diagnose) -> None:
    found = diagnose({**patient.environ, "NVSHARE_SOCK": "/nowhere/scheduler.sock"}).of("scheduler", "problem")
    assert "there is no scheduler on /nowhere/scheduler.sock (from NVSHARE_SOCK)" in found["seen"]


def test_a_runtime_directory_that_others_may_write_to(
    patient: Patient, diagnose: Diagnose, runtime: dict[str, str]
) -> None:
    directory = Path(runtime["XDG_RUNTIME_DIR"]) / "nvshare"
    directory.mkdir()
    directory.chmod(0o777)
    found = diagnose({**patient.environ, **runtime}).of("scheduler", "problem")
    assert f"{directory} can be written by others (or close it: chmod go-w)" in found["seen"]


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv here")
def test_a_socket_that_may_not_be_connected_to(patient: Patient, diagnose: Diagnose, short: Path) -> None:
    # GIVEN the socket of somebody who keeps it closed; root is no exception here
    path = short / "s"
    bound_like_others = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(path))
        closed.listen()
        path.chmod(0)
        report = diagnose({**patient.environ, "NVSHARE_SOCK": str(path)}, through=bound_like_others)
    found = report.of("scheduler", "problem")
    assert f"you may not connect to {path} (from NVSHARE_SOCK), which belongs to" in found["seen"]
    assert "unset NVSHARE_SOCK" in found["remedy"]


def test_a_socket_of_something_else(patient: Patient, diagnose: Diagnose, short: Path) -> None:
    path = short / "s"
    path.write_text("no socket at all")
    found = diagnose({**patient.environ, "NVSHARE_SOCK": str(path)}).of("scheduler", "problem")
    assert "is not an nvshare scheduler" in found["seen"]
    assert "NVSHARE_SOCK" in found["remedy"]


def test_a_scheduler_that_does_not_answer(patient: Patient, diagnose: Diagnose, short: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short / "s"))
        silent.listen()
        environ = {**patient.environ, "NVSHARE_SOCK": str(short / "s")}
        found = diagnose(environ, "--timeout", "2").of("scheduler", "problem")
    assert "does not answer in time" in found["seen"]


def test_a_scheduler_that_was_stopped_is_one_finding(patient: Patient) -> None:
    start_scheduler(patient)
    with Connection(patient.node.socket) as connection:
        pid = connection.status()["scheduler"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        found = [one for one in patient.examined("--timeout", "2").findings if one["check"] == "scheduler"]
        with Connection(patient.node.socket, 0.5) as connection, pytest.raises(SchedulerError) as silence:
            connection.status()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [(one["state"], one["remedy"]) for one in found] == [("problem", f"let it go on: kill -CONT {pid}")]
    assert f"was stopped (process {pid})" in found[0]["seen"]
    # AND so do other commands say, which no longer wait
    assert str(silence.value).endswith(f"(its process {pid} was stopped; let it go on: kill -CONT {pid})")


def test_another_scheduler_has_the_cards(patient: Patient, diagnose: Diagnose, runtime: dict[str, str]) -> None:
    start_scheduler(patient)
    report = diagnose({**patient.environ, **runtime})
    found = [one for one in report.findings if (one["check"], one["state"]) == ("scheduler", "problem")]
    assert [one["seen"].partition(" has another scheduler")[0] for one in found] == [
        f"card {uuid}" for uuid in patient.node.uuids
    ]
    assert str(patient.node.socket) in found[0]["seen"]


# ---- settings


def test_settings_that_cannot_be_used_or_are_none(patient: Patient) -> None:
    report = patient.examined(NVSHARE_GPU_MEMORY_LIMIT="lots", NVSHARE_GPU_MEM_LIMIT="4Gi")
    assert "NVSHARE_GPU_MEMORY_LIMIT='lots' cannot be used" in report.of("settings", "warning")["seen"]
    assert "NVSHARE_GPU_MEM_LIMIT is no setting" in report.of("settings", "note")["seen"]
