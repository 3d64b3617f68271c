"""What makes it sharing: the library inside of programs, and the scheduler."""

from __future__ import annotations

from nvshare.doctor.facts import Facts, Preload, SchedulerFacts
from nvshare.doctor.findings import Verdict, Verdicts, note, ok, problem, warning

_MACHINES = {3: "32-bit x86", 40: "32-bit arm", 62: "x86-64", 183: "arm64"}
_TAKE_PART = 'use `nvshare run -- COMMAND`, or eval "$(nvshare env)" in this shell'


def _machine(number: int | None) -> str:
    return "no program library" if number is None else _MACHINES.get(number, f"machine {number}")


def library(facts: Facts) -> Verdicts:
    """libnvshare.so of this installation, in a program started as `nvshare run` starts it."""
    own, view = facts.library, facts.shared
    if own.path is None:
        yield problem(own.missing or "libnvshare.so is not there", "build it (make native), or install nvshare again")
    elif own.machine != own.own_machine:
        yield problem(
            f"{own.path} is for {_machine(own.machine)}, programs here are for {_machine(own.own_machine)}",
            "install the nvshare of this machine's architecture, or build it here: make native",
        )
    elif view.failure is not None and facts.native.failure is None:
        yield problem(
            f"a program with {own.path} preloaded {view.failure}",
            "that is a fault of nvshare, or of another library in LD_PRELOAD: please report it with "
            "`nvshare doctor --json`",
        )
    elif view.failure is not None:
        return  # the driver keeps any program from being looked at
    elif own.path not in view.mapped and not _another(facts):
        why = "; ".join(view.loader) or "the loader did not say why"
        yield problem(f"{own.path} cannot be preloaded ({why})", "install the nvshare that was built for this system")
    elif facts.native.works and view.interposer is None:
        yield problem(
            f"{own.path} is preloaded, and CUDA is reached without it",
            "another library in LD_PRELOAD comes first: take it out, or put it behind",
        )
    elif other := _another(facts):
        yield warning(
            f"{other} is in LD_PRELOAD before {own.path}: `nvshare run` uses that one",
            "unset LD_PRELOAD, or install the same nvshare everywhere",
        )
    elif facts.native.works:
        yield ok(f"{own.path}, active in programs that `nvshare run` starts")
    else:
        yield ok(f"{own.path}, can be preloaded")


def _another(facts: Facts) -> str | None:
    """Another copy that programs would use instead of ours."""
    found = facts.shared.interposer or next(iter(facts.shared.mapped), None)
    return found if found not in (None, facts.library.path) else None


def preload(facts: Facts) -> Verdicts:
    """The same for programs started from this shell just so."""
    entries, view = facts.library.preloads, facts.here
    ours = [entry for entry in entries if entry.is_ours]
    broken = [verdict for entry in entries for verdict in _unloadable(facts, entry)]
    yield from broken
    if broken and ours:
        return
    if not ours and facts.environment.takes_part:
        yield problem(
            f"{' and '.join(facts.environment.takes_part)} is set, and libnvshare.so is not in LD_PRELOAD: programs "
            "started here do not share",
            _TAKE_PART,
        )
    elif not ours:
        yield note("libnvshare.so is not preloaded: programs started plainly from this shell do not share", _TAKE_PART)
    elif view.failure is not None and facts.native.failure is None:
        yield problem(f"programs started here {view.failure} when they use CUDA", "unset LD_PRELOAD, use `nvshare run`")
    elif facts.native.works and not view.load_error and view.interposer is None:
        why = "; ".join(view.loader) or "another library comes first"
        yield problem(f"{ours[0].entry} is preloaded here and not active ({why})", _TAKE_PART)
    else:
        yield ok(f"{ours[0].entry}, from {ours[0].origin}")


def _unloadable(facts: Facts, entry: Preload) -> Verdicts:
    effect = "programs started here do not share" if entry.is_ours else "every program complains of it"
    judge = problem if entry.is_ours else warning
    remedy = f"correct it: {_TAKE_PART}" if entry.is_ours else f"take it out of {entry.origin}"
    if not entry.exists:
        yield judge(f"{entry.origin} names {entry.entry}, which is not there: {effect}", remedy)
    elif entry.machine != facts.library.own_machine and not entry.searched:
        yield judge(
            f"{entry.origin} names {entry.entry}, which is for {_machine(entry.machine)} and not for "
            f"{_machine(facts.library.own_machine)}: {effect}",
            remedy,
        )


