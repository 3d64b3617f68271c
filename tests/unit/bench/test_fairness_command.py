"""``nvshare bench fairness`` as a user types it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvshare.bench import venues
from nvshare.bench.fairness import live
from nvshare.bench.fairness.rows import Measure, Row, row
from nvshare.bench.fairness.tasks import TABLE, Tasks
from nvshare.bench.processes import Venue
from nvshare.cli.bench import command

SHORT = ("--seconds", "1", "--warm-up", "0.5")


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["fairness", *map(str, arguments)])


def test_rows_are_written_with_a_summary(tmp_path: Path) -> None:
    target, page = tmp_path / "result.json", tmp_path / "page.html"
    result = bench("--model", "H200", "--sets", 2, *SHORT, "--json", target, "--html", page)
    assert isinstance(result.exception, SystemExit | None)
    content = json.loads(target.read_text())
    assert (content["kind"], content["source"], content["seed"], content["complete"]) == ("fairness", "model", 1, True)
    assert content["summary"].keys() >= {"worst_ratio", "worst_ratio_p5", "worst_ratio_median", "sum_ratio"}
    assert {"what", "asked", "seen", "ok"} == content["promises"][0].keys()
    assert result.exit_code == (0 if all(promise["ok"] for promise in content["promises"]) else 1)
    assert len(content["rows"]) == 2
    for found in content["rows"]:
        assert found.keys() >= {"tasks", "fair", "attainable", "got", "native", "sum", "worst_ratio"}
        assert len(found["tasks"]) == len(found["got"]) == len(found["native"])
    drawn = sum(len(found["tasks"]) for found in content["rows"])
    assert page.read_text().count('data-plot="attainable"') == drawn


def test_given_sets_are_measured_and_shown_whole() -> None:
    result = bench("--model", "H200", "--tasks", "20+0 20+0@..50", "--tasks", "20+0, 20+0", *SHORT)
    assert isinstance(result.exception, SystemExit | None)
    assert "20+0@..50" in result.output
    assert "2 sets;" in result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_a_set_that_gets_less_than_promised_ends_with_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, lambda due: [0.7 * share for share in due])
    result = bench("--sim", "H200", "--tasks", "20+0 20+0")
    assert result.exit_code == 1
    assert "FAIL" in result.output


def test_fixed_sets_come_with_random_ones_where_both_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    played(monkeypatch, lambda due: due)
    target = tmp_path / "result.json"
    result = bench("--table", "--sets", 3, "--json", target)
    assert result.exit_code == 0, result.output
    assert "1 x H200: 12 sets; about 4.5 min" in result.output
    content = json.loads(target.read_text())
    assert [found["part"] for found in content["rows"]] == ["table"] * len(TABLE) + ["random"] * 3
    assert content["rows"][0]["mps"] == [50, 50]
    assert "simulated" not in result.output


def test_a_run_that_is_cut_short_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def once(due: list[float]) -> list[float]:
        if target.exists():
            raise KeyboardInterrupt
        return due

    target = tmp_path / "result.json"
    played(monkeypatch, once)
    assert bench("--sim", "H200", "--sets", 3, "--json", target).exit_code == 130
    content = json.loads(target.read_text())
    assert (content["complete"], len(content["rows"])) == (False, 1)


def played(monkeypatch: pytest.MonkeyPatch, got: Callable[[list[float]], list[float]]) -> None:
    """No process is started: each set gets at once what ``got`` makes of what is attainable."""

    class Played:
        def __init__(self, measure: Measure) -> None:
            self._measure = measure

        def row(self, part: str, tasks: Tasks) -> Row:
            due = self._measure(tasks)
            native = [0.9 * share for share in due.attainable]
            return row(part, tasks, due, got(list(due.attainable)), native, [50] * len(tasks))

    @contextlib.contextmanager
    def venue(spec: str | None, purpose: str) -> Iterator[Venue]:
        source = "gpu" if spec is None else "simulated"
        yield Venue(source, "1 x H200", ("GPU-1",), Path("/none"), {})

    monkeypatch.setattr(venues, "chosen", venue)
    monkeypatch.setattr(live, "on", lambda *arguments: contextlib.nullcontext(Played(arguments[3])))


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (("--tasks", "5+5@0..10"), "--tasks: '5+5@0..10': the floor '0' is not a whole number from 1 to 100 (percent)"),
        (("--tasks", "5+5@70..60"), "the floor 70 % is above the cap 60 %: give a floor from 1 to 60"),
        (("--tasks", "5-5"), "'5-5' is not a task: GPUms+HOSTms[@[floor]..[cap]]"),
        (("--model", "H200", "--sim", "H200"), "--model and --sim do not go together: choose one"),
        (("--model", "H200", "--small", "--long"), "--small and --long do not go together: choose one"),
        (("--model", "Potato"), "Potato"),
        (("--model", "H200", "--sets", "0"), "1<=x<=10000"),
        (("--model", "H200", "--seconds", "0"), "0.2<=x<=60"),
        (("--model", "H200", "--kernel", "0"), "0.01<=x<=1000"),
        (("--model", "H200", "--json", "/nonexistent/x.json"), "cannot be written"),
    ],
)
def test_bad_input_is_refused_with_what_is_allowed(arguments: tuple[str, ...], explanation: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert explanation in " ".join(result.output.split())
    assert "Traceback" not in result.output
