"""``nvshare bench fairness``: what tasks get of a card, against what they could get."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from nvshare.bench import venues
from nvshare.bench.fairness import live, training
from nvshare.bench.fairness.rows import TABLE_PART, Row, promises, summary
from nvshare.bench.fairness.tasks import (
    GRAMMAR,
    KERNEL_BOUNDS,
    KERNEL_MS,
    LONG,
    RANDOM,
    SMALL,
    Tasks,
    drawn,
    parse_set,
    table,
)
from nvshare.bench.parallel import HelperEnded, spread
from nvshare.bench.processes import Venue
from nvshare.bench.worker import WorkerFailed
from nvshare.cli.node_options import MODEL, SIM, plain_errors
from nvshare.cli.options import Finite, Seconds, fail
from nvshare.cli.results import HTML, JSON, require_apart, say, write, write_json
from nvshare.gpu.profiles import parse_node
from nvshare.model import attainable
from nvshare.model.fairness import Job, measure_beside, measured_row
from nvshare.report.compute import simulated_note
from nvshare.report.fairness import row_line, sets_text, summary_text

_SETS = 10  # where nothing else is asked for
_MOST_SETS = 10_000
_GIVEN = "given"


@dataclass(frozen=True)
class _Plan:
    """What to measure. Each set with the part that its row belongs to."""

    sets: Sequence[tuple[str, Tasks]]
    training: bool
    seconds: float
    warm_up: float


@dataclass
class _Result:
    """What is found, by the place of its set. ``about``: what was asked for."""

    about: dict[str, Any]
    rows: dict[int, Row]
    json_path: Path | None
    source: str = "model"
    title: str = ""

    @property
    def on_card(self) -> bool:
        return self.source == "gpu"

    def ordered(self) -> list[Row]:
        return [self.rows[place] for place in sorted(self.rows)]

    def content(self, complete: bool) -> dict[str, Any]:
        rows = self.ordered()
        return {
            "machine": {"node": self.title},
            **self.about,
            "complete": complete,
            "summary": asdict(summary(rows)),
            "promises": [asdict(promise) for promise in promises(rows, on_card=self.on_card)],
            "rows": [row.to_dict() for row in rows],
        }


def _in_model(spec: str, plan: _Plan, result: _Result) -> None:
    _, profile = parse_node(spec)
    result.title = f"1 x {profile.name} (model)"
    jobs = [Job(part, tasks, profile.name, plan.seconds, plan.warm_up) for part, tasks in plan.sets]
    try:
        with _progress(len(jobs)) as told, contextlib.closing(spread(measured_row, jobs)) as results:
            for place, row in results:
                result.rows[place] = row
                told(row)
    except HelperEnded as error:
        fail(str(error), 1)


def _live(sim_spec: str | None, plan: _Plan, result: _Result) -> None:
    """Real processes. The file is written after every row: a run that is cut short keeps what it found."""
    with venues.chosen(sim_spec, "bench") as venue:
        result.title, result.source = venue.title, venue.source
        count = len(plan.sets) + (training.SETS if plan.training else 0)
        minutes = _wall_seconds(plan, venue.source) / 60
        click.echo(f"nvshare bench fairness on {venue.title}: {count} sets; about {minutes:.1f} min", err=True)
        with _progress(count) as told:
            for place, row in enumerate(_live_rows(venue, plan)):
                result.rows[place] = row
                if result.json_path is not None:
                    write_json(result.json_path, "fairness", venue.source, result.content(complete=False))
                told(row)


def _wall_seconds(plan: _Plan, source: str) -> float:
    """What it takes, about."""
    window = plan.seconds + plan.warm_up + live.SETTLING
    ways = 3 if source == "gpu" else 2
    of_sets = len(plan.sets) * ways * window + live.BEGIN_SECONDS[source] if plan.sets else 0.0
    of_training = training.SETS * 2 * window + len(training.PAIRS) * training.BEGIN_SECONDS
    return of_sets + (of_training if plan.training else 0.0)


def _live_rows(venue: Venue, plan: _Plan) -> Iterator[Row]:
    if plan.sets:
        most = max(len(tasks) for _, tasks in plan.sets)
        measure = measure_beside(venue.card, plan.seconds, plan.warm_up)
        with live.on(venue, plan.seconds, plan.warm_up, measure, most) as stage:
            for part, tasks in plan.sets:
                yield stage.row(part, tasks)
    if plan.training:
        yield from training.rows(venue, plan.seconds, plan.warm_up, attainable.measure)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Row], None]]:
    """Hears of rows: a bar on a terminal, a line per row elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda row: click.echo(row_line(row), err=True)
        return
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total} sets"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("", total=total)
        yield lambda row: bars.advance(bar)


