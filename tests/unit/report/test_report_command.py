"""``nvshare report`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nvshare.cli.bench import command as bench
from nvshare.cli.report import command
from nvshare.report.page.kinds import parsed


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_a_result_is_shown_as_tables_and_written_as_a_page(mission_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = report(mission_file, "--html", page)
    assert result.exit_code == 0, result.output
    assert "nvshare bench mission: 2 x T4 (model)" in result.output
    assert "tests passed: " in result.output
    assert "4 small on 2 GPUs" in result.output
    assert page.read_text().startswith("<!doctype html>")


def test_two_results_are_compared(mission_file: Path, mission: dict[str, Any], tmp_path: Path) -> None:
    for row in mission["rows"]:
        row["ratio"] *= 0.9
    faster, page = tmp_path / "faster.json", tmp_path / "page.html"
    faster.write_text(json.dumps(mission))
    result = report(mission_file, faster, "--html", page)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("test 4")]
    assert [line.split()[-2:] for line in lines] == [["0.900", "better"]] * 2
    assert "worse: 0" in result.output
    assert "mission → faster" in page.read_text()


def test_what_may_be_chance_is_the_users_choice(mission_file: Path, mission: dict[str, Any], tmp_path: Path) -> None:
    mission["source"] = "gpu"  # the model's figures are exact, whatever is said
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(mission))
    for row in mission["rows"]:
        row["ratio"] *= 1.1
    after.write_text(json.dumps(mission))
    assert "worse: 0" not in report(before, after).output
    assert "worse: 0" in report(before, after, "--noise", "15").output


def test_bad_files_are_one_line_and_exit_code_2(mission_file: Path, tmp_path: Path) -> None:
    empty, cut, binary = (tmp_path / name for name in ("empty.json", "cut.json", "binary.json"))
    empty.touch()
    cut.write_text(mission_file.read_text()[:500])
    binary.write_bytes(b"\xff\xfe\x00")
    cases: dict[tuple[str | Path, ...], str] = {
        (empty,): "it is empty",
        (cut,): "cut off",
        (binary,): "it is not text",
        (mission_file, empty): "it is empty",
        (tmp_path / "none.json",): "does not exist",
        (tmp_path,): "is a directory",
        (): "Missing argument",
        (mission_file, "--html", tmp_path / "no" / "x.html"): "cannot be written",
        (mission_file, mission_file, mission_file): "unexpected extra argument",
        (mission_file, "--noise", "-1"): "--noise",
    }
    for arguments, explanation in cases.items():
        result = report(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert explanation in result.output
        assert result.output.count("\n") == 1
        assert result.output.startswith("[NVSHARE][FATAL]: ")


def test_a_bad_result_leaves_an_older_page_as_it_was(tmp_path: Path) -> None:
    page, empty = tmp_path / "page.html", tmp_path / "empty.json"
    page.write_text("older")
    empty.touch()
    assert report(empty, "--html", page).exit_code == 2
    assert page.read_text() == "older"


@pytest.mark.parametrize("name", ["swap", "eviction"])
def test_every_bench_writes_a_page_and_what_it_can_be_drawn_from(name: str, tmp_path: Path) -> None:
    rows, page = tmp_path / "rows.json", tmp_path / "page.html"
    result = CliRunner().invoke(bench, [name, "--model", "A100-40G", "--json", str(rows), "--html", str(page)])
    assert result.exit_code == 0, result.output
    content = json.loads(rows.read_text())
    assert (content["kind"], content["version"], content["source"]) == (name, 1, "model")
    # THEN the page drawn later is the page drawn at once
    again = tmp_path / "again.html"
    assert report(rows, "--html", again).exit_code == 0
    assert again.read_bytes() == page.read_bytes()
    # AND plotted bytes are those of the rows
    plotted = {"swap": "copy_s", "eviction": "out_per_switch"}[name]
    first = parsed(rows.read_text()).content["rows"][0]
    assert f'data-plot="{plotted}"' in page.read_text()
    assert f'data-value="{float(first[plotted])!r}"' in page.read_text()
