"""``nvshare launch``: a command on many workers, each with its GPU or its part of one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import click

from nvshare import config
from nvshare.cli.interrupts import ENDING
from nvshare.cli.options import CORES, CORES_HELP, SIZE, SPEED, PlainCommand, Seconds, fail
from nvshare.client.connection import Connection, SchedulerError
from nvshare.cores import Cores
from nvshare.gpu import sim
from nvshare.launch.address import Address, Cards, find_address, find_cards
from nvshare.launch.errors import LaunchError, NoGpu, WrongDevice
from nvshare.launch.fleet import STOPPED, Fleet, Job, Result, Terms, jobs_for
from nvshare.launch.journal import BadJournal, Journal, read_jobs
from nvshare.launch.leasing import Site, wish_for
from nvshare.launch.orders import GRACE, Wish
from nvshare.launch.validate import validate
from nvshare.launch.visible import BadChoice, choose

FAILED = "Failed to allocate GPU resources"
CLEANUP_FAILED = "Process cleanup failed"
DEADLOCK = "GPU allocation deadlock detected"
NO_GPUS = "No GPUs detected - falling back to CPU mode"


@dataclass(frozen=True)
class Chosen:
    """The site with the cards that were chosen, least first; none: the CPU."""

    site: Site
    uuids: tuple[str, ...]

    @property
    def indices(self) -> list[int]:
        cards = self.site.cards
        return [cards.index(uuid) for uuid in self.uuids] if cards is not None else []


def choose_gpus(wanted: str | None, address: Address, wish: Wish) -> Chosen:
    """``--gpus``; ends the command with one line when it cannot be."""
    on_cpu = Chosen(Site(address, None), ())
    if wanted == "cpu":
        return on_cpu
    try:
        cards = find_cards(address)
    except NoGpu as error:
        if wanted in (None, "all"):
            return on_cpu
        fail(f"--gpus {wanted}: {error}", 2)
    except LaunchError as error:
        click.echo(FAILED)
        fail(str(error), 1)
    if wanted in (None, "all"):
        uuids = cards.allowed
    else:
        try:
            uuids = choose(str(wanted), cards.all, cards.allowed)
        except BadChoice as error:
            fail(f"--gpus {wanted}: {error}", 2)
    if not uuids:
        return on_cpu
    _require_room(uuids, cards, wish)
    return Chosen(Site(address, replace(cards, allowed=uuids)), uuids)


def _require_room(uuids: tuple[str, ...], cards: Cards, wish: Wish) -> None:
    if wish.gpus > len(uuids):
        fail(f"--gpus-per-worker {wish.gpus}: there are {len(uuids)} GPUs to choose from", 2)
    largest = max(cards.sizes[uuid] for uuid in uuids)
    if wish.mem is not None and wish.mem > largest:
        fail(f"--mem {config.format_size(wish.mem)}: the largest GPU has {config.format_size(largest)}", 2)


def announce(chosen: Chosen, asked_for_cpu: bool) -> None:
    """Say what is used, and see that it is true; ends the command when it is not."""
    indices = chosen.indices
    if not indices and not asked_for_cpu:
        click.echo(NO_GPUS)
    else:
        click.echo(f"Using GPUs: {indices}")
    click.echo("GPU Setup Validation:")
    click.echo(f"CUDA_VISIBLE_DEVICES: {','.join(map(str, indices))}")
    try:
        validate(chosen.site.address, chosen.uuids)
    except WrongDevice as error:
        click.echo(FAILED)
        fail(str(error), 1)
    click.echo("GPU validation successful")


def where(spec: str | None, speed: float | None) -> Address:
    """The place; ends the command when it cannot be."""
    try:
        return find_address(spec, speed)
    except (ValueError, sim.SimError) as error:
        fail(str(error), 2)


@contextlib.contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[Callable[[], int | None]]:
    """SIGINT, SIGTERM and SIGHUP stop it, but for those that are ignored, as under nohup; tells which one did."""
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        stop()

    before = {
        number: signal.signal(number, handle) for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield lambda: caught[0] if caught else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command(
    cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False}
)
@click.option("--gpus", metavar="0,2|all|cpu", help="Which GPUs, by index or UUID. Default: all, else the CPU.")
@click.option("--workers", type=click.IntRange(1, 4096), help="Workers at once. Default: one per GPU.")
@click.option("--mem", type=SIZE, help="Memory quota of each worker on its GPU, e.g. 4GiB.")
@click.option("--cores", type=CORES, help=f"Compute quota of each worker, {CORES_HELP}.")
@click.option("--gpus-per-worker", type=click.IntRange(1, 64), default=1, show_default=True, help="Different ones.")
@click.option("--jobs", type=click.File("r"), help="A job per line (- for standard input), see below.")
@click.option("--journal", type=click.Path(path_type=Path, dir_okay=False), help="Remembers jobs that ended well.")
@click.option("--retries", type=click.IntRange(0, 1000), default=0, help="Try a failed job again so many times.")
@click.option("--deadline", type=Seconds(min=0, min_open=True), help="Seconds that a job may take.")
@click.option("--timeout", type=Seconds(min=0), default=600, show_default=True, help="Seconds for a lease.")
@click.option("--grace", type=Seconds(min=0), default=GRACE, show_default=True, help="Seconds till KILL.")
@click.option("--log-dir", type=click.Path(path_type=Path, file_okay=False), help="Output of each job in a file there.")
@click.option("--sim", "spec", metavar="NODE", help="On a simulated node, e.g. 4xT4.")
@SPEED
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    gpus: str | None,
    workers: int | None,
    mem: int | None,
    cores: Cores | None,
    gpus_per_worker: int,
    jobs: TextIO | None,
    journal: Path | None,
    retries: int,
    deadline: float | None,
    timeout: float,
    grace: float,
    log_dir: Path | None,
    spec: str | None,
    speed: float | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND on many workers, each with a GPU or a part of one.

    \b
    nvshare launch -- python train.py --seed {worker}
    nvshare launch --gpus 0,2 --workers 8 --mem 4GiB --cores 25 -- python trial.py
    nvshare launch --gpus cpu --workers 4 -- python preprocess.py
    nvshare launch --workers 8 --jobs trials.txt -- python trial.py {job}

    {worker} in the command is the worker's number, {gpu} the index of its GPU, {job} a line of --jobs (else its words
    are added). Jobs from a file have a journal beside it: begun again, only what is left is done. Nothing that a worker
    starts outlives it, and nothing of all this outlives the launch.
    """
    if not command and jobs is None:
        fail("there is no command: nvshare launch [OPTIONS] -- COMMAND", 2)
    if gpus == "cpu":
        _require_nothing_of_gpus({"--mem": mem, "--cores": cores}, gpus_per_worker)
    wish = wish_for(mem, cores, gpus_per_worker, timeout=timeout)
    with _work(command, jobs, journal) as (listed, record):
        _require_command(command, listed)
        address = where(spec, speed)
        chosen = choose_gpus(gpus, address, wish)
        announce(chosen, asked_for_cpu=gpus == "cpu")
        count = workers or len(chosen.uuids) or 1
        work = jobs_for(command, count) if jobs is None else listed
        if log_dir is not None:
            try:
                log_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                fail(f"--log-dir {log_dir} cannot be made: {error.strerror}", 2)
        terms = Terms(count, retries, deadline, grace, log_dir)
        raise SystemExit(_launch(Fleet(chosen.site, wish, terms), work, record, address))


