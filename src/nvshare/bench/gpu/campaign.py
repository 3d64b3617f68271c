"""Everything that is claimed of a real card, part by part, within a budget of time.

    python -m nvshare.bench.gpu --plan
    python -m nvshare.bench.gpu [--only quotas,spine] [--budget 590] [--json DIR] [--skip-done DIR] [--cut]
    python -m nvshare.bench.gpu --sim [--seconds 1]      what simulated cards can carry, to try it out

Builds the native part once. Each part is a process of its own with a limit of its own. One that fails or hangs is ended
with all it started, the card is looked at, and the next one runs. A line of the table is printed as soon as it is known
(README.md beside this file says where each comes from). DIR keeps what each part wrote, PART.json, and campaign.json
with all lines; a later call with --skip-done DIR goes on from there. A part that does not fit into what is left of the
budget is skipped and named, so name the most valuable first; with --cut it runs as far as the time goes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pynvml

from nvshare import procfs
from nvshare.bench.gpu.parts import Line, Part, parts_for, rows_of
from nvshare.bench.gpu.scheduler import TREE, build_native, plain_environment

_PR_SET_CHILD_SUBREAPER = 36
_LOOK = 0.25  # seconds between two looks at what a part has written
_POLITE = 5.0  # seconds between asking a part to end and making it
_TRIES = 3  # to end what a part has left
_LINGER = 8.0  # seconds in which what a part has started may go by itself
_CARD_PATIENCE = 10.0  # seconds until the card is as before
_CARD_SLACK = 64 << 20  # bytes that the driver may keep
_TO_END = 10.0  # seconds of the budget that are kept for ending a part and looking at the card
_LEAST = 30.0  # seconds that a part that is cut short gets at least
_TAIL = 120  # lines of a part's output that are kept
SUMMARY = "campaign.json"
DONE, FAILED, ENDED, SKIPPED, EARLIER = "done", "failed", "ended", "skipped", "done earlier"


class Card(Protocol):
    """The card that the parts are run on."""

    def problem(self) -> str:
        """What is not as it was before the first part; empty: nothing. May wait for it to come right."""

    def about(self) -> dict[str, Any]: ...


class NoCard:
    """Simulated cards are those of one part each, and gone with it."""

    def problem(self) -> str:
        return ""

    def about(self) -> dict[str, Any]:
        return {"gpu": "simulated"}


class NvmlCard:
    """The first card of this machine."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._before = self._look()

    def _look(self) -> tuple[int, frozenset[int]]:
        used = int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return used, frozenset(process.pid for process in running)

    def problem(self) -> str:
        deadline = time.monotonic() + _CARD_PATIENCE
        while True:
            used, pids = self._look()
            more, left = used - self._before[0], pids - self._before[1]
            if more <= _CARD_SLACK and not left:
                return ""
            if time.monotonic() > deadline:
                return f"the card has {more >> 20} MiB more than before and the processes {sorted(left)}"
            time.sleep(_LOOK)

    def about(self) -> dict[str, Any]:
        return {
            "gpu": pynvml.nvmlDeviceGetName(self._handle),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
            "baseline_mib": self._before[0] >> 20,
        }


@dataclass
class Outcome:
    """What became of a part. ``left``: what it had not ended itself, and what is still not as before."""

    part: str
    state: str
    seconds: float = 0.0
    code: int | None = None
    reason: str = ""
    left: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)


