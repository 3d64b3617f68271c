"""``nvshare doctor`` where there is nothing that it could look at."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from nvshare import native
from nvshare.cli.main import main
from nvshare.gpu import sim


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise native.NativeMissing("libnvshare.so is not built; run: make native")

    class Node:
        def env(self) -> None:
            missing()

    monkeypatch.setattr(sim, "find", lambda spec: Node())
    monkeypatch.setattr(native, "interposer", missing)


@pytest.mark.usefixtures("no_library")
def test_a_simulated_node_without_the_library_is_one_finding() -> None:
    done = CliRunner().invoke(main, ["doctor", "--sim", "2xT4", "--json"])
    assert done.exit_code == 2
    (finding,) = json.loads(done.output)["findings"]
    assert (finding["state"], finding["check"]) == ("problem", "library")
    assert "is not built" in finding["seen"]
    assert "make native" in finding["remedy"]


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("command", [("run", "--", "true"), ("env",)], ids=" ".join)
def test_other_commands_say_it_in_one_line(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, done.output) == (2, "[NVSHARE][FATAL]: libnvshare.so is not built; run: make native\n")