def _require_nothing_of_gpus(quotas: Mapping[str, object], gpus_per_worker: int) -> None:
    for option, quota in quotas.items():
        if quota is not None:
            fail(f"{option} is a quota on a GPU, and --gpus cpu leaves none: leave out one of them", 2)
    if gpus_per_worker > 1:
        fail(f"--gpus-per-worker {gpus_per_worker}: --gpus cpu leaves none", 2)


@contextlib.contextmanager
def _work(
    command: tuple[str, ...], jobs: TextIO | None, journal: Path | None
) -> Iterator[tuple[list[Job], Journal | None]]:
    """What is to be done, and what remembers that it was."""
    if jobs is None:
        if journal is not None:
            fail("--journal needs --jobs", 2)
        yield [], None
        return
    try:
        listed = read_jobs(jobs, command)
    except UnicodeDecodeError as error:
        fail(f"--jobs: {jobs.name} is not a list of jobs: it is not text in {error.encoding.upper()}", 2)
    except ValueError as error:
        fail(str(error), 2)
    if not listed:
        fail(f"--jobs: there is no job in {jobs.name}", 2)
    if journal is None and jobs is not sys.stdin and Path(jobs.name).is_file():
        journal = Path(f"{jobs.name}.journal")
    if journal is None:
        yield listed, None
        return
    try:
        record = Journal(journal)
    except BadJournal as error:
        fail(f"--journal: {error}", 2)
    if record.cut_off:
        click.echo(f"[NVSHARE][WARN]: the last line of {journal} was cut off: its job is done again", err=True)
    left = record.left(listed)
    if len(left) < len(listed):
        click.echo(f"{len(listed) - len(left)} of {len(listed)} jobs are done already ({journal})")
    with contextlib.closing(record):
        yield left, record


