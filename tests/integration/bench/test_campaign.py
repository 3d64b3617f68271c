"""The campaign of measurements on a card: it keeps to its budget, and no part can spoil the others."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nvshare import procfs
from nvshare.bench.gpu import campaign, merge, parts
from nvshare.bench.gpu.scheduler import plain_environment
from nvshare.gpu import sim

SUBREAPER = 36
RESULT = """
import json, os, signal, subprocess, sys
from dataclasses import asdict, replace
from pathlib import Path
path, here = Path(sys.argv[-1]), Path(sys.argv[-1]).parent
def write(*tests):
    aside = path.with_suffix(".aside")
    aside.write_text(json.dumps({"rows": [{"test": test, "ok": True} for test in tests]}))
    aside.rename(path)
def start_child():
    wait = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", wait], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    (here / "child").write_text(str(child.pid))
"""


@pytest.fixture(autouse=True, scope="module")
def no_longer_a_parent_of_orphans() -> Iterator[None]:
    yield
    ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)


class Stage:
    """A campaign of small programs in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[str] = []
        self.spent: dict[str, float] = {}  # seconds that have passed once a file of this name is there
        campaign.adopt_orphans()

    def part(self, name: str, program: str, tests: tuple[str, ...] = ("row",), seconds: float = 10.0) -> Any:
        lines = [parts.Line("0.0", test, "something", parts.named(test), parts.shown("test")) for test in tests]
        command: Callable[[Path], list[object]] = lambda path: [sys.executable, "-c", RESULT + program, path]  # noqa: E731
        return parts.Part(name, "a test", seconds, command, lines)

    def clock(self) -> float:
        return sum(seconds for name, seconds in self.spent.items() if (self.directory / name).exists())

    def run(self, *parts: Any, budget: float = 1000.0, done: Any = None, **options: Any) -> Any:
        card = options.pop("card", None) or campaign.NoCard()
        ran = campaign.Campaign(
            parts, budget, self.directory, card, clock=self.clock, say=self.said.append, linger=0.0, **options
        )
        self.passed = ran.run(done)
        return ran

    @property
    def summary(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.directory / campaign.SUMMARY).read_text())
        return content

    def states(self) -> dict[str, str]:
        return {entry["part"]: entry["state"] for entry in self.summary["parts"]}

    def verdicts(self) -> dict[str, tuple[str, Any]]:
        return {line["part"] + " " + line["what"]: (line["seen"], line["ok"]) for line in self.summary["lines"]}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_results_of_all_parts_come_together(stage: Stage) -> None:
    stage.run(stage.part("a", "write('row')"), stage.part("b", "write('row', 'other')", ("row", "other")))
    assert stage.passed
    assert stage.states() == {"a": "done", "b": "done"}
    assert stage.verdicts() == {
        "a row": ("test row", True),
        "b row": ("test row", True),
        "b other": ("test other", True),
    }
    assert json.loads((stage.directory / "b.json").read_text())["rows"][1]["test"] == "other"


def test_a_part_that_fails_is_named_and_the_next_one_runs(stage: Stage) -> None:
    stage.run(stage.part("a", "print('no card'); sys.exit(3)"), stage.part("b", "write('row')"))
    assert not stage.passed
    assert stage.states() == {"a": "failed", "b": "done"}
    assert stage.verdicts() == {"a row": ("0 of 1 rows", False), "b row": ("test row", True)}
    assert "    no card" in stage.said
    assert stage.summary["parts"][0]["output"] == ["no card"]


def test_a_part_that_hangs_is_ended_with_all_it_started_and_keeps_what_it_found(stage: Stage) -> None:
    stage.spent = {"child": 100.0}  # more than it may take, once it hangs
    hangs = "write('row'); start_child(); signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    stage.run(stage.part("a", hangs, ("row", "other")), stage.part("b", "write('row')"))
    assert stage.states() == {"a": "ended", "b": "done"}
    assert stage.verdicts() == {
        "a row": ("test row", True),
        "a other": ("0 of 1 rows", False),
        "b row": ("test row", True),
    }
    assert not procfs.start_time(int((stage.directory / "child").read_text()))


def test_a_line_is_told_as_soon_as_it_is_known(stage: Stage) -> None:
    stage.spent = {"child": 100.0}
    stage.run(stage.part("a", "write('row'); start_child(); signal.pause()", ("row", "other")))
    whats = [line.split()[2] for line in stage.said if line.startswith("0.0")]
    ended = next(place for place, line in enumerate(stage.said) if line.startswith("--- a: ended"))
    assert whats == ["row", "other"]
    assert stage.said.index(next(line for line in stage.said if line.startswith("0.0"))) < ended


