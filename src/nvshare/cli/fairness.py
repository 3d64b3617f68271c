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
from nvshare.cli.node_options import MODEL, SIM, plain_errors
from nvshare.cli.options import Finite, Seconds, fail
from nvshare.cli.results import HTML, JSON, require_apart, say, write
from nvshare.gpu.profiles import parse_node
from nvshare.model.fairness import Job, measured_row
from nvshare.report.compute import simulated_note
from nvshare.report.fairness import row_line, sets_text, summary_text

_SETS = 10  # where nothing else is asked for
_MOST_SETS = 10_000
_GIVEN = "given"


@dataclass(frozen=True)
class _Plan:
    """What to measure. Each set with the part that its row belongs to."""

    sets: Sequence[tuple[str, Tasks]]
    seconds: float
    warm_up: float

    @property
    def length(self) -> float:
        """Seconds that one set takes in one way."""
        return self.seconds + self.warm_up


Found = Callable[[int, Row], None]  # hears of each row, with its place


def _measure_in_model(spec: str, plan: _Plan, found: Found) -> str:
    _, profile = parse_node(spec)
    jobs = [Job(part, tasks, profile.name, plan.seconds, plan.warm_up) for part, tasks in plan.sets]
    with contextlib.closing(spread(measured_row, jobs)) as results:
        for place, row in results:
            found(place, row)
    return f"1 x {profile.name} (model)"


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
    given: Sequence[str], fixed: bool, count: int | None, seed: int, kind: str, kernel: float
) -> list[tuple[str, Tasks]]:
    """Those that were given, the fixed ones, and random ones; random ones alone where nothing was asked for."""
    if count is None:
        count = 0 if given or fixed else _SETS
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

    Exit code 1 when a set gets less than is promised: each task 0.88 of attainable in 95 % of sets and 0.80 in all,
    sums 0.87 in all and 0.95 in the median; with --small each task 0.90 of its share natively.
    """
    if model_spec and sim_spec:
        fail("--model and --sim do not go together: choose one", 2)
    if small and long:
        fail("--small and --long do not go together: choose one", 2)
    require_apart({"--json": json_path, "--html": html_path})
    kind = SMALL if small else LONG if long else RANDOM
    plan = _Plan(_chosen_sets(given, fixed, sets, seed, kind, kernel), seconds, warm_up)
    about = {"seed": seed, "seconds": seconds, "warm_up": warm_up, "kernel_ms": kernel}
    rows: dict[int, Row] = {}
    with plain_errors("H200"):
        title, source = _run(model_spec, sim_spec, plan, about, rows, json_path)
    ordered = [rows[place] for place in sorted(rows)]
    content = _content(title, about, ordered, complete=True)
    written = write("fairness", source, content, json_path, html_path)
    click.echo(f"nvshare bench fairness on {title}\n\n{summary_text(ordered)}\n")
    click.echo(sets_text(ordered, verbose or bool(given) or fixed))
    if source != "gpu":
        click.echo(simulated_note({"model": "modelled"}.get(source, source)))
    say(written)
    sys.exit(0 if all(promise.ok for promise in promises(ordered)) else 1)


def _run(
    model_spec: str | None,
    sim_spec: str | None,
    plan: _Plan,
    about: dict[str, Any],
    rows: dict[int, Row],
    json_path: Path | None,
) -> tuple[str, str]:
    """Fills ``rows`` by place; the title of the node, and its source."""
    with _progress(len(plan.sets)) as told:

        def found(place: int, row: Row) -> None:
            rows[place] = row
            told(row)

        if not model_spec:
            fail("only --model is there yet", 2)
        try:
            return _measure_in_model(model_spec, plan, found), "model"
        except HelperEnded as error:
            fail(str(error), 1)


def _content(title: str, about: dict[str, Any], rows: Sequence[Row], complete: bool) -> dict[str, Any]:
    return {
        "machine": {"node": title},
        **about,
        "complete": complete,
        "summary": asdict(summary(rows)),
        "promises": [asdict(promise) for promise in promises(rows)],
        "rows": [row.to_dict() for row in rows],
    }
