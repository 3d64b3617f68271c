"""Looking at files: the machine below a root of the test's own, sockets, libraries."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshare.doctor.look import host, scheduler, shell

GIB = 1 << 30


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory for sockets, whose paths have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="nvs-", dir="/tmp") as directory:
        yield Path(directory)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_bare_directory_tells_nothing(tmp_path: Path) -> None:
    found = host.look({}, tmp_path)
    assert (found.container, found.kernel_module, found.mps, found.kubelet) == (None, False, (), None)
    assert (found.memory_total, found.memory_budget, found.memory_limit, found.shm_total) == (None, None, None, None)
    assert found.closed_devices == ()


def test_memory_and_processes_are_read_from_proc(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\n")
    write(tmp_path / "proc/driver/nvidia/version", "NVRM version")
    for pid, name in ((7, "nvidia-cuda-mps"), (9, "nvidia-cuda-mps"), (11, "python")):
        write(tmp_path / f"proc/{pid}/comm", name + "\n")
    found = host.look({}, tmp_path)
    assert found.memory_total == GIB
    assert found.memory_budget == int(0.8 * GIB)
    assert found.kernel_module
    assert sorted(found.mps) == [7, 9]


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{4 * GIB}\n"}, 4 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{2 * GIB}\n", "a/memory.max": f"{4 * GIB}\n"}, 2 * GIB),
        ("0::/not/here\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("5:cpu:/a\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{GIB}\n", "a/memory.max": "1\n"}, GIB),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_the_smallest_limit_of_the_control_groups_counts(
    tmp_path: Path, group: str, files: dict[str, str], limit: int | None
) -> None:
    write(tmp_path / "proc/self/cgroup", group)
    for name, text in files.items():
        write(tmp_path / "sys/fs/cgroup" / name, text)
    assert host.look({}, tmp_path).memory_limit == limit


def test_the_kind_of_container_is_known(tmp_path: Path) -> None:
    write(tmp_path / ".dockerenv", "")
    assert host.look({}, tmp_path).container == "Docker container"
    assert host.look({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path).container == "pod"


def test_device_plugins_that_nobody_serves_any_more_do_not_count(short: Path) -> None:
    directory = short / "var/lib/kubelet/device-plugins"
    directory.mkdir(parents=True)
    write(directory / "kubelet_internal_checkpoint", "{}")
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(directory / "nvidia-gpu.sock"))
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(directory / "nvshare.sock"))
        alive.listen()
        found = host.look({}, short).kubelet
    assert found is not None
    assert (found.readable, found.sockets) == (True, ("nvshare.sock",))


@pytest.mark.parametrize(
    ("environ", "system_there", "chosen"),
    [
        ({}, False, "user"),
        ({}, True, "system"),
        ({"NVSHARE_SOCK": "/nowhere/s"}, True, "NVSHARE_SOCK"),
        ({"NVSHARE_SOCK": "/nowhere/s", "NVSHARE_SIM_NODE": "/nowhere"}, True, "simulated node"),
    ],
)
def test_which_scheduler_is_meant(short: Path, environ: dict[str, str], system_there: bool, chosen: str) -> None:
    system = short / "system.sock"
    if system_there:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(system))
    found, status = scheduler.look({"XDG_RUNTIME_DIR": str(short), **environ}, (), 1.0, system)
    assert found.chosen_by == chosen
    assert found.answer == ("dead" if chosen == "system" else "absent")
    assert status == {}


def test_a_path_that_no_socket_can_have_is_unusable() -> None:
    found, _status = scheduler.look({"NVSHARE_SOCK": "/tmp/" + "x" * 200}, (), 1.0)
    assert found.answer == "unusable"
    assert "too long" in found.detail


def test_whoever_may_write_to_the_directory_may_replace_a_socket(short: Path) -> None:
    directory = short / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "s"))
    environ = {"NVSHARE_SOCK": str(directory / "s")}
    found, _status = scheduler.look(environ, (), 1.0)
    assert found.file is not None
    assert found.file.directory_open
    directory.chmod(0o1777)
    found, _status = scheduler.look(environ, (), 1.0)
    assert found.file is not None
    assert not found.file.directory_open


def test_preloaded_libraries_are_told_apart(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    listed = tmp_path / "ld.so.preload"
    listed.write_text(f"# ours\n{sys.executable} # by the administrator\n")
    environ = {"LD_PRELOAD": f"libfoo.so /usr/$LIB/libbar.so:{text}:/nowhere/libnvshare.so"}
    found = shell.library(environ, listed)
    assert [(one.entry, one.origin, one.exists, one.searched) for one in found.preloads] == [
        ("libfoo.so", "LD_PRELOAD", True, True),
        ("/usr/$LIB/libbar.so", "LD_PRELOAD", True, True),
        (str(text), "LD_PRELOAD", True, False),
        ("/nowhere/libnvshare.so", "LD_PRELOAD", False, False),
        (sys.executable, str(listed), True, False),
    ]
    assert [one.machine for one in found.preloads[:4]] == [None] * 4
    assert found.preloads[4].machine == found.own_machine
    assert [one.is_ours for one in found.preloads] == [False, False, False, True, False]


def test_the_environment_is_the_users_and_the_nodes() -> None:
    own = {"CUDA_VISIBLE_DEVICES": "0", "NVSHARE_PRIORITY": "urgent", "NVSHARE_CORES": "30"}
    node = {**own, "NVSHARE_SOCK": "/node/scheduler.sock", "NVSHARE_SIM_NODE": "/node"}
    found = shell.environment(own, node)
    assert (found.visible, found.order, found.takes_part, found.simulated) == ("0", None, (), True)
    assert "NVSHARE_PRIORITY='urgent' cannot be used" in found.unusable[0]
    assert found.unknown == ("NVSHARE_CORES",)
    assert shell.environment(node, node).takes_part == ("NVSHARE_SOCK",)
