"""``nvshare bench``: measure, in the model, on a simulated node or on the GPUs of this machine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from nvshare import config
from nvshare.bench import eviction, linkspeed, mission, swap, venues
from nvshare.bench.columns import GIB
from nvshare.bench.compute.bench import BEGIN_SECONDS, ComputeBench, kit_for, scene_seconds
from nvshare.bench.compute.rows import Row as ComputeRow
from nvshare.bench.compute.scenarios import PARTS
from nvshare.bench.linkspeed import LinkSpeed
from nvshare.bench.mission import Mission, Scenario
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import Backend, ignore_progress
from nvshare.bench.outcome import Progress as Told
from nvshare.bench.processes import ProcessBackend
from nvshare.bench.worker import WorkerFailed
from nvshare.cli.fairness import fairness_command
from nvshare.cli.node_options import MODEL, SIM, plain_errors
from nvshare.cli.options import SIZE, Finite, PlainGroup, Seconds, fail, only
from nvshare.cli.results import HTML, JSON, require_apart, say, write, write_json
from nvshare.gpu.profiles import Profile, parse_node
from nvshare.model.run import ModelBackend
from nvshare.report.compute import compute_table, row_line, simulated_note, verdict
from nvshare.report.sentences import findings
from nvshare.report.text import eviction_table, row_report, summary_table, swap_report

_SOLO_WALL_SECONDS = 2.5  # what a task takes alone on a simulated node, unless --shorten says otherwise
_TURNS_WALL_SECONDS = 8.0  # the same of tasks in turns, which last at least 2 seconds of the scheduler's clock
_SCALE_BOUNDS = (0.01, 100.0)
_SURVIVOR_SPEED = 1.0  # of the simulated node on which speeds within a quarter of a second count


def _scale(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """``link=0.5``, ``kernel=2``. Cards beyond the bounds are no cards, and their runs would hardly ever end."""
    least, most = _SCALE_BOUNDS
    scale: dict[str, float] = {}
    for value in values:
        what, _, factor = value.partition("=")
        try:
            scale[what] = float(factor)
        except ValueError:
            scale[what] = 0.0
        if what not in ("link", "kernel") or not least <= scale[what] <= most:
            raise click.BadParameter(
                f"{value!r}: use link=0.5 (half the bandwidth) or kernel=2 (twice as long kernels), "
                f"from {least:g} to {most:g}"
            )
    return scale


def _one_of(model_spec: str | None, sim_spec: str | None) -> str | None:
    """The node that was chosen; ends the command when what was typed does not go together."""
    if model_spec and sim_spec:
        fail("--model and --sim do not go together: choose one", 2)
    if not sim_spec and click.get_current_context().get_parameter_source("speed") is ParameterSource.COMMANDLINE:
        fail("--speed is that of a simulated node: give --sim, or leave it out", 2)
    return model_spec or sim_spec


@contextlib.contextmanager
def progress_bars() -> Iterator[mission.Started]:
    """A bar per scenario on a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda scenario: ignore_progress
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:

        def started(scenario: Scenario) -> Told:
            bar = bars.add_task(f"test {scenario.name}: {scenario.label} ({scenario.mode})", total=1.0)
            return lambda part: bars.update(bar, completed=part)

        yield started


def _simulated_rows(
    spec: str, profile: Profile, gpus: int, speed: float, parts: dict[str, float], tests: tuple[int, ...]
) -> tuple[str, list[Row]]:
    """Simulated rows, with what the model says of the very same scenarios beside them."""
    apart = speed > 1.0 and any(scenario.at_life for scenario in mission.SCENARIOS if scenario.test in tests)
    which = False if apart else None
    model_rows = Mission(ModelBackend(gpus, profile, speed=speed), parts).rows(tests, which)
    with venues.simulated(spec, speed, "bench", profile) as venue, progress_bars() as started:
        rows = Mission(ProcessBackend(venue), parts, started).rows(tests, which)
    title = venue.title
    if apart:
        parts = {name: part / speed for name, part in parts.items()}
        model_rows += Mission(ModelBackend(gpus, profile), parts).rows(set(tests) - {0}, at_life=True)
        with venues.simulated(spec, 1.0, "bench", profile) as venue, progress_bars() as started:
            rows += Mission(ProcessBackend(venue), parts, started).rows(set(tests) - {0}, at_life=True)
        rows.sort(key=mission.place_in_table)
    if 2 in tests:
        model_rows += Mission(ModelBackend(gpus, profile)).survivors(profile)
        with venues.simulated(spec, _SURVIVOR_SPEED, "bench", profile) as venue, progress_bars() as started:
            rows += Mission(ProcessBackend(venue), started=started).survivors(profile)
    return title, mission.compare_with_model(rows, model_rows)


