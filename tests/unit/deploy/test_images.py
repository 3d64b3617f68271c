"""``make images``: from this machine's wheel, by whichever builder works, with the names that the chart asks for."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
IMAGES = TREE / "deploy" / "images"
NAMES = ("scheduler", "device-plugin", "workloads")

WHEEL = f"nvshare-1.2.3-py3-none-manylinux_2_17_{platform.machine()}.whl"

BUILDER = """#!/bin/sh
[ "$1" = info ] && exit {works}
for last; do :; done
echo "$@" >> {log}
(cd "$last" && find . -type f) >> {log}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the script needs of a source tree, with wheels of two architectures in it."""
    for part in ("tools/images.sh", *(f"deploy/images/{name}.Dockerfile" for name in NAMES)):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TREE / part, tmp_path / part)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / WHEEL).touch()
    (tmp_path / "dist" / "nvshare-1.2.3-py3-none-manylinux_2_17_another.whl").touch()
    (tmp_path / "bin").mkdir()
    return tmp_path


def add_builder(tree: Path, name: str, works: bool = True) -> None:
    program = tree / "bin" / name
    program.write_text(BUILDER.format(works=0 if works else 1, log=tree / "log"))
    program.chmod(0o755)


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{tree / 'bin'}:/usr/bin:/bin"}
    command = ["sh", str(tree / "tools" / "images.sh"), "registry.example/team", "1.2.3"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_each_image_is_built_from_the_wheel_alone(tree: Path) -> None:
    add_builder(tree, "docker")
    done = build(tree)
    assert done.returncode == 0, done.stderr
    said = (tree / "log").read_text()
    assert re.findall(r"--tag (\S+)", said) == [f"registry.example/team/nvshare-{name}:1.2.3" for name in NAMES]
    sent = [line for line in said.splitlines() if line.startswith("./")]
    assert sent == [f"./dist/{WHEEL}"] * len(NAMES)


def test_a_builder_that_does_not_work_is_passed_over(tree: Path) -> None:
    add_builder(tree, "docker", works=False)
    add_builder(tree, "podman")
    assert build(tree).returncode == 0
    assert (tree / "log").exists()


def test_without_a_builder_it_says_what_to_do(tree: Path) -> None:
    for name in ("docker", "podman", "buildah"):
        add_builder(tree, name, works=False)
    done = build(tree)
    assert done.returncode == 1
    assert "no docker, podman or buildah that works here: install one" in done.stderr


def test_two_wheels_are_one_too_many(tree: Path) -> None:
    add_builder(tree, "docker")
    (tree / "dist" / WHEEL.replace("1.2.3", "1.2.2")).touch()
    done = build(tree)
    assert done.returncode == 1
    assert "has to hold one wheel" in done.stderr


def test_the_workloads_are_nobody_in_particular() -> None:
    users = {
        name: re.findall(r"^USER (\S+)", (IMAGES / f"{name}.Dockerfile").read_text(), re.MULTILINE) for name in NAMES
    }
    assert users["workloads"] == ["65534:65534"]
    assert all(len(user) == 1 for user in users.values())