def test_a_child_that_is_left_behind_is_ended_and_named(stage: Stage) -> None:
    stage.run(stage.part("a", "write('row'); start_child()"), stage.part("b", "write('row')"))
    child = int((stage.directory / "child").read_text())
    first, second = stage.summary["parts"]
    assert first["state"] == "done"
    assert [left.split(":")[0] for left in first["left"]] == [str(child)]
    assert second["left"] == []
    assert not procfs.start_time(child)


def test_what_does_not_fit_into_the_budget_is_skipped_and_named(stage: Stage) -> None:
    stage.spent = {"a.json": 100.0, "c.json": 100.0}
    parts = [stage.part(name, "write('row')", seconds=seconds) for name, seconds in (("a", 90), ("b", 500), ("c", 90))]
    stage.run(*parts, budget=300.0)
    assert not stage.passed
    assert stage.states() == {"a": "done", "b": "skipped", "c": "done"}
    assert "--- b: skipped, needs 500 s, 190 are left" in stage.said
    assert not (stage.directory / "b.json").exists()
    assert "skipped: b" in stage.said


def test_what_does_not_fit_runs_as_far_as_the_time_goes_when_asked(stage: Stage) -> None:
    stage.spent = {"child": 300.0}
    stage.run(stage.part("b", "write('row'); start_child(); signal.pause()", seconds=500), budget=300.0, cut=True)
    assert stage.states() == {"b": "ended"}
    assert stage.verdicts() == {"b row": ("test row", True)}
    assert stage.summary["parts"][0]["reason"] == "not over after 290 s"


def test_a_later_call_goes_on_with_what_is_not_done(stage: Stage) -> None:
    stage.run(stage.part("a", "write('row')"), stage.part("b", "sys.exit(3)"))
    (stage.directory / "a.json").unlink()
    stage.run(stage.part("a", "write('row')"), stage.part("b", "write('row')"), done=stage.summary)
    assert stage.passed
    assert stage.states() == {"a": "done earlier", "b": "done"}
    assert stage.verdicts() == {"a row": ("test row", True), "b row": ("test row", True)}
    assert not (stage.directory / "a.json").exists()


def test_a_card_that_is_not_as_before_is_told(stage: Stage) -> None:
    class Card:
        def problem(self) -> str:
            return "the card has 512 MiB more than before"

        def about(self) -> dict[str, Any]:
            return {"gpu": "one"}

    stage.run(stage.part("a", "write('row')"), card=Card())
    assert stage.summary["parts"][0]["left"] == ["the card has 512 MiB more than before"]
    assert stage.summary["machine"]["gpu"] == "one"


LOOKS_AT_THE_CARD = """
import subprocess, sys
from nvshare.bench.gpu import campaign
card = campaign.NvmlCard()
holds = "from nvshare.bench.driver import Context, Driver; Context(Driver()).allocate(1 << 30); print(flush=1); input()"
holder = subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
holder.stdout.readline()
campaign._CARD_PATIENCE = 0.0
print(card.problem() == f"the card has 2033 MiB more than before and the processes [{holder.pid}]")
holder.communicate(b"\\n")
campaign._CARD_PATIENCE = 60.0
print(repr(card.problem()), card.about()["gpu"])
"""


