"""``nvshare install`` and ``nvshare cdi``: what a machine is given, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvshare import native
from nvshare.cli.install import UNIT, changeable_part, unit_text


def nvshare(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nvshare", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def as_root_with_systemd() -> None:
    if shutil.which("systemctl") is None or changeable_part(Path(sys.executable)) is not None:
        pytest.skip("there is no systemctl, or this tree is not root's")


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    # GIVEN the unit as it would be installed
    done = nvshare("install", "--system", "--print")
    assert done.returncode == 0, done.stderr
    (tmp_path / UNIT).write_text(done.stdout)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    # WHEN systemd looks at it THEN it has nothing to say
    said = subprocess.run(["systemd-analyze", "verify", tmp_path / UNIT], check=False, capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_any_path_of_the_program_is_quoted() -> None:
    assert 'ExecStart="/opt/a b/50%%/\\"x\\"" --socket' in unit_text(Path('/opt/a b/50%/"x"'))


def test_the_service_is_installed_and_removed(tmp_path: Path) -> None:
    as_root_with_systemd()
    unit = tmp_path / "etc" / "systemd" / "system" / UNIT
    wanted = unit.parent / "multi-user.target.wants" / UNIT
    for _ in range(2):  # again is no mistake
        done = nvshare("install", "--system", "--root", str(tmp_path))
        assert (done.returncode, done.stdout) == (0, f"installed {unit}\n"), done.stderr
        assert unit.read_text() == nvshare("install", "--system", "--print").stdout
        assert wanted.is_symlink()
    done = nvshare("install", "--system", "--uninstall", "--root", str(tmp_path))
    assert done.returncode == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()]
    done = nvshare("install", "--system", "--uninstall", "--root", str(tmp_path))
    assert done.returncode == 1
    assert "nothing to remove" in done.stderr


def test_what_others_may_change_is_found(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "program"
    program.parent.mkdir()
    program.touch(mode=0o755)
    if changeable_part(program) is not None:
        pytest.skip("this directory is not root's")
    program.parent.chmod(0o775)
    assert changeable_part(program) == program.parent


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say what to install: --system"),
        (("--system", "--print", "--uninstall"), "--print changes nothing"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = nvshare("install", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_cdi_names_the_library_and_the_scheduler_of_the_machine(tmp_path: Path) -> None:
    written = tmp_path / "cdi" / "nvshare.json"
    assert nvshare("cdi", "--output", str(written)).stdout == f"wrote {written}\n"
    specification = json.loads(written.read_text())
    assert specification == json.loads(nvshare("cdi").stdout)
    assert specification["kind"] == "nvshare.com/gpu"
    (device,) = specification["devices"]
    assert device["name"] == "shared"
    edits = device["containerEdits"]
    assert edits["env"] == [
        "LD_PRELOAD=/usr/local/lib/libnvshare.so",
        "NVSHARE_SOCK=/var/run/nvshare/scheduler.sock",
    ]
    assert {mount["hostPath"]: mount["containerPath"] for mount in edits["mounts"]} == {
        str(native.built_interposer()): "/usr/local/lib/libnvshare.so",
        "/var/run/nvshare": "/var/run/nvshare",
    }
    assert all("ro" in mount["options"] for mount in edits["mounts"])


def test_cdi_says_where_it_cannot_write() -> None:
    done = nvshare("cdi", "--output", "/proc/nvshare.json")
    assert done.returncode == 1
    assert "/proc/nvshare.json cannot be written" in done.stderr
