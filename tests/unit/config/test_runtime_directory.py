"""The runtime directory is ours alone, or nothing is opened, written or connected to in there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvshare import config, native
from nvshare.cli.ctl import main as ctl
from nvshare.cli.main import main as nvshare
from nvshare.client.spawn import LOG_NAME, SchedulerNotStarted, ensure_scheduler

ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs to give a directory to another user")
SOMEBODY_ELSE = 4711


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def link(base: Path) -> None:
    (base / "elsewhere").mkdir()
    (base / "nvshare").symlink_to(base / "elsewhere")


def open_to_all(base: Path) -> None:
    (base / "nvshare").mkdir()
    (base / "nvshare").chmod(0o777)


def file(base: Path) -> None:
    (base / "nvshare").touch()


def others(base: Path) -> None:
    (base / "nvshare").mkdir(mode=0o755)
    os.chown(base / "nvshare", SOMEBODY_ELSE, SOMEBODY_ELSE)


def below_others(base: Path) -> None:
    os.chown(base, SOMEBODY_ELSE, SOMEBODY_ELSE)


UNTRUSTED = [link, open_to_all, file, pytest.param(others, marks=ROOT)]


def test_it_is_made_closed_to_others(base: Path) -> None:
    made = config.own_runtime_directory()
    assert made == base / "nvshare"
    assert made.stat().st_mode & 0o777 == 0o700
    assert config.own_runtime_directory() == made


@pytest.mark.parametrize("spoil", [*UNTRUSTED, pytest.param(below_others, marks=ROOT)])
def test_what_others_could_have_prepared_is_refused(base: Path, spoil) -> None:
    spoil(base)
    with pytest.raises(config.RuntimeUnusable, match=r"nvshare .*; set XDG_RUNTIME_DIR to a directory of your own"):
        config.own_runtime_directory()


@pytest.mark.parametrize("spoil", UNTRUSTED)
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--", "true"),
        ("run", "--sim", "2xT4", "--", "true"),
        ("env",),
        ("env", "--sim", "2xT4"),
        ("sim", "list"),
        ("sim", "up", "2xT4"),
        ("bench", "mission", "--sim", "2xT4", "--only", "3", "--shorten", "0.01"),
    ],
    ids=" ".join,
)
def test_commands_say_so_in_one_line_and_touch_nothing(base: Path, spoil, arguments: tuple[str, ...]) -> None:
    spoil(base)
    result = CliRunner().invoke(nvshare, arguments)
    assert result.exit_code == 2, result.output
    assert result.output.count("\n") == 1
    assert "set XDG_RUNTIME_DIR" in result.output
    assert not any(path for path in base.glob("*/*"))


def test_a_planted_socket_is_not_talked_to(base: Path) -> None:
    open_to_all(base)
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(base / "nvshare" / "scheduler.sock"))
        planted.listen()
        planted.setblocking(False)
        result = CliRunner().invoke(ctl, ["status"])
        assert result.exit_code == 2
        assert "can be written by others" in result.output
        with pytest.raises(BlockingIOError):
            planted.accept()


def test_the_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / LOG_NAME).symlink_to(victim)
    with pytest.raises(SchedulerNotStarted, match="symbolic links"):
        ensure_scheduler(tmp_path / "s.sock", {"PATH": os.environ["PATH"]})
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["a b", "a:b", "a$LIB"])
def test_a_library_that_the_loader_would_misread_gets_a_safe_name(
    base: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = base / name
    build.mkdir()
    (build / "libnvshare.so").write_text("library")
    monkeypatch.setattr(native, "_directory", lambda: build)
    library = native.interposer()
    assert library == native.interposer()
    assert library.parent == base / "nvshare"
    assert library.name.startswith("libnvshare-")
    assert library.suffix == ".so"
    assert library.read_text() == "library"


def test_no_safe_name_at_all_is_an_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "a b").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "a b"))
    monkeypatch.setattr(native, "_directory", lambda: base / "a b")
    with pytest.raises(native.NativeMissing, match=r"cannot be named in LD_PRELOAD.*XDG_RUNTIME_DIR"):
        native.interposer()
