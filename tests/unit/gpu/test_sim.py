"""Simulated nodes as directories: making, joining, ending; the command that does it."""

from __future__ import annotations

import json
import re
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvshare.cli.sim import command
from nvshare.gpu import profiles, sim


@pytest.fixture(autouse=True)
def own_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    for name in sim.names():
        sim.down(name)


def test_a_node_is_made_once_and_joined_afterwards() -> None:
    made = sim.up("2xT4", 10)
    assert sim.up("2xt4", 10) == sim.up("2xT4") == sim.find("2xT4") == made
    assert [node.name for node in sim.nodes()] == ["2xT4"]
    assert made.socket == made.directory / "scheduler.sock"
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700
    sim.down("2xT4")
    assert sim.nodes() == []
    assert not made.directory.exists()


def test_a_card_alone_is_a_node_of_one() -> None:
    made = sim.up("T4")
    assert made.name == "1xT4"
    assert sim.find("T4") == sim.find("t4") == made
    # AND a node that has the card's name itself comes first
    named = sim.up("2xT4", name="T4")
    assert sim.find("T4") == named
    sim.down("T4")
    sim.down("T4")
    assert sim.names() == []
    with pytest.raises(sim.NodeNotFound, match="no simulated node 'T4' is up"):
        sim.find("T4")


def test_uuids_look_real_and_differ_between_nodes() -> None:
    uuids = [*sim.up("2xT4").uuids, *sim.up("2xT4", name="other").uuids]
    assert len(set(uuids)) == 4
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) for uuid in uuids)


def test_other_parameters_are_refused_while_a_node_is_up() -> None:
    sim.up("2xT4", 10, name="mine")
    with pytest.raises(sim.SimError, match=r"its speed is 10, not 5.*nvshare sim down mine"):
        sim.up("2xT4", 5, name="mine")
    with pytest.raises(sim.SimError, match=r"it is 2xT4, not 1xH200"):
        sim.up("H200", name="mine")
    with pytest.raises(sim.SimError, match="other figures"):
        sim.up("2xT4", name="mine", profile=profiles.load("T4").scaled(link=0.5))


def test_a_profile_of_ones_own_is_kept() -> None:
    slow = profiles.load("T4").scaled(link=0.5, kernel=2)
    sim.up("2xT4", name="slow", profile=slow)
    assert sim.find("slow").profile == slow


def test_how_the_cards_are_set_up_is_kept_and_must_agree() -> None:
    exclusive = sim.Setup(compute_mode=3)
    assert sim.up("2xT4", name="set", setup=exclusive).setup == sim.find("set").setup == exclusive
    assert sim.up("2xT4", name="set").setup == exclusive
    with pytest.raises(sim.SimError, match="set up otherwise"):
        sim.up("2xT4", name="set", setup=sim.Setup())


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "x" * 64])
def test_names_that_are_no_directory_names_are_refused(name: str) -> None:
    with pytest.raises(sim.NodeNotFound, match="up: none"):
        sim.find(name)
    if name:
        with pytest.raises(ValueError, match="cannot be the name"):
            sim.up("T4", name=name)


@pytest.mark.parametrize("speed", [0, -1, 1e6, float("nan")])
def test_a_speed_out_of_range_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match=r"0\.01 to 1000"):
        sim.up("T4", speed)


def test_counters_of_a_node_that_nobody_used_are_zero() -> None:
    node = sim.up("T4")
    (gpu,) = node.counters()
    assert gpu["launches"] == gpu["memory_used"] == 0
    assert gpu["contexts"] == []
    assert node.process_counters() == [{}]


def test_a_state_of_another_version_is_refused_and_can_be_ended() -> None:
    node = sim.up("T4")
    (node.directory / "state").write_bytes(b"\1" * 4096)
    with pytest.raises(sim.SimError, match="another version"):
        node.counters()
    (node.directory / "node.conf").write_text("format 99\n")
    with pytest.raises(sim.SimError, match="another version"):
        sim.find("1xT4")
    sim.down("1xT4")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("node.conf", b"\xff\xfe garbage"),
        ("node.conf", b"name old\nspeed fast\n"),
        ("state", b"short"),
        ("state", b"x" * 4096),
        ("state", struct.pack("=QII8Id", 0x65726168736E7673, 1, 2, 1 << 30, 8, 8, 8, 1 << 30, 8, 8, 0, 1.0)),
    ],
)
def test_an_unusable_node_is_listed_with_the_remedy_and_so_are_the_others(file: str, content: bytes) -> None:
    (sim.up("2xT4", name="broken").directory / file).write_bytes(content)
    sim.up("2xT4", name="fine")
    result = CliRunner().invoke(command, ["list"])
    assert result.exit_code == 0, result.output
    broken, fine = result.output.splitlines()
    assert broken.startswith("broken: unusable")
    assert "nvshare sim down broken" in broken
    assert fine.startswith("fine: 2 x ")
    assert CliRunner().invoke(command, ["down", "broken"]).exit_code == 0


def test_ending_a_node_stops_its_scheduler() -> None:
    # GIVEN a process that calls itself nvshare's scheduler / WHEN its node ends / THEN it is gone
    node = sim.up("T4")
    program = [sys.executable, "-c", "print(flush=True); input()  # nvshare", "nvshare"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()  # just after it was started the kernel may not know its name yet
        (node.directory / "scheduler.pid").write_text(f"{process.pid}\n")
        sim.down(node.name)
        assert process.wait(10) == -15


def test_a_number_taken_by_another_program_is_left_alone() -> None:
    node = sim.up("T4")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        (node.directory / "scheduler.pid").write_text(f"{process.pid}\n")
        sim.down(node.name)
        assert process.poll() is None
        process.kill()


def test_the_command_makes_shows_lists_and_ends_nodes() -> None:
    def nvshare_sim(*args: str, code: int = 0) -> str:
        result = CliRunner().invoke(command, args)
        assert result.exit_code == code, result.output
        return result.output

    assert "no simulated node" in nvshare_sim("list")
    assert "2 x Tesla T4, speed 10" in nvshare_sim("up", "2xT4", "--speed", "10")
    assert "2xT4: 2 x Tesla T4" in nvshare_sim("list")
    shown = json.loads(nvshare_sim("show", "2xT4", "--json"))
    assert shown["simulated"]
    assert len(shown["gpus"]) == 2
    assert "0 launches" in nvshare_sim("show", "2xT4")
    assert "H200" in nvshare_sim("up", "2xT9", code=2)
    assert "up: 2xT4" in nvshare_sim("down", "other", code=1)
    assert "2xT4 is down" in nvshare_sim("down")
    assert "say which" in nvshare_sim("down", code=1)
    assert nvshare_sim("down", "--all") == ""