def adopt_orphans() -> None:
    """What a part leaves behind becomes our child, so that it can be found and ended, whatever session it is in."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """All processes below us, by their parents: not every kernel lists children."""
    parents = {int(name): procfs.parent(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found = [os.getpid()]
    for one in found:  # grows meanwhile
        found += [pid for pid, parent in parents.items() if parent == one]
    return found[1:]


def _reap(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def end_leftovers(others: Callable[[], list[int]], linger: float) -> list[str]:
    """Processes that a part has started and not ended get so long to go by themselves, then they are killed and named;
    ``others`` tells who is there."""
    deadline = time.monotonic() + linger
    while (alive := [pid for pid in others() if procfs.start_time(pid)]) and time.monotonic() < deadline:
        _reap(alive)
        time.sleep(_LOOK / 5)
    named = {pid: f"{pid}: {_command_of(pid)}" for pid in alive}
    for _ in range(_TRIES):  # those that they start meanwhile too; one that hangs in the driver cannot be killed
        for pid in alive:
            procfs.kill(pid, _POLITE / _TRIES)
        _reap(alive)
        alive = [pid for pid in others() if procfs.start_time(pid)]
        if not alive:
            break
    _reap(others())
    return [*named.values(), *(f"{pid}: cannot be ended: {_command_of(pid)}" for pid in alive)]


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    return "?"


class Run:
    """One part, from its start until nothing of it is left."""

    def __init__(
        self, part: Part, file: Path, told: Callable[[list[dict[str, Any]]], None], clock: Callable[[], float]
    ) -> None:
        self._part = part
        self._file = file
        self._told = told
        self._clock = clock

    def carry_out(self, limit: float, linger: float) -> Outcome:
        before = set(descendants())
        began = self._clock()
        self._file.unlink(missing_ok=True)
        with tempfile.TemporaryFile("w+", errors="replace") as said, self._part.place(self._file) as variables:
            process = subprocess.Popen(
                [str(word) for word in self._part.command(self._file)],
                cwd=TREE,
                env=plain_environment({"PYTHONUNBUFFERED": "1", **variables}),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            in_time = self._watch(process, began + limit)
            if not in_time:
                _end(process)
            left = end_leftovers(
                lambda: [pid for pid in descendants() if pid not in before], linger if in_time else 0.0
            )
            self._look()
            said.seek(0)
            output = said.read().splitlines()[-_TAIL:]
        outcome = Outcome(self._part.name, DONE, self._clock() - began, process.returncode, left=left, output=output)
        if not in_time:
            outcome.state, outcome.reason = ENDED, f"not over after {limit:.0f} s"
            outcome.left = [each for each in left if "cannot be ended" in each]  # the others had no chance to go
        elif not self._file.exists() or process.returncode not in (0, 1):  # 1: something is not as promised
            outcome.state, outcome.reason = FAILED, f"exit code {process.returncode}"
        return outcome

    def _watch(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """Until it ends, which is True, or its time is over."""
        while True:
            try:
                process.wait(_LOOK)
                return True
            except subprocess.TimeoutExpired:
                over = self._clock() >= deadline
                self._look()
                if over:
                    return False

    def _look(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # not there yet, or half written
            self._told(rows_of(json.loads(self._file.read_text())))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely, so that it can end what it started; its group and those that left it are seen to afterwards."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLITE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLITE)


class Table:
    """Lines, each told once: as soon as it is known, or when its part is over."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.lines: list[dict[str, Any]] = []

    def head(self) -> None:
        self._say(_columns("issue", "what", "asked", "seen", "ok"))

    def tell(self, part: str, line: Line, rows: list[dict[str, Any]], *, over: bool = False) -> bool:
        verdict = line.judge(rows)
        if verdict is None and not over:
            return False
        seen, ok = verdict or line.cut_short(rows)
        self.lines.append(
            {"issue": line.issue, "what": line.what, "asked": line.asked, "seen": seen, "ok": ok, "part": part}
        )
        self._say(_columns(line.issue, line.what, line.asked, seen, {True: "ok", False: "FAIL", None: "-"}[ok]))
        return True


def _columns(issue: str, what: str, asked: str, seen: str, ok: str) -> str:
    return f"{issue:<5} {ok:<4} {what:<42} {asked:<44} {seen}"


