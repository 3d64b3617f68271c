"""``nvshare stress``: proves leases, launches and shutdown on this machine, or on a simulated node."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from nvshare import config
from nvshare.acceptance.exit_code import FAILED, PASSED
from nvshare.acceptance.stress.meter import gpu_log as logged
from nvshare.acceptance.stress.meter import meter_of, source_of
from nvshare.acceptance.stress.run import Plan, Report, Watchers, carry_out_plan
from nvshare.acceptance.stress.scene import Scene
from nvshare.acceptance.stress.scratch import scratch
from nvshare.acceptance.waiting import eventually
from nvshare.cli.interrupts import code_of, ended_by
from nvshare.cli.launch import where
from nvshare.cli.options import SPEED, Finite, PlainCommand, ResultFile, Seconds, fail
from nvshare.cli.results import HTML, JSON, require_apart, say, telling, write
from nvshare.client.connection import Connection, SchedulerError
from nvshare.gpu import sim
from nvshare.launch.address import Address, Cards, find_cards
from nvshare.launch.errors import LaunchError, NoGpu
from nvshare.launch.supervised import Supervised
from nvshare.launch.visible import BadChoice, choose
from nvshare.report.stress import lines

SKIPPED = 77  # exit code: there is no GPU
_PERCENT = Finite(0, 100)
_MIB = 1 << 20
_ENDING = 20.0  # seconds that workers have to be gone after Ctrl-C


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--workers", type=click.IntRange(1, 1024), help="Workers at once. Default: two per GPU.")
@click.option("--duration", type=Seconds(min=0, min_open=True), default=60, show_default=True, help="Seconds.")
@click.option("--memory", type=click.IntRange(16), default=256, show_default=True, help="MB of each worker, in all.")
@click.option("--gpus", metavar="0,2|all", default="all", show_default=True, help="Which GPUs, by index or UUID.")
@click.option("--skip-stress", is_flag=True, help="Only the launch configurations.")
@click.option("--skip-launch", is_flag=True, help="Without the launch configurations.")
@click.option("--faults", is_flag=True, help="Also kill, hang, leak and restart on purpose.")
@click.option("--cleanup", is_flag=True, help="End what this test started: a simulated node, a scheduler.")
@click.option("--verbose", is_flag=True, help="Each worker's process and GPU.")
@click.option("--gpu-log", type=ResultFile(), help="CSV with a line per GPU and second.")
@JSON
@HTML
@click.option("--min-success", type=_PERCENT, default=100, show_default=True, help="Percent of workers.")
@click.option("--min-launch", type=_PERCENT, default=100, show_default=True, help="Percent of configurations.")
@click.option("--sim", "spec", metavar="NODE", help="On a simulated node, e.g. 4xT4.")
@SPEED
def command(
    workers: int | None,
    duration: float,
    memory: int,
    gpus: str,
    skip_stress: bool,
    skip_launch: bool,
    faults: bool,
    cleanup: bool,
    verbose: bool,
    gpu_log: Path | None,
    json_path: Path | None,
    html_path: Path | None,
    min_success: float,
    min_launch: float,
    spec: str | None,
    speed: float | None,
) -> None:
    """Workers allocate, compute and check their data; then it is seen whether anything is left of them.

    \b
    nvshare stress                                on the GPUs of this machine
    nvshare stress --workers 12 --memory 1024 --faults
    nvshare stress --sim 4xT4 --duration 15       on simulated ones
    nvshare stress --skip-stress                  launch configurations only

    Exit code: 0 passed, 1 failed, 2 usage or set-up, 77 skipped because there is no GPU.
    """
    if skip_stress and skip_launch and not faults:
        fail("--skip-stress and --skip-launch leave nothing to do", 2)
    require_apart({"--json": json_path, "--html": html_path, "--gpu-log": gpu_log})
    was_up = set(sim.names()) if spec is not None else set()
    address = where(spec, speed)
    cards = _cards(address, gpus)
    _require_memory(memory, cards)
    plan = Plan(
        workers or 2 * len(cards.allowed),
        duration,
        memory * _MIB,
        not skip_stress,
        not skip_launch,
        faults,
        min_success,
        min_launch,
    )
    try:
        with scratch("nvshare-stress-") as directory:
            scene = Scene(address, cards, meter_of(address), directory)
            with _waiting_for(scene):
                report = _carry_out(plan, scene, gpu_log, verbose, telling(json_path, html_path, gpu_log))
    except (LaunchError, SchedulerError, sim.SimError) as error:
        fail(str(error), 2)
    finally:
        if cleanup:
            _clean_up(address, cards, made=address.simulated is not None and address.simulated not in was_up)
    written = write("stress", source_of(address), report.to_dict(), json_path, html_path)
    say([*written, *lines(report)])
    raise SystemExit(PASSED if report.passed else FAILED)


def _cards(address: Address, gpus: str) -> Cards:
    try:
        cards = find_cards(address)
    except NoGpu as error:
        _skip(str(error))
    except LaunchError as error:
        fail(str(error), 2)
    if not cards.allowed:
        _skip("CUDA_VISIBLE_DEVICES leaves no GPU of this machine to use")
    if gpus == "all":
        return cards
    try:
        return replace(cards, allowed=choose(gpus, cards.all, cards.allowed))
    except BadChoice as error:
        fail(f"--gpus {gpus}: {error}", 2)


def _skip(reason: str) -> NoReturn:
    click.echo(f"SKIPPED: {reason}")
    raise SystemExit(SKIPPED)


def _require_memory(memory: int, cards: Cards) -> None:
    smallest = min(cards.sizes[uuid] for uuid in cards.allowed)
    if memory * _MIB > smallest:
        fail(f"--memory {memory}: the smallest GPU to be used has {config.format_size(smallest)}", 2)


def _carry_out(plan: Plan, scene: Scene, gpu_log: Path | None, verbose: bool, tell: Callable[[str], None]) -> Report:
    def began(number: int, process: Supervised) -> None:
        granted = process.granted
        if verbose and granted is not None:
            index = ", ".join(str(scene.cards.index(uuid)) for uuid in granted.gpus)
            with contextlib.suppress(OSError):  # this is the worker's own thread; the main one notices too
                tell(f"  worker {number}: process {process.pid} on GPU {index}")

    def step(name: str) -> None:
        if verbose:
            tell(f"  {name}")

    where_ = f"simulated node {scene.address.simulated}" if scene.address.simulated else "this machine"
    title = f"{plan.workers} workers on {len(scene.cards.allowed)} GPUs of {where_}, {plan.memory // _MIB} MB each"
    tell(f"Stress test: {title}")
    watchers = Watchers(lambda name: tell(f"- {name}"), step, began)
    if gpu_log is None:
        return carry_out_plan(title, plan, scene, watchers)

    def lost(why: str) -> None:
        click.echo(f"[NVSHARE][WARN]: --gpu-log: {gpu_log} cannot be written any more ({why})", err=True)

    with logged(gpu_log, scene.meter, scene.cards.all, lost):
        return carry_out_plan(title, plan, scene, watchers)


@contextlib.contextmanager
def _waiting_for(scene: Scene) -> Iterator[None]:
    """After Ctrl-C or a polite kill, wait until the workers are gone."""
    with ended_by(signal.SIGTERM, signal.SIGHUP):
        try:
            yield
        except KeyboardInterrupt as ending:
            gone = eventually(lambda: not scene.processes(), _ENDING)
            left = "" if gone else f"; still there: processes {', '.join(map(str, sorted(scene.processes())))}"
            fail(f"interrupted; waited for its workers to end{left}", code_of(ending))


def _clean_up(address: Address, cards: Cards, made: bool) -> None:
    """End what this test started, and nothing else."""
    if made and address.simulated is not None:
        sim.down(address.simulated)
        return
    if cards.started:
        try:
            with Connection(address.socket) as connection:
                scheduler = connection.status()["scheduler"]
            os.kill(int(scheduler["pid"]), signal.SIGTERM)
        except (SchedulerError, ProcessLookupError, PermissionError):
            return