def _require_command(command: tuple[str, ...], work: list[Job]) -> None:
    names = {command[0]} if command else {job.argv[0] for job in work}
    for name in sorted(name for name in names if "{" not in name):
        if not name or shutil.which(name) is None:
            there = os.path.dirname(name) and os.path.exists(name)
            fail(f"{name or repr('')}: {os.strerror(errno.EACCES) if there else 'command not found'}", 2)


def _launch(fleet: Fleet, work: list[Job], record: Journal | None, address: Address) -> int:
    began = time.monotonic()
    lost: list[str] = []  # why the journal was, if it was
    with stopping(fleet.stop) as stopped, _progress(len(work)) as advance:

        def done(result: Result) -> None:
            try:
                if record is not None and not lost:
                    record.note(result)
            except OSError as error:
                lost.append(str(error.strerror))
                fleet.stop()
            advance(result)

        results = fleet.run(work, done)
    _summarise(results, len(work), time.monotonic() - began)
    _name_failures(results, fleet, address)
    if lost:
        fail(
            f"--journal: it cannot be written any more ({lost[0]}): the launch was stopped, jobs since then will be "
            "done again",
            1,
        )
    number = stopped()
    if number is not None:
        return 128 + number
    return 0 if len(results) == len(work) and all(result.ok for result in results) else 1


def _name_failures(results: list[Result], fleet: Fleet, address: Address) -> None:
    left = [pid for result in results for pid in result.left]
    if left:
        click.echo(f"{CLEANUP_FAILED}: processes {', '.join(map(str, left))} are still there")
    late = [result for result in results if result.timed_out]
    if late and not any(result.pid for result in results) and not fleet.running():
        click.echo(f"{DEADLOCK}: {late[0].error}; {_holders(address)}")
    elif results and all(not result.pid and result.error != STOPPED for result in results):
        click.echo(f"{FAILED}: {results[0].error}")


def _holders(address: Address) -> str:
    try:
        with Connection(address.socket) as connection:
            leases: list[dict[str, Any]] = connection.status()["leases"]
    except SchedulerError as error:
        return str(error)
    held = [f"{lease['label'] or lease['id']} (process {lease['pid']})" for lease in leases if lease["gpus"]]
    return f"held by {', '.join(held[:8])}" if held else "nobody holds a lease"


def _summarise(results: list[Result], total: int, seconds: float) -> None:
    for result in sorted(results, key=lambda result: result.job.number):
        if not result.ok and result.error != STOPPED:
            how = f"signal {signal.Signals(result.signal).name}" if result.signal else f"exit code {result.code}"
            reason = f"{result.error} ({how})" if result.error and result.pid else result.error or how
            click.echo(f"job {result.job.number} (worker {result.worker}): {reason}", err=True)
    passed = sum(result.ok for result in results)
    stopped = sum(result.error == STOPPED for result in results)
    counts = {"Stopped": stopped, "Not run": total - len(results)}
    others = "".join(f", {name}: {count}" for name, count in counts.items() if count)
    click.echo(f"Total: {total}, Pass: {passed}, Fail: {len(results) - passed - stopped}{others}, {seconds:.1f} s")


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Result], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty() or total < 2:
        yield lambda result: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("jobs", total=total)
        yield lambda result: progress.advance(task)
