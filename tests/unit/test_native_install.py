"""The library of a node is replaced as a whole, under the feet of those who have it mapped."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from nvshare import native


def test_the_library_lies_there_whole_and_nothing_else(tmp_path: Path) -> None:
    installed = native.install(tmp_path / "lib")
    assert installed.read_bytes() == native.interposer().read_bytes()
    assert [path.name for path in (tmp_path / "lib").iterdir()] == ["libnvshare.so"]
    assert installed.stat().st_mode & 0o777 == 0o755


def test_who_has_the_old_one_mapped_keeps_it(tmp_path: Path) -> None:
    library = tmp_path / "libnvshare.so"
    library.write_bytes(b"old" * 4096)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        native.install(tmp_path)
        assert mapped[:] == b"old" * 4096
    assert library.read_bytes() == native.interposer().read_bytes()


def test_what_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libnvshare.so"
    library.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        native.install(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["libnvshare.so"]
    assert library.read_bytes() == b"old"


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "nvshare.native", str(tmp_path / "file")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith("[NVSHARE][FATAL]: libnvshare.so cannot be installed in")
    assert len(done.stderr.splitlines()) == 1
