"""``nvshare bench`` as a user types it, in the model."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvshare.bench import mission
from nvshare.cli.bench import command
from nvshare.cli.node_options import plain_errors
from nvshare.gpu.cards import NoCards

FIELDS = {"test", "tasks", "mode", "duration_s", "baseline_s", "ratio", "swapped_bytes", "switches", "source"}


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["mission", *arguments])


def test_the_model_prints_report_table_and_findings_and_writes_rows(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    result = bench("--model", "2xT4", "--shorten", "0.02", "--json", str(target))
    assert result.exit_code == 0, result.output
    assert "Test 4: 4 small on 2 GPUs (model)" in result.output
    assert "Total: 4, Pass: 4, Fail: 0" in result.output
    assert "Density: 3 add-idle-small per GPU" in result.output
    content = json.loads(target.read_text())
    assert (content["kind"], content["version"]) == ("mission", 1)
    assert (content["simulated"], content["source"], content["spec"]) == (True, "model", "2xT4")
    assert (content["speed"], content["scale"], set(content["shorten"].values())) == (1.0, {}, {0.02})
    assert [row["test"] for row in content["rows"]] == [0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 5, 6, 2, 2]
    assert all(row.keys() >= FIELDS for row in content["rows"])


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mission.Mission, "rows", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    for option in ("--json", "--html"):
        for target in (tmp_path / "no" / "x.json", tmp_path / "file" / "x.json"):
            result = bench("--model", "2xT4", option, str(target))
            assert result.exit_code == 2
            assert result.output.startswith(f"[NVSHARE][FATAL]: {option}: {target} cannot be written (")
            assert result.output.count("\n") == 1
    assert not (tmp_path / "no").exists()


def test_what_was_in_the_file_stays_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.json"
    assert bench("--model", "2xT4", "--shorten", "0.01", "--only", "3", "--json", str(target)).exit_code == 0
    earlier = target.read_text()
    monkeypatch.setattr(mission.Mission, "rows", interrupted)
    assert bench("--model", "2xT4", "--json", str(target)).exit_code == 130
    assert target.read_text() == earlier


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_the_terminal_is_as_clean_as_ctrl_c(number: signal.Signals) -> None:
    with pytest.raises(SystemExit, match=str(128 + number)), plain_errors():
        signal.raise_signal(number)
    assert signal.getsignal(number) is signal.SIG_DFL


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_only_the_tests_asked_for_are_shown(tmp_path: Path) -> None:
    result = bench("--model", "2xT4", "--shorten", "0.01", "--only", "1,4")
    assert result.exit_code == 0
    assert "Test 1:" in result.output
    assert "Test 4:" in result.output
    assert "Test 0:" not in result.output
    assert "Test 3:" not in result.output


def test_two_runs_of_a_day_write_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshare.bench.machine.time.strftime", lambda form: "2026-11-15")
    for name in ("a", "b"):
        bench("--model", "2xT4", "--shorten", "0.01", "--json", str(tmp_path / name))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (("--model", "2xT4", "--only", "7"), "there is no test '7': allowed are 0, 1, 2, 3, 4, 5, 6"),
        (("--model", "2xT4", "--only", "one"), "there is no test 'one': allowed are"),
        (("--model", "2xPotato"), "Potato"),
        (("--model", "2xT4", "--scale", "kernel=0"), "kernel=2"),
        (("--model", "2xT4", "--scale", "heat=2"), "link=0.5"),
        (("--model", "2xT4", "--scale", "link=1e-300"), "'link=1e-300': use link=0.5"),
        (("--model", "2xT4", "--scale", "link=0.0099"), "from 0.01 to 100"),
        (("--model", "2xT4", "--scale", "kernel=1e300"), "from 0.01 to 100"),
        (("--model", "2xT4", "--scale", "kernel=1000000"), "from 0.01 to 100"),
        (("--sim", "2xT4", "--scale", "kernel=nan"), "from 0.01 to 100"),
        (("--model", "2xT4", "--sim", "2xT4"), "choose one"),
        (("--scale", "kernel=2"), "give --model or --sim too"),
        (("--model", "2xT4", "--shorten", "0"), "--shorten"),
    ],
)
def test_bad_input_is_refused_with_what_is_allowed(arguments: tuple[str, ...], explanation: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert explanation in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (("eviction", "--card-memory", "11GiB"), "12GiB or more, and less than 18GiB"),
        (("eviction", "--card-memory", "18GiB"), "12GiB or more, and less than 18GiB"),
        (("swap", "--card-memory", "8GiB"), "more than half of --card-memory and at most all of it"),
        (("swap", "--card-memory", "24GiB"), "more than half of --card-memory and at most all of it"),
        (("mission", "--model", "2xT4", "--speed", "3"), "--speed is that of a simulated node: give --sim"),
        (("mission", "--speed", "10"), "--speed is that of a simulated node: give --sim"),
        (("eviction", "--model", "A100-40G", "--speed", "3"), "--speed is that of a simulated node: give --sim"),
        (("swap", "--speed", "3"), "--speed is that of a simulated node: give --sim"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_measured_as_asked_is_refused_before_anything_starts(
    arguments: tuple[str, ...], explanation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in ("venues.real", "ModelBackend"):
        monkeypatch.setattr(f"nvshare.cli.bench.{start}", lambda *_, **__: pytest.fail("it started"))
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert explanation in " ".join(result.output.split())


@pytest.mark.parametrize("name", ["eviction", "swap"])
def test_without_a_gpu_a_node_is_advised_that_has_the_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cards(*_: object) -> None:
        raise NoCards("no GPU here")

    monkeypatch.setattr("nvshare.cli.bench.venues.real", no_cards)
    result = CliRunner().invoke(command, [name])
    assert result.exit_code == 2
    advised = re.search(r"--sim (\S+)", result.output)
    assert advised is not None
    # AND what is advised works
    assert CliRunner().invoke(command, [name, "--model", advised[1]]).exit_code == 0
