"""Jobs from lines, and what a journal remembers of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvshare.launch.fleet import Job, Result
from nvshare.launch.journal import Journal, read_jobs

LINES = ["# trials", "", "--seed 1", "--name 'two words'"]


def test_a_line_is_added_to_the_command_as_words() -> None:
    jobs = read_jobs(LINES, ("python", "trial.py"))
    assert [job.argv for job in jobs] == [
        ("python", "trial.py", "--seed", "1"),
        ("python", "trial.py", "--name", "two words"),
    ]
    assert [job.number for job in jobs] == [3, 4]


def test_a_line_takes_the_place_of_job_or_is_the_command_itself() -> None:
    assert read_jobs(["a b"], ("echo", "<{job}>"))[0].argv == ("echo", "<a b>")
    assert read_jobs(["echo a b"], ())[0].argv == ("echo", "a", "b")


def test_a_line_that_cannot_be_split_is_named() -> None:
    with pytest.raises(ValueError, match="line 2 of the jobs"):
        read_jobs(["fine", "'open"], ("echo",))


def test_only_what_did_not_end_well_is_left(tmp_path: Path) -> None:
    jobs = read_jobs(["a", "b", "a"], ("echo",))
    journal = Journal(tmp_path / "journal")
    assert journal.left(jobs) == jobs
    journal.note(Result(jobs[0], 0, pid=1, code=0))
    journal.note(Result(jobs[1], 0, pid=1, code=1))
    journal.note(Result(jobs[2], 0, pid=1, code=0, error="it passed its deadline"))
    assert Journal(tmp_path / "journal").left(jobs) == jobs[1:]


def test_a_line_cut_off_by_a_crash_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    one, two = Job(1, ("x",), "one"), Job(2, ("x",), "two")
    journal = Journal(path)
    journal.note(Result(one, 0, pid=1, code=0))
    whole = path.read_text()
    path.write_text(whole + whole[:-10])
    journal.note(Result(two, 0, pid=1, code=0))
    assert journal.finished() == {(1, "one"), (2, "two")}
