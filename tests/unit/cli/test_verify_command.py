"""What ``nvshare verify`` refuses, and how findings read."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvshare.acceptance.finding import Finding
from nvshare.bench import venues
from nvshare.bench.processes import Venue
from nvshare.bench.spans import Span
from nvshare.cli import verify
from nvshare.cli.verify import command
from nvshare.report.bars import bars
from nvshare.report.findings import finding_line, summary, timelines


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--sim", "2xT5"], "T5"),
        (["--sim", "T4", "--only", "paralel"], "allowed are parallel, serial-memory"),
        (["--sim", "T4", "--card-memory", "512MiB"], "1.0 GiB or more"),
        (["--sim", "T4", "--card-memory", "14GiB"], "has room for"),
        (["--sim", "T4", "--card-memory", "4 apples"], "4Gi"),
        (["--sim", "T4", "--seconds", "0"], "range"),
        (["--sim", "T4", "--json", "/nowhere/verify.json"], "cannot be written"),
    ],
)
def test_bad_input_ends_at_once_with_its_reason(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (None, 2), (False, 1)])
def test_the_exit_code_says_whether_a_check_failed(ok: bool | None, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    venue = Venue("simulated", "1 x T4 (simulated)", ("GPU-1",), Path("/nowhere"), {})
    monkeypatch.setattr(venues, "simulated", lambda *_, **__: contextlib.nullcontext(venue))
    monkeypatch.setattr(verify, "verify", lambda *_: iter([finding(ok)]))
    result = CliRunner().invoke(command, ["--sim", "T4"])
    assert result.exit_code == code
    assert ("FAILED: parallel when it fits" in result.stdout) is (ok is False)
    assert ("PASSED" in result.stdout) is (ok is True)


def test_a_node_of_which_nothing_could_be_checked_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venue = Venue("simulated", "1 x T4 (simulated)", ("GPU-1",), Path("/nowhere"), {})
    monkeypatch.setattr(venues, "simulated", lambda *_, **__: contextlib.nullcontext(venue))
    monkeypatch.setattr(verify, "verify", lambda *_: iter([finding(None)]))
    result = CliRunner().invoke(command, ["--sim", "T4", "--only", "spread", "--json", str(tmp_path / "it.json")])
    assert result.exit_code == 2
    assert "NOTHING CHECKED: 1 not made here" in result.stdout
    assert json.loads((tmp_path / "it.json").read_text())["passed"] is False


def finding(ok: bool | None, **timeline: list[Span]) -> Finding:
    return Finding("parallel", "2 on", "1 on", ok, "parallel when it fits", 1.234, timeline)


def test_a_failed_check_is_named() -> None:
    assert summary([finding(True), finding(False)]) == "FAILED: parallel when it fits (1 of 2 checks)"
    assert finding_line(finding(False)) == "[FAIL] parallel when it fits: 1 on (1.2 s)"


def test_what_was_not_checked_is_not_counted_as_passed() -> None:
    assert summary([finding(True), finding(None)]) == "PASSED: 1 checks, 1 not made here"


def test_a_row_has_what_was_expected_and_seen() -> None:
    row = finding(True, a=[Span(0, 1.00049)]).to_dict()
    assert row == {
        "check": "parallel",
        "title": "parallel when it fits",
        "expected": "2 on",
        "seen": "1 on",
        "ok": True,
        "seconds": 1.23,
        "timeline": {"a": [[0, 1.0]]},
    }
    assert "timeline" not in finding(None).to_dict()


def test_bars_show_most_of_each_cell() -> None:
    tasks = {"a": {"█": [Span(0, 2)]}, "bb": {"█": [Span(2, 3.4)]}}
    assert bars(tasks, 0, 4, 4, "·") == ["a   ██··", "bb  ··█·"]
    assert timelines([finding(True, a=[Span(0, 2)])], width=2) == ["parallel when it fits, 2.0 s:", "  a  ██"]


def test_the_subcommand_is_found(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["concurrency", str(tmp_path / "none.log")])
    assert result.exit_code == 2
    assert "none.log cannot be read" in result.stderr