def scheduler(facts: Facts) -> Verdicts:
    found = facts.scheduler
    if found.answer == "answers":
        yield _whose(found)
        yield from _agreement(facts)
    else:
        yield _no_answer(facts)
    yield from _file(found)
    for card, holder in found.elsewhere.items():
        yield problem(f"card {card} has another scheduler: {holder}", "a card has one scheduler: use that, or stop it")


def _whose(found: SchedulerFacts) -> Verdict:
    kind = {
        "system": "of this machine",
        "user": "of your own",
        "NVSHARE_SOCK": "that NVSHARE_SOCK names",
        "simulated node": "of the simulated node",
    }
    return ok(
        f"the scheduler {kind[found.chosen_by]} answers on {found.socket}: process {found.pid} of {found.owner}, "
        f"release {found.release}, {found.clients} {'client' if found.clients == 1 else 'clients'}"
    )


def _agreement(facts: Facts) -> Verdicts:
    found = facts.scheduler
    if found.release != facts.release:
        yield warning(
            f"the scheduler is of release {found.release}, this command of {facts.release}",
            "install the same release on both sides, and start the scheduler again (tasks go on meanwhile)",
        )
    if not facts.nvml.works:
        return
    missing = [
        uuid
        for device in facts.nvml.devices
        for uuid in (device.instances or (device.uuid,))
        if uuid not in found.cards and uuid not in found.elsewhere
    ]
    if missing:
        yield warning(
            f"the scheduler does not know {', '.join(missing)}: programs on it run unshared",
            "it looks for cards when it starts: start it again",
        )


def _no_answer(facts: Facts) -> Verdict:
    found = facts.scheduler
    start = f"start it: nvshare-scheduler {'(as root)' if found.chosen_by == 'system' else '--user'}"
    named = f"{found.socket} (from NVSHARE_SOCK)" if found.chosen_by == "NVSHARE_SOCK" else found.socket
    if found.answer == "unusable":
        return problem(found.detail, "do that: a directory that others may change could hold a socket of theirs")
    if found.answer == "absent" and not facts.environment.takes_part:
        works = facts.native.works
        return note("none answers", "`nvshare run` starts one for you" if works else "it needs the driver first")
    if found.answer == "absent":
        return problem(f"there is no scheduler on {named}: programs started here run unshared", start)
    if found.answer == "dead":
        return _dead(facts, named, start)
    if found.answer == "denied":
        owner = f", which belongs to {found.file.owner} (mode {found.file.mode:o})" if found.file else ""
        return problem(
            f"you may not connect to {named}{owner}",
            "use the owner's account, a scheduler of your own (unset NVSHARE_SOCK), or have root start one for all: "
            "nvshare-scheduler",
        )
    if found.answer == "other version":
        return problem(found.detail, "install the same release on both sides, and start the scheduler again")
    if found.answer == "foreign":
        return problem(
            f"what is at {named} is not an nvshare scheduler ({found.detail})", "unset or correct NVSHARE_SOCK"
        )
    if found.stopped:
        return problem(
            f"the scheduler on {named} was stopped (process {found.pid}): nobody gets a turn or memory",
            f"let it go on: kill -CONT {found.pid}",
        )
    end = f"end it (kill -9 {found.pid})" if found.pid else "end it"
    return problem(
        f"the scheduler on {named} does not answer in time ({found.detail})",
        f"its process is stuck or overloaded: look at its log beside the socket, then {end} and start it again; tasks "
        "go on meanwhile",
    )


def _dead(facts: Facts, named: str, start: str) -> Verdict:
    """The library goes where a socket is; `nvshare run` replaces one that is dead, but for the machine's own."""
    found = facts.scheduler
    said = f"nobody listens on {named} any more; the socket was left behind"
    if found.chosen_by == "system":
        return problem(f"{said}: programs run unshared", f"{start}, or remove the file")
    if facts.environment.takes_part:
        return problem(f"{said}: programs started here run unshared", f"{start} (it replaces the file)")
    return warning(said, "nothing to do if you use `nvshare run`, which starts one and replaces the file")


def _file(found: SchedulerFacts) -> Verdicts:
    file = found.file
    if file is None or found.answer == "denied":
        return
    if not file.owned_by_us_or_root:
        yield warning(
            f"{found.socket} belongs to {file.owner}: who runs that scheduler decides about your tasks",
            "unset NVSHARE_SOCK for one of your own, or have root start one for all",
        )
    elif file.directory_open:
        yield warning(
            f"others may replace {found.socket}: they may write to its directory",
            "as its owner: chmod go-w the directory",
        )
