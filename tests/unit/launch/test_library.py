"""``import nvshare`` is the library, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nvshare
from nvshare import launch

HEAVY = {"asyncio", "grpc", "http", "kubernetes", "numpy", "pynvml", "rich.live"}


def imported(*arguments: str) -> set[str]:
    """The modules that Python imports for this."""
    command = [sys.executable, "-X", "importtime", *arguments]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return {line.rsplit("|", 1)[1].strip() for line in said.splitlines() if line.startswith("import time:")}


def test_all_of_the_library_is_there_by_name() -> None:
    assert {name for name in nvshare.__all__ if name != "__version__"} == set(launch.__all__)
    assert all(getattr(nvshare, name) is getattr(launch, name) for name in launch.__all__)
    assert set(nvshare.__all__) <= set(dir(nvshare))
    with pytest.raises(AttributeError, match="has no attribute 'leese'"):
        nvshare.leese  # type: ignore[attr-defined] # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    stub = Path(nvshare.__file__).with_suffix(".pyi").read_text()
    names = {line.split()[-1] for line in stub.splitlines() if line.startswith("from nvshare.launch import")}
    assert names == set(launch.__all__)
    assert Path(nvshare.__file__).with_name("py.typed").exists()


@pytest.mark.parametrize("arguments", [("-m", "nvshare", "--help"), ("-c", "import nvshare")])
def test_starting_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    modules = imported(*arguments)
    assert "nvshare" in modules
    assert not {name for name in modules if any(name == heavy or name.startswith(f"{heavy}.") for heavy in HEAVY)}