class Campaign:
    """Parts one after the other, each with its share of the budget by ``clock``. ``linger``: seconds in which what a
    part has started may go by itself."""

    def __init__(
        self,
        parts: Sequence[Part],
        budget: float,
        directory: Path,
        card: Card,
        *,
        cut: bool = False,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
        linger: float = _LINGER,
    ) -> None:
        self._parts = parts
        self._directory = directory
        self._card = card
        self._cut = cut
        self._clock = clock
        self._say = say
        self._linger = linger
        self._began = clock()
        self._ends = self._began + budget
        self._budget = budget
        self.table = Table(say)
        self.outcomes: list[Outcome] = []
        self._last: list[dict[str, Any]] = []  # rows of the part that runs, when they were last looked at

    def run(self, done: dict[str, Any] | None = None) -> bool:
        """Whether every line is as promised. ``done``: a summary whose finished parts are not run again."""
        self.table.head()
        earlier = {entry["part"]: entry for entry in (done or {}).get("parts", []) if entry["state"] in (DONE, EARLIER)}
        for part in self._parts:
            if part.name in earlier:
                self._take_over(part, earlier[part.name], done or {})
            else:
                self._one(part)
            self._keep()
        self._conclude()
        return all(line["ok"] is not False for line in self.table.lines) and not self._skipped()

    def _take_over(self, part: Part, entry: dict[str, Any], done: dict[str, Any]) -> None:
        self.outcomes.append(Outcome(part.name, EARLIER, entry["seconds"], entry["code"], left=entry["left"]))
        self.table.lines += [line for line in done["lines"] if line["part"] == part.name]
        self._say(f"--- {part.name}: done earlier")

    def _one(self, part: Part) -> None:
        left = self._ends - self._clock() - _TO_END
        if left < part.seconds and not (self._cut and left >= _LEAST):
            reason = f"needs {part.seconds:.0f} s, {max(0.0, left):.0f} are left"
            self.outcomes.append(Outcome(part.name, SKIPPED, reason=reason))
            self._say(f"--- {part.name}: skipped, {reason}")
            return
        limit = min(part.limit, left)
        self._say(f"--- {part.name}: about {part.seconds:.0f} s, at most {limit:.0f}")
        untold = list(part.lines)
        self._last = []

        def told(rows: list[dict[str, Any]], *, over: bool = False) -> None:
            untold[:] = [line for line in untold if not self.table.tell(part.name, line, rows, over=over)]
            self._last = rows

        file = self._directory / f"{part.name}.json"
        outcome = Run(part, file, told, self._clock).carry_out(limit, self._linger)
        told(self._last, over=True)
        problem = self._card.problem()
        outcome.left += [problem] if problem else []
        self.outcomes.append(outcome)
        said = [outcome.reason, *(f"left behind: {each}" for each in outcome.left)]
        self._say(
            f"--- {part.name}: {outcome.state} in {outcome.seconds:.0f} s {'; '.join(filter(None, said))}".rstrip()
        )
        if outcome.state != DONE:
            for line in outcome.output[-8:]:
                self._say(f"    {line[:200]}")

    def _skipped(self) -> list[str]:
        return [outcome.part for outcome in self.outcomes if outcome.state == SKIPPED]

    def _conclude(self) -> None:
        lines = self.table.lines
        judged = [line for line in lines if line["ok"] is not None]
        failed = [f"{line['issue']} {line['what']}" for line in judged if not line["ok"]]
        skipped = self._skipped()
        self._say(
            f"{len(judged) - len(failed)} of {len(judged)} lines are as promised, "
            f"in {self._clock() - self._began:.0f} of {self._budget:.0f} s"
        )
        for title, names in (("not as promised", failed), ("skipped", skipped)):
            if names:
                self._say(f"{title}: {', '.join(names)}")

    def _keep(self) -> None:
        content = {
            "kind": "campaign",
            "date": time.strftime("%Y-%m-%d"),
            "machine": {**self._card.about(), "python": sys.version.split()[0]},
            "budget_s": self._budget,
            "seconds": round(self._clock() - self._began, 1),
            "parts": [{**asdict(outcome), "seconds": round(outcome.seconds, 1)} for outcome in self.outcomes],
            "lines": self.table.lines,
        }
        aside = self._directory / f"{SUMMARY}.new"
        aside.write_text(json.dumps(content, indent=1) + "\n")
        aside.replace(self._directory / SUMMARY)


def chosen(names: str | None, parts: Sequence[Part]) -> list[Part]:
    """In the order given."""
    if names is None:
        return list(parts)
    known = {part.name: part for part in parts}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise SystemExit(f"no part {', '.join(unknown)}: there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names.split(","))]


def plan(parts: Sequence[Part]) -> Iterator[str]:
    yield f"{'part':<12} {'seconds':>7} {'limit':>6}  lines"
    for part in parts:
        issues = ", ".join(dict.fromkeys(line.issue for line in part.lines))
        yield f"{part.name:<12} {part.seconds:>7.0f} {part.limit:>6.0f}  {issues}: {part.about}"
    yield f"{'all':<12} {sum(part.seconds for part in parts):>7.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="which parts, comma separated, the most valuable first (default: all)")
    parser.add_argument("--budget", type=float, default=1800.0, help="seconds for everything (default: 1800)")
    parser.add_argument("--json", type=Path, help="keep the results in this directory")
    parser.add_argument("--skip-done", type=Path, metavar="DIR", help="leave out parts that are done there")
    parser.add_argument("--cut", action="store_true", help="run also what does not fit, as far as the time goes")
    parser.add_argument("--plan", action="store_true", help="print the parts and what they take, run nothing")
    parser.add_argument("--sim", action="store_true", help="on simulated cards, as far as they carry it")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a measured window (default: 8)")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    parts = chosen(options.only, parts_for(options.sim, options.seconds))
    if options.plan:
        print("\n".join(plan(parts)))
        return 0
    done = None
    if options.skip_done is not None and (options.skip_done / SUMMARY).exists():
        done = json.loads((options.skip_done / SUMMARY).read_text())
    with contextlib.ExitStack() as stack:
        directory = options.json or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        if options.sim:  # simulated nodes of our own, not those that the user has joined
            os.environ["XDG_RUNTIME_DIR"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="nvs-"))
        build_native()
        adopt_orphans()
        card: Card = NoCard() if options.sim else NvmlCard()
        campaign = Campaign(parts, options.budget - (time.monotonic() - began), directory, card, cut=options.cut)
        return 0 if campaign.run(done) else 1
