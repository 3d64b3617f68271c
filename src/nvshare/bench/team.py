"""Workload programs as child processes that begin together: started, told to go, listened to, and never left behind."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from nvshare.bench.outcome import Progress, TaskPlan
from nvshare.bench.workloads.program import READY

CLIENT_ID = re.compile(r"^\[NVSHARE\]\[INFO\]: Client ID = ([0-9a-f]{16})$", re.MULTILINE)
_SILENCE = 120.0  # seconds without a sign of life from any task before they are given up
_GRACE = 3.0  # seconds between asking a task to end and making it


class TeamStalled(Exception):
    """No task said anything for too long."""


@dataclass
class Member:
    """One process and what it said so far."""

    plan: TaskPlan
    process: subprocess.Popen[str]
    errors: IO[str]
    error: str = ""  # once it has ended: what it wrote to standard error, less our own log lines
    client: str = ""  # once it has ended: its id at the scheduler, by those log lines
    ready: bool = False
    ended: bool = False
    ended_at: float | None = None  # on the monotonic clock
    done: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    def take(self, line: str | None) -> None:
        """Note a line of its output; None: there will be no more."""
        if line is None:
            self.ended = True
        elif line == READY:
            self.ready = True
        elif line.startswith("{"):
            self.result = json.loads(line)
            self.done = 1.0
        elif "/" in line:
            done, _, rest = line.partition("/")
            total = rest.split(" ", 1)[0]
            if done.isdigit() and total.isdigit():
                self.done = int(done) / int(total)


def command_line(task: TaskPlan, speed: float) -> list[str]:
    """How a task is started."""
    workload = task.workload
    return [
        *(sys.executable, "-m", "nvshare.bench.workloads", workload.name),
        *("--n", str(workload.n)),
        *("--iterations", str(workload.iterations)),
        *("--sleep-ms", f"{workload.sleep * 1000:g}"),
        *("--seed", str(task.seed)),
        *("--time-scale", f"{speed:g}"),
        *("--barrier", "--progress", "--json"),
        *(("--marks", str(task.marks)) if task.marks is not None else ()),
    ]


class Team:
    """Use as a context: whatever happens inside, no process is left when it ends."""

    def __init__(
        self, tasks: tuple[TaskPlan, ...], speed: float, environment: Callable[[TaskPlan], dict[str, str]]
    ) -> None:
        self._lines: queue.SimpleQueue[tuple[Member, str | None]] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        self.members: list[Member] = []
        self.began = 0.0  # when the loops began, on the monotonic clock
        self._plans = tasks
        self._speed = speed
        self._environment = environment

    def __enter__(self) -> Team:
        try:
            for plan in self._plans:
                self._start(plan)
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end_all()

    def await_ready(self) -> None:
        """Until each task has set up, or has ended without."""
        self._listen_until(lambda member: member.ready)

    def go(self) -> None:
        """Tell all that are ready to begin their loops."""
        self.began = time.monotonic()
        for member in self.members:
            self._tell(member)

    def await_results(self, progress: Progress) -> None:
        """Until each task has its result, or has ended without. They stay alive until told to leave, but those that
        leave early or are killed on the way."""
        self._listen_until(lambda member: bool(member.result), progress)

    def leave(self) -> None:
        """Let them end, and wait for it."""
        for member in self.members:
            self._tell(member)
        self._listen_until(lambda member: False)
        for member in self.members:
            member.process.wait()

    def _start(self, plan: TaskPlan) -> None:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the member)
        process = subprocess.Popen(
            command_line(plan, self._speed),
            env=self._environment(plan),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C reaches us alone; we end them
        )
        member = Member(plan, process, errors)
        self.members.append(member)
        reader = threading.Thread(target=self._read, args=(member,), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, member: Member) -> None:
        assert member.process.stdout is not None
        with contextlib.suppress(ValueError):  # closed already: we were interrupted while this began
            for line in member.process.stdout:
                self._lines.put((member, line.rstrip("\n")))
        member.ended_at = time.monotonic()
        self._lines.put((member, None))

    def _listen_until(self, satisfied: Callable[[Member], bool], progress: Progress | None = None) -> None:
        while not all(member.ended or satisfied(member) for member in self.members):
            try:
                member, line = self._lines.get(timeout=_SILENCE)
            except queue.Empty:
                raise TeamStalled(
                    f"no task said anything for {_SILENCE:g} s; nvsharectl status tells during a run who waits for what"
                ) from None
            member.take(line)
            self._part_early(member)
            if progress is not None:
                progress(sum(member.done for member in self.members) / len(self.members))

    def _part_early(self, member: Member) -> None:
        plan = member.plan
        if plan.leaves and member.result and not member.ended:
            self._tell(member)
        if plan.killed_at is not None and member.done * plan.workload.iterations >= plan.killed_at:
            member.process.kill()

    @staticmethod
    def _tell(member: Member) -> None:
        assert member.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended; its exit status tells
            member.process.stdin.write("\n")
            member.process.stdin.flush()

    def _end_all(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.process.terminate()
        for member in self.members:
            try:
                member.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
        for reader in self._readers:
            reader.join()
        for member in self.members:
            self._close(member)

    @staticmethod
    def _close(member: Member) -> None:
        member.errors.seek(0)
        text = member.errors.read()
        lines = (line.strip() for line in text.splitlines() if not line.startswith("[NVSHARE]"))
        member.error = "; ".join(filter(None, lines))
        member.client = next(reversed(CLIENT_ID.findall(text)), "")
        for stream in (member.process.stdin, member.process.stdout, member.errors):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
