"""Jobs from a list of lines, and the journal that lets a list be gone through once although it is begun many times."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from nvshare.launch.fleet import Job, Result

_ANOTHER = "name another file with --journal"


def read_jobs(lines: Iterable[str], command: Sequence[str]) -> list[Job]:
    """One job per line: in the place of ``{job}`` in the command, else after it as further words; without a command
    the line is one. Empty lines and those that begin with # do not count. ``ValueError`` names a line that is wrong."""
    jobs: list[Job] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if any("{job}" in word for word in command):
            argv = tuple(word.replace("{job}", text) for word in command)
        else:
            try:
                argv = (*command, *shlex.split(text))
            except ValueError as error:
                raise ValueError(f"line {number} of the jobs cannot be split into words: {error}") from error
        jobs.append(Job(number, argv, text))
    return jobs


class BadJournal(Exception):
    """It cannot be used; the text says why, and what to do."""


class Journal:
    """A file with one line of JSON for each job that ended; written through, so that it is true after a crash. Jobs are
    known by their commands: a list of jobs may change between two launches."""

    def __init__(self, path: Path) -> None:
        """Open it, and make it where it is missing; ``BadJournal`` when it cannot be written, another launch has it, or
        it is something else."""
        self._path = path
        if path.exists() and not path.is_file():
            raise BadJournal(f"{path} is not a file: {_ANOTHER}")
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (held as long as the journal)
        except OSError as error:
            raise BadJournal(f"{path} cannot be written ({error.strerror}): {_ANOTHER}") from error
        try:
            self._lock()
            self._whole, self._finished = self._read()
        except BadJournal:
            self._file.close()
            raise

    @property
    def cut_off(self) -> bool:
        """Whether its last line was, by a crash: that job is done again, and the line goes with the next that is
        noted."""
        return self._whole < os.fstat(self._file.fileno()).st_size

    def left(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs that did not end well before. Of several with the same command, as many are left out as did."""
        done = self._finished.copy()
        left = []
        for job in jobs:
            if done[job.argv] > 0:
                done[job.argv] -= 1
            else:
                left.append(job)
        return left

    def note(self, result: Result) -> None:
        """``OSError`` when it cannot be written any more."""
        entry = {
            "command": result.job.argv,
            "number": result.job.number,
            "job": result.job.text,
            "code": result.code if not result.error else None,
            "signal": result.signal,
            "error": result.error,
            "seconds": round(result.seconds, 3),
            "gpus": result.gpus,
        }
        descriptor = self._file.fileno()
        line = json.dumps(entry).encode() + b"\n"
        os.ftruncate(descriptor, self._whole)  # a line that a crash or a full disk cut off must not spoil the next
        written = os.write(descriptor, line)
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._whole += written
        os.fsync(descriptor)

    def close(self) -> None:
        """Of one that was never written to nothing is left."""
        if not self._whole and not os.fstat(self._file.fileno()).st_size:
            self._path.unlink(missing_ok=True)
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadJournal(f"{self._path} is in use by another launch: wait for its end, or {_ANOTHER}") from None
        except OSError:
            return  # a file system without locks

    def _read(self) -> tuple[int, Counter[tuple[str, ...]]]:
        """Bytes in whole lines, and the jobs that ended well, by command."""
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        done: Counter[tuple[str, ...]] = Counter()
        for number, line in enumerate(text[:whole].splitlines(), start=1):
            try:
                entry = json.loads(line)
                command = tuple(map(str, entry["command"]))
                if entry["code"] == 0:
                    done[command] += 1
            except (ValueError, KeyError, TypeError):
                raise BadJournal(
                    f"line {number} of {self._path} is not one of a journal, so that nobody knows which job it was: "
                    f"correct or remove it, or {_ANOTHER}"
                ) from None
        return whole, done