def _plain_rows(
    backend: Backend, parts: dict[str, float], tests: tuple[int, ...], profile: Profile | None
) -> tuple[str, list[Row]]:
    with progress_bars() as started:
        measured = Mission(backend, parts, started)
        rows = measured.rows(tests)
        return backend.title, rows + (measured.survivors(profile) if 2 in tests else [])


def _parts(shorten: float) -> dict[str, float]:
    return dict.fromkeys([*mission.BASELINES, mission.TURNS], shorten)


def _show(title: str, rows: list[Row]) -> None:
    click.echo(f"nvshare bench mission on {title}\n")
    for row in rows:
        click.echo(row_report(row) + "\n")
    click.echo(summary_table(rows) + "\n")
    for sentence in findings(rows):
        click.echo(sentence)


@click.group(cls=PlainGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Measure: in the model, on a simulated node, or on the GPUs of this machine.

    \b
    nvshare bench mission --model 2xT4               computed, in seconds
    nvshare bench mission --sim 2xT4 --only 4,6      simulated, real processes
    nvshare bench compute --sim H200 --only quotas   shares of the card's time
    """


def _speed(default: float) -> Callable[[Any], Any]:
    return click.option(
        "--speed", type=Finite(0.01, 100), default=default, show_default=True, help="Of the simulated node."
    )


@command.command("mission")
@MODEL
@SIM
@_speed(10.0)
@only("test", map(str, mission.TESTS))
@click.option(
    "--shorten",
    type=Finite(0, 1, min_open=True),
    help="Part of the iterations to run. Default: all; simulated: what takes a few seconds.",
)
@JSON
@HTML
@click.option(
    "--scale",
    callback=_scale,
    multiple=True,
    metavar="WHAT=FACTOR",
    help="link=0.5 or kernel=2, 0.01 to 100: change the modelled or simulated card.",
)
def mission_command(
    model_spec: str | None,
    sim_spec: str | None,
    speed: float,
    tests: tuple[str, ...],
    shorten: float | None,
    json_path: Path | None,
    html_path: Path | None,
    scale: dict[str, float],
) -> None:
    """The published table: tasks alone, together and mostly idle, against plain runs.

    \b
    nvshare bench mission --model 2xT4             computed, in seconds
    nvshare bench mission --sim 2xT4 --only 4,6    simulated, real processes
    nvshare bench mission --json result.json       the GPUs of this machine

    Durations are those of the tasks' own loops: the mean over the tasks, in turns the longest. Exit code 1 when a task
    failed, or did not come back to its speed after its neighbour had gone.
    """
    spec = _one_of(model_spec, sim_spec)
    if scale and not spec:
        fail("--scale changes a modelled or simulated card: give --model or --sim too", 2)
    require_apart({"--json": json_path, "--html": html_path})
    chosen = tuple(map(int, tests))
    with plain_errors():
        parts = _parts(shorten or 1.0)
        if spec is None:
            with venues.real() as venue:
                title, rows = _plain_rows(ProcessBackend(venue), parts, chosen, None)
        else:
            gpus, plain = parse_node(spec)
            profile = plain.scaled(**scale) if scale else plain
            if model_spec:
                title, rows = _plain_rows(ModelBackend(gpus, profile), parts, chosen, profile)
            else:
                if shorten is None:
                    parts = mission.shortening(profile, _SOLO_WALL_SECONDS * speed, _TURNS_WALL_SECONDS * speed)
                title, rows = _simulated_rows(spec, profile, gpus, speed, parts, chosen)
    content = {
        "node": title,
        "spec": spec,
        "speed": speed if sim_spec else 1.0,
        "scale": scale,
        "shorten": parts,
        "rows": [row.to_dict() for row in rows],
        "findings": findings(rows),
    }
    written = write("mission", rows[0].source, content, json_path, html_path)
    _show(title, rows)
    say(["", *written])
    sys.exit(0 if all(row.passed and row.recovered for row in rows) else 1)


_LARGE_NODE = "A100-40G"  # has room for what is declared by default, and for contexts


@dataclass(frozen=True)
class _Declared:
    """A card of which a part is declared: where runs happen, how fast its link is, and how many adds of 1 GiB of
    allocations it does per second."""

    backend: Backend
    link: LinkSpeed
    its: float


@contextlib.contextmanager
def _declared_card(model_spec: str | None, sim_spec: str | None, speed: float, card_memory: int) -> Iterator[_Declared]:
    spec = _one_of(model_spec, sim_spec)
    if spec is None:
        with venues.real(card_memory) as venue:
            backend = ProcessBackend(venue)
            yield _Declared(backend, linkspeed.measure(venue.plain_environment()), eviction.calibrate(backend))
        return
    gpus, profile = parse_node(spec)
    room = profile.memory_bytes - 4 * profile.context_bytes
    if card_memory > room:
        fail(
            f"--card-memory: {config.format_size(card_memory)} cannot be declared of {profile.name}: contexts of four "
            f"processes leave {config.format_size(room)}; declare less, or take another card",
            2,
        )
    its = 1 / profile.kernel_seconds(eviction.kernel_bytes(GIB))
    if model_spec:
        link = LinkSpeed(profile.link_h2d, profile.link_d2h, profile.link_duplex, profile.link_duplex)
        yield _Declared(ModelBackend(gpus, profile, declared=card_memory), link, its)
        return
    with venues.simulated(spec, speed, "bench", profile, card_memory) as venue:
        link = linkspeed.measure(venue.plain_environment(), speed)
        yield _Declared(ProcessBackend(venue), link, its)


def _card_memory(default: str) -> Callable[[Any], Any]:
    return click.option(
        "--card-memory", type=SIZE, default=default, show_default=True, help="What tasks together may have on the card."
    )


def _require(problem: str | None) -> None:
    """Refuse, before anything is started, what cannot be measured."""
    if problem is not None:
        fail(problem, 2)


@command.command("eviction")
@MODEL
@SIM
@_speed(1.0)
@_card_memory("16GiB")
@JSON
@HTML
def eviction_command(
    model_spec: str | None,
    sim_spec: str | None,
    speed: float,
    card_memory: int,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Least eviction: how many bytes each switch moves, against what does not fit.

    \b
    nvshare bench eviction --model A100-40G          computed
    nvshare bench eviction --sim A100-40G            real processes, simulated GPU
    nvshare bench eviction                           the first GPU of this machine

    Exit code 1 when a task failed, or a switch moved more than what does not fit and half a GiB.
    """
    _require(eviction.problem(card_memory))
    require_apart({"--json": json_path, "--html": html_path})
    with plain_errors(_LARGE_NODE), _declared_card(model_spec, sim_spec, speed, card_memory) as card:
        rows = [
            eviction.measure(card.backend, sizes, card_memory, card.its, speed, ignore_progress)
            for sizes in eviction.CASES
        ]
    content = {"node": card.backend.title, "rows": [row.to_dict() for row in rows]}
    written = write("eviction", card.backend.source, content, json_path, html_path)
    click.echo(f"nvshare bench eviction on {card.backend.title}\n\n{eviction_table(rows)}\n")
    say(written)
    sys.exit(0 if all(row.passed for row in rows) else 1)


@command.command("swap")
@MODEL
@SIM
@_speed(1.0)
@_card_memory("16GiB")
@click.option("--size", type=SIZE, default="12GiB", show_default=True, help="What each of the two tasks allocates.")
@JSON
@HTML
def swap_command(
    model_spec: str | None,
    sim_spec: str | None,
    speed: float,
    card_memory: int,
    size: int,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Switches against the link's own limit: how fast two tasks that do not fit change places.

    \b
    nvshare bench swap --sim A100-40G                     on a simulated GPU
    nvshare bench swap --card-memory 16GiB                this machine's first GPU
    nvshare bench swap --card-memory 12GiB --size 12GiB   whole sets change places

    First the link is measured by plain driver calls: pinned copies one way, the other, and both from two processes.
    """
    _require(swap.problem(card_memory, size))
    require_apart({"--json": json_path, "--html": html_path})
    with plain_errors(_LARGE_NODE), _declared_card(model_spec, sim_spec, speed, card_memory) as card:
        row = swap.measure(card.backend, card.link, size, card_memory, card.its, speed, ignore_progress)
    content = {"node": card.backend.title, "rows": [row.to_dict()]}
    written = write("swap", card.backend.source, content, json_path, html_path)
    click.echo(f"nvshare bench swap on {card.backend.title}\n\n{swap_report(row)}\n")
    say(written)
    sys.exit(0 if row.passed else 1)


@contextlib.contextmanager
def _compute_progress(total: float) -> Iterator[tuple[Callable[[float], None], Callable[[ComputeRow], None]]]:
    """Hears of seconds that have passed, and of rows: a bar on a terminal, a line per row elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda seconds: None, lambda row: click.echo(row_line(row), err=True)
        return
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("starting", total=total)
        yield lambda seconds: bars.advance(bar, seconds), lambda row: bars.update(bar, description=row.what)


def _compute_content(bench: ComputeBench, rows: list[ComputeRow], complete: bool) -> dict[str, Any]:
    return {**bench.conditions(), "complete": complete, "rows": [row.to_dict() for row in rows]}


@command.command("compute")
@SIM
@click.option("--real", is_flag=True, help="The first GPU of this machine (the default without --sim).")
@only("part", PARTS)
@click.option("--seconds", type=Seconds(0.2, 60), default=8.0, show_default=True, help="Length of a measured window.")
@JSON
@HTML
def compute_command(
    sim_spec: str | None,
    real: bool,
    parts: tuple[str, ...],
    seconds: float,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """What tasks get of a card's time, against their quotas and against native runs beside them.

    \b
    nvshare bench compute --sim H200 --only quotas       simulated, real processes
    nvshare bench compute --only pairs --json it.json    this machine's first GPU

    \b
    quotas   each workload alone at its quotas
    pairs    two, three and four tasks with quotas
    free     without quotas: against time-slicing, MPS and turns forced off
    idle     tasks that mostly sleep; an interactive one beside a busy one
    change   quotas that change while tasks run

    On a real card the workers compute with PyTorch. Rows are written as they are found. Exit code 1 when one is not as
    promised.
    """
    if real and sim_spec:
        fail("--real and --sim do not go together: choose one", 2)
    require_apart({"--json": json_path, "--html": html_path})
    rows: list[ComputeRow] = []
    with plain_errors("H200", modelled=False), venues.chosen(sim_spec, "bench") as venue:
        kit_for(venue)
        try:
            total = sum(scene_seconds(part, seconds, venue.source == "gpu") for part in parts)
        except WorkerFailed as error:
            fail(str(error), 2)
        minutes = (total + len(parts) * BEGIN_SECONDS[venue.source]) / 60
        click.echo(f"nvshare bench compute on {venue.title}: {', '.join(parts)}; about {minutes:.1f} min", err=True)
        with _compute_progress(total) as (passed, found):
            bench = ComputeBench(venue, seconds, passed)
            for row in bench.rows(parts):
                rows.append(row)
                if json_path is not None:  # after every row: a run that is cut short keeps what it found
                    write_json(json_path, "compute", venue.source, _compute_content(bench, rows, complete=False))
                found(row)
    written = write("compute", venue.source, _compute_content(bench, rows, complete=True), json_path, html_path)
    click.echo(f"nvshare bench compute on {venue.title}\n\n{compute_table(rows)}\n\n{verdict(rows)}")
    if venue.source != "gpu":
        click.echo(simulated_note(venue.source))
    say(written)
    sys.exit(0 if all(row.ok is not False for row in rows) else 1)


command.add_command(fairness_command)