def _given(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for value in values:
            parse_set(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return values


def _chosen_sets(
    given: Sequence[str], fixed: bool, count: int, seed: int, kind: str, kernel: float
) -> list[tuple[str, Tasks]]:
    """Those that were given, the fixed ones, and random ones."""
    return [
        *((_GIVEN, parse_set(written, kernel)) for written in given),
        *((TABLE_PART, tasks) for tasks in (table(kernel) if fixed else ())),
        *((kind, tasks) for tasks in drawn(seed, count, kind)),
    ]


@click.command("fairness")
@MODEL
@SIM
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the random sets.")
@click.option("--sets", type=click.IntRange(1, _MOST_SETS), help=f"Random sets. Default: {_SETS} where none is given.")
@click.option("--small", is_flag=True, help="Random sets with bursts of 0.5 to 3 ms, against time-slicing.")
@click.option("--long", is_flag=True, help="Random sets with kernels of 3 to 50 ms; only reported.")
@click.option(
    "--tasks",
    "given",
    multiple=True,
    callback=_given,
    metavar="SET",
    help=f"A set of tasks, each {GRAMMAR}; may be given again.",
)
@click.option("--table", "fixed", is_flag=True, help="The fixed sets of the documentation.")
@click.option(
    "--training",
    "with_training",
    is_flag=True,
    help="Training beside a busy task (real cards, PyTorch).",
)
@click.option("--seconds", type=Seconds(0.2, 60), default=5.0, show_default=True, help="Length of a measured window.")
@click.option("--warm-up", type=Seconds(0, 60), default=1.5, show_default=True, help="Seconds before it.")
@click.option(
    "--kernel",
    type=Finite(*KERNEL_BOUNDS),
    default=KERNEL_MS,
    show_default=True,
    help="Milliseconds of a kernel, in given and fixed sets.",
)
@JSON
@HTML
@click.option("-v", "--verbose", is_flag=True, help="Show all sets, not only the worst ones.")
def fairness_command(
    model_spec: str | None,
    sim_spec: str | None,
    seed: int,
    sets: int | None,
    small: bool,
    long: bool,
    given: tuple[str, ...],
    fixed: bool,
    with_training: bool,
    seconds: float,
    warm_up: float,
    kernel: float,
    json_path: Path | None,
    html_path: Path | None,
    verbose: bool,
) -> None:
    """What tasks that compute and think get of a card, against what is attainable.

    \b
    nvshare bench fairness --model H200 --sets 200      computed, in a minute
    nvshare bench fairness --sim H200 --sets 3          simulated, real processes
    nvshare bench fairness --table                      this machine's first GPU
    nvshare bench fairness --model H200 --tasks "5+5 40+10@..60"

    A task 40+10@20..60 uses the card for 40 ms, then its host thinks for 10 ms, again and again. It has at least 20 %
    and at most 60 % of the card's time. Attainable is what an ideal scheduler without any cost of switching delivers.

    Exit code 1 when a set gets less than is promised. In the model and simulated: each task 0.88 of attainable in 95 %
    of sets and 0.80 in all, sums 0.87 in all and 0.95 in the median. On a real card: each task 0.85, sums 0.96 of
    time-slicing, more than natively for whoever has less than fair there, caps within 3 points, and within 5 points of
    the model. With --small: each task 0.90 of its share natively.
    """
    if model_spec and sim_spec:
        fail("--model and --sim do not go together: choose one", 2)
    if small and long:
        fail("--small and --long do not go together: choose one", 2)
    require_apart({"--json": json_path, "--html": html_path})
    if with_training and (model_spec or sim_spec):
        fail("--training needs a real card: leave out --model and --sim", 2)
    kind = SMALL if small else LONG if long else RANDOM
    count = sets or (0 if given or fixed or with_training else _SETS)
    plan = _Plan(_chosen_sets(given, fixed, count, seed, kind, kernel), with_training, seconds, warm_up)
    about = {"seed": seed, "seconds": seconds, "warm_up": warm_up, "kernel_ms": kernel}
    result = _Result(about, {}, json_path)
    with plain_errors("H200"):
        if model_spec:
            _in_model(model_spec, plan, result)
        else:
            try:
                _live(sim_spec, plan, result)
            except WorkerFailed as error:
                fail(str(error), 1)
    ordered = result.ordered()
    written = write("fairness", result.source, result.content(complete=True), json_path, html_path)
    click.echo(f"nvshare bench fairness on {result.title}\n\n{summary_text(ordered, on_card=result.on_card)}\n")
    click.echo(sets_text(ordered, verbose or bool(given) or fixed or with_training))
    if result.source != "gpu":
        click.echo(simulated_note("modelled" if model_spec else result.source))
    say(written)
    sys.exit(0 if all(promise.ok for promise in promises(ordered, on_card=result.on_card)) else 1)
