"""Jobs from a list of lines, and the journal that lets a list be gone through once although it is begun many times."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from nvshare.launch.fleet import Job, Result


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


class Journal:
    """A file with one line of JSON for each job that ended; written through, so that it is true after a crash."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def finished(self) -> set[tuple[int, str]]:
        """Jobs that ended well before, by number and text. A line cut off by a crash counts for nothing."""
        done: set[tuple[int, str]] = set()
        try:
            lines = self._path.read_text().splitlines()
        except FileNotFoundError:
            return done
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["code"] == 0:
                    done.add((int(entry["number"]), str(entry["job"])))
            except (ValueError, KeyError, TypeError):
                continue
        return done

    def left(self, jobs: Iterable[Job]) -> list[Job]:
        done = self.finished()
        return [job for job in jobs if (job.number, job.text) not in done]

    def note(self, result: Result) -> None:
        entry = {
            "number": result.job.number,
            "job": result.job.text,
            "code": result.code if not result.error else None,
            "signal": result.signal,
            "error": result.error,
            "seconds": round(result.seconds, 3),
            "gpus": result.gpus,
        }
        line = b"\n" if self._cut_off() else b""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line + json.dumps(entry).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _cut_off(self) -> bool:
        """A crash in the middle of a line must not spoil the next one."""
        try:
            with open(self._path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except OSError:  # not there, or empty
            return False