@pytest.mark.simulated
def test_what_is_left_on_a_card_is_seen_by_nvml() -> None:
    node = sim.up("1xT4", name=f"campaign-{os.getpid()}")
    try:
        said = subprocess.run(
            [sys.executable, "-c", LOOKS_AT_THE_CARD],
            env=plain_environment(node.env()),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    finally:
        sim.down(node.name)
    assert said.splitlines() == ["True", "'' Tesla T4"]


def test_a_line_of_several_rows_waits_for_all_of_them() -> None:
    line = parts.Line("0.0", "rows", "all", parts.beginning("row"), lambda rows: f"{len(rows)} rows", count=2)
    good, bad = {"test": "row 1", "ok": True}, {"test": "row 2", "ok": False}
    assert line.judge([good]) is None
    assert line.judge([good, bad]) == ("2 rows", False)
    assert line.judge([good, {**bad, "ok": True}]) == ("2 rows", True)
    assert line.judge([{**good, "ok": None}] * 2) == ("2 rows", None)
    assert line.cut_short([good]) == ("1 of 2 rows: 1 rows", False)


def test_the_report_of_verify_tells_what_it_was_made_with() -> None:
    line = parts.verify()[-1]
    content: dict[str, Any] = {"date": "2026-11-15", "machine": {"driver": "580"}, "versions": {"nvshare": "0.1.0"}}
    assert line.judge(parts.rows_of(content)) == ("date 2026-11-15, driver 580, nvshare 0.1.0", True)
    assert line.judge(parts.rows_of({**content, "machine": {}})) is None


def test_a_row_without_figures_says_what_went_wrong() -> None:
    line = parts.SWAP[0]
    assert line.judge([{"test": "two 12 GiB tasks on 16 GiB", "error": "no\n memory", "ok": False}]) == (
        "no memory",
        False,
    )


@pytest.mark.parametrize("simulated", [False, True])
def test_lines_of_compute_are_those_of_its_scenarios(simulated: bool) -> None:
    from nvshare.bench.compute.scenarios import PARTS
    from nvshare.bench.compute.stage import Rehearsal

    problem = "there is none" if simulated else None
    rows = [row.to_dict() for part in PARTS.values() for row in part(Rehearsal(8.0, 2.0, mps=problem))]
    for part in parts.parts_for(simulated):
        if part.name in ("quotas", "pairs", "free"):
            for line in part.lines:
                seen, ok = line.judge(rows)
                assert ok is not False, (line.what, seen)
                assert "rows without figures" not in seen


@pytest.mark.parametrize("simulated", [False, True])
def test_lines_of_fairness_are_those_of_its_rows(simulated: bool) -> None:
    from nvshare.bench.fairness.rows import promises, row
    from nvshare.bench.fairness.tasks import drawn, table
    from nvshare.model import attainable

    real = not simulated
    sets = [("table", tasks) for tasks in table()] + [("random", tasks) for tasks in drawn(1, parts.FAIRNESS_SETS)]
    found = []
    for part, tasks in sets:
        due = attainable.measure(tasks)
        due = replace(due, model=due.attainable)
        native = [0.9 * share for share in due.attainable]
        found.append(row(part, tasks, due, due.attainable, native, on_card=real))
    content = {
        "complete": False,
        "promises": [asdict(promise) for promise in promises(found, on_card=real)],
        "rows": [each.to_dict() for each in found],
    }
    told = [line.judge(parts.rows_of(content)) for line in parts.fairness(simulated)]
    assert [verdict and verdict[1] for verdict in told] == [True, True, None]
    told = [line.judge(parts.rows_of({**content, "complete": True})) for line in parts.fairness(simulated)]
    assert [verdict and verdict[1] for verdict in told] == [True, True, True]
    assert not any(verdict and "without figures" in verdict[0] for verdict in told)


def test_the_parts_of_fairness_take_some_seven_minutes_on_a_card() -> None:
    (fairness, _) = parts.fairness_parts(simulated=False, seconds=8.0)
    assert fairness.seconds < 7.2 * 60


def test_the_plan_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--plan", "--only", "spine,swap"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["part", "spine", "swap", "all"]
    on_simulated_cards = {part.name for part in parts.parts_for(True)}
    assert {part.name for part in parts.parts_for(False)} == {*on_simulated_cards, "training"}


def test_every_issue_with_a_card_has_its_lines() -> None:
    issues = {line.issue for part in parts.parts_for(False) for line in part.lines}
    assert issues == {"2.7", "3.5", "4.1", "4.2", "4.3", "4.4", "5.1", "5.2", "5.3", "5.4", "5.5", "6.4", "8.5"}


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit, match="no part speed: there are quotas"):
        campaign.main(["--plan", "--only", "speed"])


def test_calls_become_one_set_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:

    def call(name: str, **parts: tuple[str, bool, str]) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        lines = [{"part": part, "issue": "0.0", "what": what, "ok": ok} for part, (_, ok, what) in parts.items()]
        entries = [{"part": part, "state": state} for part, (state, _, _) in parts.items()]
        (directory / campaign.SUMMARY).write_text(json.dumps({"parts": entries, "lines": lines, "budget_s": 1}))
        for part, (state, _, what) in parts.items():
            if state not in ("skipped", "done earlier"):
                content = {"complete": state == "done", "rows": [{"test": what}]}
                (directory / f"{part}.json").write_text(json.dumps(content))
        return directory

    first = call("1", quotas=("done", True, "q1"), pairs=("ended", False, "p1"), alone=("done", True, "a1"))
    second = call("2", quotas=("done earlier", True, "q1"), pairs=("done", True, "p2"), swap=("done", True, "s2"))
    third = call("3", pairs=("failed", False, "p3"), switching=("done", False, "w3"), swap=("skipped", False, ""))
    assert merge.main([*map(str, (first, second, third)), "--into", str(tmp_path / "all")]) == 1
    assert "not as promised: 0.0 w3" in capsys.readouterr().out

    def rows(subject: str) -> list[str]:
        return [row["test"] for row in json.loads((tmp_path / "all" / f"{subject}.json").read_text())["rows"]]

    assert (rows("compute"), rows("frameworks"), rows("swap")) == (["q1", "p2"], ["a1", "w3"], ["s2"])
    assert json.loads((tmp_path / "all" / "compute.json").read_text())["complete"]
    whole = json.loads((tmp_path / "all" / campaign.SUMMARY).read_text())
    assert [line["what"] for line in whole["lines"]] == ["q1", "p2", "a1", "s2", "w3"]
