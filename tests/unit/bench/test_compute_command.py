"""``nvshare bench compute`` as a user types it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvshare.bench import venues
from nvshare.bench.compute import live
from nvshare.bench.compute.rows import Row
from nvshare.bench.compute.scenarios import PARTS
from nvshare.bench.compute.stage import Rehearsal
from nvshare.bench.processes import Venue
from nvshare.bench.worker import WorkerFailed
from nvshare.cli import bench as bench_command
from nvshare.gpu.cards import NoCards


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(bench_command.command, ["compute", *arguments])


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started: every scene is played in no time, on a card that is not there."""

    @contextlib.contextmanager
    def venue(spec: str | None, purpose: str) -> Iterator[Venue]:
        source = "gpu" if spec is None else "simulated"
        yield Venue(source, f"1 x H200{'' if spec is None else ' (simulated)'}", ("GPU-1",), Path("/none"), {})

    @contextlib.contextmanager
    def stage(
        venue: Venue, kit: str, seconds: float, start: float, told: object, with_mps: bool
    ) -> Iterator[Rehearsal]:
        yield Rehearsed(seconds, start, mps=None if with_mps else "none")

    monkeypatch.setattr(venues, "chosen", venue)
    monkeypatch.setattr(live, "on", stage)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


class Rehearsed(Rehearsal):
    versions = {"torch": "2.0"}  # noqa: RUF012


@pytest.mark.usefixtures("rehearsed")
def test_rows_are_shown_and_written_with_what_they_were_measured_on(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    page = tmp_path / "page.html"
    options = ("--only", "pairs,change", "--seconds", "2", "--json", str(target), "--html", str(page))
    result = bench("--sim", "H200", *options)
    assert result.exit_code == 0, result.output
    assert "nvshare bench compute on 1 x H200 (simulated)" in result.output
    assert "27 of 27 judged rows are as promised" in result.output
    assert "These figures are simulated" in result.output
    content = json.loads(target.read_text())
    assert (content["simulated"], content["source"], content["complete"], content["seconds"]) == (
        True,
        "simulated",
        True,
        2.0,
    )
    assert (content["kind"], content["version"]) == ("compute", 1)
    assert content["versions"].keys() >= {"nvshare", "python"}
    assert content["date"]
    drawn = sum(len(row["delivered"]) for row in content["rows"] if row["quotas"])
    assert page.read_text().count('data-plot="delivered"') == drawn
    assert len(content["rows"]) == 27
    first = content["rows"][0]
    assert (first["quotas"], first["expected"], first["error_points"], first["ok"]) == ([30, 60], [0.3, 0.6], 0.0, True)


@pytest.mark.usefixtures("rehearsed")
def test_real_cards_are_not_called_simulated_and_versions_are_told(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    result = bench("--real", "--only", "idle", "--json", str(target))
    assert result.exit_code == 0, result.output
    assert "simulated" not in result.output
    content = json.loads(target.read_text())
    assert (content["simulated"], content["versions"]["torch"]) == (False, "2.0")


@pytest.mark.usefixtures("rehearsed")
def test_the_time_it_takes_is_told_first() -> None:
    assert "pairs; about 4.7 min" in bench("--real", "--only", "pairs").output
    assert "pairs; about 1.2 min" in bench("--sim", "H200", "--only", "pairs", "--seconds", "2").output


@pytest.mark.usefixtures("rehearsed")
def test_a_window_too_short_for_a_burst_is_refused_in_one_line() -> None:
    result = bench("--sim", "H200", "--only", "idle", "--seconds", "0.2")
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert result.output.count("\n") == 1
    assert "interactive alone did not end a burst in the measured time: use a larger --seconds" in result.output


@pytest.mark.usefixtures("rehearsed")
def test_a_worker_that_fails_ends_its_part_and_not_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(stage: object) -> Iterator[Row]:
        yield Row("quotas", "add alone", ok=True)
        raise WorkerFailed("the worker add 1 (nvshare) ended: no memory")

    monkeypatch.setitem(PARTS, "quotas", fails)
    monkeypatch.setattr(bench_command, "scene_seconds", lambda *_: 1.0)
    target = tmp_path / "result.json"
    result = bench("--sim", "H200", "--only", "quotas,change", "--json", str(target))
    assert result.exit_code == 1
    found = json.loads(target.read_text())["rows"]
    assert [row["ok"] for row in found] == [True, False, True, True, True]
    assert found[1]["note"] == "the worker add 1 (nvshare) ended: no memory"


@pytest.mark.usefixtures("rehearsed")
def test_a_run_that_is_cut_short_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(stage: object) -> Iterator[Row]:
        yield Row("quotas", "add alone", ok=True)
        raise KeyboardInterrupt

    monkeypatch.setitem(PARTS, "quotas", interrupted)
    monkeypatch.setattr(bench_command, "scene_seconds", lambda *_: 1.0)
    target = tmp_path / "result.json"
    result = bench("--sim", "H200", "--only", "quotas", "--json", str(target))
    assert result.exit_code == 130
    content = json.loads(target.read_text())
    assert (content["complete"], len(content["rows"])) == (False, 1)


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (("--only", "speed"), "there is no part 'speed': allowed are quotas, pairs, free, idle, change"),
        (("--only", ""), "there is no part ''"),
        (("--sim", "Potato"), "Potato"),
        (("--sim", "H200", "--real"), "choose one"),
        (("--sim", "H200", "--seconds", "0"), "0.2<=x<=60"),
        (("--sim", "H200", "--json", "/nonexistent/x.json"), "cannot be written"),
    ],
)
def test_bad_input_is_refused_with_what_is_allowed(arguments: tuple[str, ...], explanation: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert explanation in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_without_a_gpu_a_simulated_one_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cards(*_: object) -> None:
        raise NoCards("no GPU here")

    monkeypatch.setattr("nvshare.cli.bench.venues.real", no_cards)
    result = bench("--only", "idle")
    assert result.exit_code == 2
    assert "no GPU here. Without a GPU use --sim H200 (simulated)\n" in result.output


def test_a_real_card_without_pytorch_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "nvshare.cli.bench.venues.real",
        lambda *_: contextlib.nullcontext(Venue("gpu", "1 x H200", ("GPU-1",), Path("/none"), {})),
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(live, "on", lambda *_: pytest.fail("it started"))
    result = bench("--real")
    assert result.exit_code == 1
    assert "install torch" in result.output
