"""Logs of recorded runs, and of edited ones: parallel, serial, mixed, or nothing to tell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from nvshare.acceptance.concurrency import lines
from nvshare.acceptance.concurrency.sharing import CardSharing, judge
from nvshare.acceptance.concurrency.story import Story, Unreadable, tell
from nvshare.bench.spans import Span, at_once, merged, of_marks, within
from nvshare.cli.verify import command
from nvshare.report.concurrency import ON

DATA = Path(__file__).parents[2] / "data" / "concurrency"
SCRIPT = Path(__file__).parents[3] / "docs" / "verify" / "scripts" / "analyze_concurrency.py"
SITE = Path(pytest.__file__).parents[1]
RECORDED = {  # each a directory with the logs of a scheduler and its tasks, or one log
    "parallel": "parallel",
    "idle": "parallel",
    "serial-memory": "serial",
    "serial-mode": "serial",
    "mixed": "mixed",
    "late": "mixed",
    "two-cards": "mixed",
    "progress-bars": "serial",
    "parallel-prefixed.log": "parallel",
    "serial-mode-dated.log": "serial",
    "parallel-without-times.log": "parallel",
    "serial-memory-without-times.log": "serial",
    "mixed-without-times.log": "mixed",
    "serial-cut-at-the-end.log": "serial",
    "serial-cut-at-the-begin.log": "serial",
    "parallel-cut-at-the-begin.log": "parallel",
    "serial-one-terminal.log": "serial",
    "parallel-then-serial.log": "serial",
}
WITHOUT_TIMES = {name for name in RECORDED if "without-times" in name} | {
    "serial-cut-at-the-begin.log",
    "serial-one-terminal.log",
}


def paths(name: str) -> list[Path]:
    found = DATA / name
    return sorted(found.glob("*.log")) if found.is_dir() else [found]


def log_in(path: Path) -> lines.Log:
    return lines.read(path.name, path.read_bytes().decode())


def story_of(*files: Path) -> Story:
    return tell([log_in(file) for file in files])


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, ["concurrency", *map(str, arguments)], input=stdin)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_run_gets_its_verdict(name: str) -> None:
    verdict = judge(story_of(*paths(name)))
    assert verdict.word == RECORDED[name]
    assert verdict.timed is (name not in WITHOUT_TIMES)


def test_each_card_has_a_verdict_of_its_own() -> None:
    words = {card.word for card in judge(story_of(*paths("two-cards"))).cards}
    assert words == {"parallel", "serial"}


@pytest.mark.parametrize("name", ["parallel", "serial-memory", "serial-mode", "mixed", "late"])
def test_logs_of_tasks_alone_tell_the_same(name: str) -> None:
    tasks = [path for path in paths(name) if path.name.startswith("task")]
    assert judge(story_of(*tasks)).word == RECORDED[name]


def card_of(name: str) -> CardSharing:
    (card,) = judge(story_of(*paths(name))).cards
    return card


def test_progress_overlaps_in_parallel_and_not_in_turns() -> None:
    together, in_turns = card_of("parallel").progress_together, card_of("serial-memory").progress_together
    assert together is not None
    assert together > 0.95
    assert in_turns is not None
    assert in_turns < 0.1


def test_progress_bars_do_not_hide_what_is_written_behind_them() -> None:
    plain, with_bars = story_of(*paths("serial-memory")), story_of(*paths("progress-bars"))
    assert b"\r" in (DATA / "progress-bars" / "task-1.log").read_bytes()
    assert [task.on for task in with_bars.tasks] == [task.on for task in plain.tasks]
    assert judge(story_of(*paths("progress-bars")[1:])).word == "serial"


def test_the_last_of_several_bars_on_a_line_counts() -> None:
    raw = "  3%| | 30/900 [00:01<00:33, 25it/s]\r 5%| | 50/900 [00:02<00:32, 25it/s][NVSHARE][INFO]: Received LOCK_OK\n"
    progress, said = lines.read("task", raw).lines
    assert (progress.done, said.text) == (50, "Received LOCK_OK")


@pytest.mark.parametrize(
    "form",
    [
        "2026-11-15T10:00:01.5Z [NVSHARE][INFO]: hello",
        "2026-11-15T12:00:01.500000000+02:00 [NVSHARE][INFO]: hello",
        "[NVSHARE][INFO][2026-11-15 10:00:01.5]: hello",
        "[NVSHARE][INFO][2026-11-15 10:00:01,500] hello",
        "[pod/a/main] 2026-11-15T10:00:01.5Z [NVSHARE][INFO]: hello",
    ],
)
def test_every_form_of_a_time_is_the_same_moment(form: str) -> None:
    (line,) = lines.read("log", form + "\n").lines
    assert line.text == "hello"
    assert line.time == 1794736801.5


def test_a_line_without_its_end_does_not_count_and_that_is_said() -> None:
    story = story_of(*paths("serial-cut-at-the-end.log"))
    assert any("ends in the middle" in note for note in story.notes)


def test_a_log_that_begins_late_says_so() -> None:
    assert any("begins in the middle" in note for note in story_of(*paths("parallel-cut-at-the-begin.log")).notes)


def test_of_several_starts_the_last_counts_and_that_is_said() -> None:
    assert any("2 starts" in note for note in story_of(*paths("parallel-then-serial.log")).notes)


SCHEDULED = """\
[NVSHARE][INFO]: Registered client 00000000000000aa on GPU GPU-1 with Pod name = a, Pod namespace = x
[NVSHARE][INFO]: Registered client 00000000000000bb on GPU GPU-1 with Pod name = b, Pod namespace = x
[NVSHARE][INFO]: Sent LOCK_OK to client 00000000000000aa
[NVSHARE][INFO]: Scheduled client 00000000000000aa (mem: 5 MB, total running: 5 MB)
[NVSHARE][INFO]: Switched GPU GPU-1 from client 00000000000000aa to client 00000000000000bb: 0 MB out, 0 MB in
[NVSHARE][INFO]: Sent LOCK_OK to client 00000000000000bb
"""


@pytest.mark.parametrize(
    ("last", "word"),
    [
        ("[NVSHARE][INFO]: Scheduled client 00000000000000bb (mem: 5 MB, total running: 10 MB)\n", "parallel"),
        ("[NVSHARE][INFO]: Scheduled client 00000000000000bb (mem: 5 MB, total running: 5 MB)\n", None),
    ],
)
def test_a_switch_to_a_set_that_fits_keeps_the_other_on(last: str, word: str | None) -> None:
    story = tell([lines.read("log", SCHEDULED + last + "[NVSHARE][INFO]: Removing client 00000000000000aa\n")])
    if word is None:
        with pytest.raises(Unreadable, match="no two tasks"):
            judge(story)
    else:
        assert judge(story).word == word


BAD = {
    "an empty one": (["bad/empty.log"], "is empty"),
    "another program's": (["bad/foreign.log"], "no log of nvshare"),
    "one of ours beside another program's": (["parallel/scheduler.log", "bad/foreign.log"], "foreign.log is no log"),
    "cut in its first line": (["bad/first-line-cut.log"], "cut in the middle"),
    "tasks that never met": (["bad/one-after-the-other.log"], "no two tasks"),
    "one task alone": (["parallel/task-1.log"], "one task's log alone"),
    "tasks without times": (
        ["bad/task-without-times.log", "bad/another-task-without-times.log"],
        "no times",
    ),
    "a task of another run": (["parallel/scheduler.log", "serial-mode/task-1.log"], "another run"),
    "two schedulers": (["parallel/scheduler.log", "serial-mode/scheduler.log"], "several schedulers"),
    "one that is not there": (["no-such.log"], "cannot be read"),
    "a directory": (["parallel"], "cannot be read"),
}


@pytest.mark.parametrize("what", BAD)
def test_logs_that_tell_nothing_are_one_line_and_code_2(what: str) -> None:
    files, reason = BAD[what]
    result = run(*(DATA / file for file in files))
    assert result.exit_code == 2
    assert reason in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout


@pytest.mark.parametrize("content", [bytes(range(256)) * 64, bytes(range(128, 256)), b"not a log"])
def test_bytes_that_are_no_log_are_not_called_one_that_is_cut(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "core"
    path.write_bytes(content)
    result = run(path)
    assert result.exit_code == 2
    assert "core is no log of nvshare" in result.stderr


@pytest.mark.parametrize(
    "line", ["[NVSHARE][IN", "2026-11-15T17:54:07.5500", "[pod/nvshare-x/nvshare] [NVSHARE][INFO]"]
)
def test_a_first_line_of_ours_that_is_cut_is_called_so(line: str) -> None:
    with pytest.raises(Unreadable, match="cut in the middle of its first line"):
        tell([lines.read("log", line)])


@pytest.mark.parametrize(("size", "count"), [(200, "no task"), (900, "one task")])
def test_a_log_that_ends_before_two_tasks_came_says_how_many_did(tmp_path: Path, size: int, count: str) -> None:
    path = tmp_path / "log"
    path.write_bytes((DATA / "serial-mode" / "scheduler.log").read_bytes()[:size])
    result = run(path)
    assert result.exit_code == 2
    assert f"{count} in these logs: two or more are needed" in result.stderr


def test_a_task_whose_times_lie_elsewhere_is_of_another_run(tmp_path: Path) -> None:
    moved = tmp_path / "task-1.log"
    moved.write_text((DATA / "parallel" / "task-1.log").read_text().replace("2026-11-15T17", "2026-11-15T19"))
    result = run(DATA / "parallel" / "scheduler.log", moved)
    assert result.exit_code == 2
    assert "time zones" in result.stderr


def test_the_picture_shows_who_was_on(tmp_path: Path) -> None:
    def drawn(name: str) -> list[str]:
        output = run(*paths(name)).stdout
        return [
            line.partition("  ")[2].partition("  ")[2] for line in output.splitlines() if line.startswith("  task-")
        ]

    both = [a == b == ON for a, b in zip(*drawn("parallel"), strict=True)]
    assert sum(both) > 0.85 * len(both)
    turns = drawn("serial-memory")
    assert not any(a == b == ON for a, b in zip(*turns, strict=True))
    assert all(len(re.findall(f"{ON}+", bar)) >= 3 for bar in turns)


def test_json_and_svg_have_the_same_bars(tmp_path: Path) -> None:
    result = run(*paths("mixed"), "--json", tmp_path / "out.json", "--svg", tmp_path / "out.svg")
    assert result.exit_code == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert (content["kind"], content["verdict"]) == ("concurrency", "mixed")
    root = ElementTree.parse(tmp_path / "out.svg").getroot()
    bars = {
        (plot, rect.get("data-task"), float(rect.get("data-begin", "nan")), float(rect.get("data-end", "nan")))
        for rect in root.iter("{http://www.w3.org/2000/svg}rect")
        if (plot := rect.get("data-plot"))
    }
    rows = {
        (kind, row["task"], *span)
        for row in content["timeline"]
        for kind, key in (("held", "on"), ("waited", "waited"), ("progress", "progress"))
        for span in row[key]
    }
    assert bars == rows


def test_the_page_has_the_bars_of_the_json(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(*paths("mixed"), "--json", tmp_path / "out.json", "--html", page).exit_code == 0
    found = re.findall(
        r'data-plot="(\w+)" data-row="timeline" data-task="([^"]+)" .*? data-begin="([^"]+)" data-end="([^"]+)"',
        page.read_text(),
    )
    bars = {(plot, task, float(begin), float(end)) for plot, task, begin, end in found}
    rows = json.loads((tmp_path / "out.json").read_text())["timeline"]
    kinds = (("held", "on"), ("waited", "waited"), ("progress", "progress"))
    assert bars == {(plot, row["task"], *span) for row in rows for plot, key in kinds for span in row[key]}
    assert {plot for plot, *_ in bars} == {"held", "waited", "progress"}


def test_a_page_passes_judgement_only_where_something_was_expected(tmp_path: Path) -> None:
    def badges(*options: object) -> list[str]:
        run(*paths("parallel"), "--html", tmp_path / "page.html", *options)
        return re.findall(r'class="badge[^"]*">([^<]+)<', (tmp_path / "page.html").read_text())

    assert badges() == ["told from logs"]
    assert badges("--expect", "parallel") == ["passed", "told from logs"]
    assert badges("--expect", "serial") == ["not as promised", "told from logs"]


def test_no_log_is_overwritten(tmp_path: Path) -> None:
    log = tmp_path / "scheduler.log"
    log.write_bytes((DATA / "serial-mode" / "scheduler.log").read_bytes())
    for option in ("--json", "--html", "--svg"):
        result = run(log, option, log)
        assert result.exit_code == 2
        assert "name another" in result.output
    assert log.read_bytes() == (DATA / "serial-mode" / "scheduler.log").read_bytes()


def test_expecting_something_else_is_code_1() -> None:
    assert run(*paths("parallel"), "--expect", "parallel").exit_code == 0
    result = run(*paths("parallel"), "--expect", "serial")
    assert result.exit_code == 1
    assert "expected serial, seen parallel" in result.stdout


def test_logs_come_through_a_pipe_too() -> None:
    text = (DATA / "serial-mode" / "scheduler.log").read_text()
    assert "Verdict: serial" in run("-", stdin=text).stdout


def test_the_script_of_the_documentation_does_the_same() -> None:
    log = DATA / "serial-memory-without-times.log"
    done = subprocess.run([sys.executable, str(SCRIPT), str(log)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run(log).stdout
    assert "order" in done.stdout


@pytest.mark.parametrize("missing", ["click", "pynvml"])
def test_the_script_says_which_package_is_missing(missing: str) -> None:
    script = f"import runpy, sys; sys.modules['{missing}'] = None; sys.argv = ['s', 'log']\n"
    script += f"sys.path.insert(0, {str(SITE)!r}); runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    # AND though nvshare is not installed, its own checkout is found: without site packages, but for those it needs
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=False)
    package = {"pynvml": "nvidia-ml-py"}.get(missing, missing)
    assert done.returncode == 2
    assert done.stderr.startswith(f"[NVSHARE][FATAL]: {package} is missing: pip install {package}, or")
    assert len(done.stderr.splitlines()) == 1


def test_spans() -> None:
    assert of_marks([0, 1, 2, 5, 6], gap=1) == [Span(0, 2), Span(5, 6)]
    assert merged([Span(2, 4), Span(0, 1), Span(3, 5)]) == [Span(0, 1), Span(2, 5)]
    assert at_once([[Span(0, 4)], [Span(1, 2), Span(3, 6)], [Span(3, 4)]]) == [Span(1, 2), Span(3, 4)]
    assert at_once([[Span(0, 1)], [Span(1, 2)]]) == []
    assert within([Span(0, 3), Span(5, 6)], 1, 4) == [Span(0, 2)]


def cut(name: str, line: int) -> Story:
    """The story of a recorded log that ends there."""
    text = (DATA / name).read_text().splitlines(keepends=True)
    return tell([lines.read(name, "".join(text[:line]))])


def verdicts_of(name: str) -> list[str]:
    """What every beginning of a log is called, from the first that tells anything."""
    words = []
    for line in range(1, len((DATA / name).read_text().splitlines()) + 1):
        try:
            words.append(judge(cut(name, line)).word)
        except Unreadable as reason:
            words.append("too little" if str(reason).startswith("too little to tell") else "nothing")
    return words


@pytest.mark.parametrize("name", ["parallel/scheduler.log", "parallel-without-times.log"])
def test_a_log_that_ends_where_two_tasks_just_met_is_too_little_to_tell(name: str) -> None:
    words = verdicts_of(name)
    assert words == ["nothing"] * 12 + ["too little"] * 3 + ["parallel"] * 4


@pytest.mark.parametrize("name", ["serial-memory/scheduler.log", "serial-mode/scheduler.log"])
def test_no_beginning_of_a_serial_run_is_called_parallel(name: str) -> None:
    assert set(verdicts_of(name)) <= {"nothing", "too little", "serial"}


def test_the_reason_says_how_long_they_were_seen() -> None:
    with pytest.raises(Unreadable, match=r"too little to tell: the log ends 0\.33 s after two tasks met on a card"):
        judge(cut("parallel/scheduler.log", 15))


def test_short_tasks_that_ended_are_enough() -> None:
    begin, end = SCHEDULED.splitlines()[0], "[NVSHARE][INFO]: Removing client 00000000000000{}"
    said = [
        begin,
        begin.replace("aa on", "bb on").replace("= a,", "= b,"),
        *(f"[NVSHARE][INFO]: Sent LOCK_OK to client 00000000000000{client}" for client in ("aa", "bb")),
        *(end.format(client) for client in ("aa", "bb")),
    ]
    text = "".join(f"2026-11-15T10:00:00.{number}Z {line}\n" for number, line in enumerate(said))
    assert judge(tell([lines.read("log", text)])).word == "parallel"
