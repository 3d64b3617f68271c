"""The report people know, and the sentences below it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvshare.bench.columns import seconds_text
from nvshare.bench.demo import busy_note
from nvshare.bench.mission import compare_with_model, make_row
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import Outcome, TaskResult
from nvshare.report.sentences import findings, model_difference
from nvshare.report.text import row_report, summary_table, task_report

GPU = ("GPU-dc895bd6-43d7-a984-b1ee-870332194bd1", "GPU-11111111-2222-3333-4444-555555555555")


def task(number: int, seconds: float, its: float, gpu: int = 0, status: str = "PASS") -> TaskResult:
    return TaskResult(
        f"nvshare-small-{number}", f"a12c4b64b99e09d{number}", GPU[gpu], status, "PASS", seconds + 1, seconds, its, 1024
    )


TASKS = (task(1, 866, 46.43), task(2, 869, 77.21, 1), task(3, 867, 47.38), task(4, 868, 46.42, 1))


def row(test: int, tasks: tuple[TaskResult, ...], baseline: float, mode: str = "auto", source: str = "model") -> Row:
    title = f"{len(tasks)} small on {len({task.gpu for task in tasks})} GPUs"
    return make_row(test, title, "add-small", mode, Outcome(tasks), source, baseline)


def test_the_report_has_the_shape_that_users_expect() -> None:
    assert task_report(TASKS).splitlines() == [
        "Pod Name                       | Client ID          | GPU UUID",
        "nvshare-small-1                | a12c4b64b99e09d1   | GPU-dc895bd6-43d7-a984-b1ee-870332194bd1",
        "nvshare-small-2                | a12c4b64b99e09d2   | GPU-11111111-2222-3333-4444-555555555555",
        "nvshare-small-3                | a12c4b64b99e09d3   | GPU-dc895bd6-43d7-a984-b1ee-870332194bd1",
        "nvshare-small-4                | a12c4b64b99e09d4   | GPU-11111111-2222-3333-4444-555555555555",
        "=" * 90,
        "Pod Name                       | Status   | Duration     | Avg Speed    | KernelWin",
        "nvshare-small-1                | PASS     | 866s         | 46.43 it/s   | 1024",
        "nvshare-small-2                | PASS     | 869s         | 77.21 it/s   | 1024",
        "nvshare-small-3                | PASS     | 867s         | 47.38 it/s   | 1024",
        "nvshare-small-4                | PASS     | 868s         | 46.42 it/s   | 1024",
        "=" * 90,
        "Total: 4, Pass: 4, Fail: 0",
        "Duration: Min=866s, Max=869s, Avg=867.5s",
        "Speed   : Min=46.42, Max=77.21, Avg=54.36 (it/s)",
    ]


def test_a_failed_task_counts_as_failed_and_not_into_the_speeds() -> None:
    lines = task_report((task(1, 866, 46.43), task(2, 0, 0, status="FAIL"))).splitlines()
    assert "Total: 2, Pass: 1, Fail: 1" in lines
    assert "Duration: Min=866s, Max=866s, Avg=866.0s" in lines


def test_a_task_that_was_to_be_stopped_is_no_failure() -> None:
    greedy = replace(task(2, 0, 0, status="OOM"), expected="OOM")
    assert "Total: 2, Pass: 1, Fail: 0, Stopped as intended: 1" in task_report((task(1, 866, 46.43), greedy))


def test_when_all_failed_there_are_no_durations() -> None:
    assert task_report((task(1, 0, 0, status="FAIL"),)).splitlines()[-1] == "Total: 1, Pass: 0, Fail: 1"


def test_a_task_without_client_and_window_shows_dashes() -> None:
    plain = replace(task(1, 5.25, 10), client="", window=None)
    report = task_report((plain,))
    assert "| -                  |" in report
    assert "| 5.2s         |" in report
    assert report.splitlines()[4].endswith("| -")


@pytest.mark.parametrize(("seconds", "text"), [(866.4, "866s"), (99.96, "100.0s"), (2.345, "2.3s")])
def test_short_durations_keep_a_digit(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_where_the_numbers_come_from_is_said_in_report_table_and_sentences() -> None:
    rows = [row(4, TASKS, 392.0, source="simulated")]
    assert "(simulated)" in row_report(rows[0])
    assert summary_table(rows).splitlines()[1].endswith("simulated")
    assert all("simulated" in sentence for sentence in findings(rows))


def test_the_table_has_one_line_per_row_in_aligned_columns() -> None:
    lines = summary_table([row(4, TASKS, 392.0), row(3, TASKS[:1], 860.0)]).splitlines()
    assert " ".join(lines[0].split()) == "test what tasks mode duration baseline ratio swapped switches source"
    assert len(lines) == 3
    assert {line.index("model") for line in lines[1:]} == {lines[0].index("source")}


def test_the_sentences_carry_the_computed_numbers() -> None:
    alone = row(3, (task(1, 394.0, 101.5),), 392.0)
    sentences = findings([alone, row(4, TASKS, 392.0)])
    # overhead: 394 / 392
    assert any(sentence.startswith("Overhead: add-small alone") and "+0.51 %" in sentence for sentence in sentences)
    # two per GPU, one after the other: 2 x 392 = 784 s, against 869 s for all
    assert any("784s: 90 % of serial theory" in sentence for sentence in sentences)
    # 2 / 2.213
    assert any("0.90 times the work" in sentence for sentence in sentences)
    assert any(sentence.startswith("Fairness") and "1.003 times" in sentence for sentence in sentences)
    assert any(sentence.startswith("Spread") and "2 + 2 tasks over 2 GPUs" in sentence for sentence in sentences)
    assert any("nothing was moved to the host; 0 switches" in sentence for sentence in sentences)


def test_tasks_that_take_turns_do_not_do_more_work_than_one() -> None:
    # GIVEN two tasks of 100 s each on one card, of which the first ends after 180 s and leaves the rest to the second
    tasks = (task(1, 180.0, 10.0), task(2, 204.0, 9.0))
    turns = make_row(2, "2 add on 1 GPU, auto", "add", "auto", Outcome(tasks), "model", 100.0, in_turns=True)
    (density,) = [sentence for sentence in findings([turns]) if sentence.startswith("Density")]
    # THEN the work is what was done until the last one ended: 200 / 204, and twice 49 %
    assert "2 add per GPU do 0.98 times the work of one in the same time, each at 49 % of its solo speed" in density


def test_the_model_has_a_column_only_where_there_is_something_to_compare() -> None:
    simulated = row(4, TASKS, 392.0, source="simulated")
    assert "model" not in summary_table([simulated])
    (compared,) = compare_with_model([simulated], [row(4, TASKS, 400.0)])
    heading, line = summary_table([compared]).splitlines()
    assert line[heading.index("model") :].startswith("2.169")


def test_agreement_names_the_worst_row() -> None:
    simulated = [row(3, TASKS[:1], 860.0, source="simulated"), row(4, TASKS, 392.0, source="simulated")]
    model = [row(3, TASKS[:1], 866.0), row(4, TASKS, 400.0)]
    rows = compare_with_model(simulated, model)
    assert model_difference(rows[1]) == pytest.approx(400 / 392 - 1)
    (sentence,) = [sentence for sentence in findings(rows) if sentence.startswith("Agreement")]
    assert "test 4" in sentence
    assert "2.0 %" in sentence


def test_a_failure_is_a_finding() -> None:
    assert findings([row(3, (task(1, 5, 1, status="FAIL"),), 5.0)]) == [
        "FAILED: 1 small on 1 GPUs: nvshare-small-1 (model)."
    ]


def test_a_demonstration_on_a_machine_without_time_for_it_says_so() -> None:
    assert busy_note((1000, 500), (2000, 700)) is None
    note = busy_note((1000, 500), (2000, 530))
    assert note is not None
    assert note.startswith("This machine's processors were 97 % busy meanwhile")
    assert busy_note((0, 0), (0, 0)) is None  # nobody knows
