"""Jobs from lines, and what a journal remembers of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvshare.launch.fleet import Job, Result
from nvshare.launch.journal import BadJournal, Journal, read_jobs

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


def ended(job: Job, code: int = 0, error: str = "") -> Result:
    return Result(job, 0, pid=1, code=code, error=error)


Opened = Callable[[], Journal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """The journal as a launch finds it; the one before has ended by then."""
    journals: list[Journal] = []

    def again() -> Journal:
        for journal in journals:
            journal.close()
        journals.append(Journal(tmp_path / "journal"))
        return journals[-1]

    yield again
    for journal in journals:
        journal.close()


def test_only_what_did_not_end_well_is_left(opened: Opened) -> None:
    jobs = read_jobs(["a", "b", "a"], ("echo",))
    journal = opened()
    assert journal.left(jobs) == jobs
    journal.note(ended(jobs[0]))
    journal.note(ended(jobs[1], code=1))
    journal.note(ended(jobs[2], error="it passed its deadline"))
    assert opened().left(jobs) == jobs[1:]


def test_jobs_are_known_by_their_commands_wherever_they_stand(opened: Opened) -> None:
    journal = opened()
    for job in read_jobs(["a", "b"], ("echo",)):
        journal.note(ended(job))
    # WHEN the list has changed THEN what is done is done, and what took its line is not
    changed = read_jobs(["c", "a", "b", "b"], ("echo",))
    assert [job.text for job in opened().left(changed)] == ["c", "b"]


def test_the_same_lines_for_another_program_are_other_jobs(opened: Opened) -> None:
    journal = opened()
    (job,) = read_jobs(["a"], ("train",))
    journal.note(ended(job))
    assert len(opened().left(read_jobs(["a"], ("test",)))) == 1


def test_a_line_cut_off_by_a_crash_is_told_and_spoils_nothing(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    one, two = read_jobs(["one", "two"], ("x",))
    journal = opened()
    journal.note(ended(one))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-10])
    journal = opened()
    assert journal.cut_off
    journal.note(ended(two))
    journal = opened()
    assert not journal.cut_off
    assert journal.left([one, two]) == []
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize("line", ["no JSON", "[]", "7", '{"code": 0}', '{"command": 7, "code": 0}', "", "\xff"])
def test_a_line_that_is_none_of_its_own_is_named_and_stays(opened: Opened, tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal"
    journal = opened()
    journal.note(ended(Job(1, ("x",))))
    text = path.read_text() + line + "\n"
    path.write_text(text)
    with pytest.raises(BadJournal, match=f"line 2 of {path} is not one of a journal"):
        opened()
    assert path.read_text() == text


def test_what_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "journal", tmp_path, Path("/dev/full")):
        with pytest.raises(BadJournal, match="name another file with --journal"):
            Journal(path)


def test_two_launches_do_not_share_one(opened: Opened, tmp_path: Path) -> None:
    opened()
    with pytest.raises(BadJournal, match="in use by another launch"):
        Journal(tmp_path / "journal")
