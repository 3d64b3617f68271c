"""``nvshare verify``: the acceptance of a node; ``nvshare verify concurrency``: the same question asked of logs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from nvshare import config
from nvshare.acceptance.exit_code import NOTHING_CHECKED, exit_code, passed
from nvshare.acceptance.finding import Finding
from nvshare.acceptance.runner import Check
from nvshare.acceptance.verify.compare import compare as compared
from nvshare.acceptance.verify.ground import Ground
from nvshare.acceptance.verify.run import CARD_MEMORY, CHECKS, SECONDS, SMALLEST_CARD, verify
from nvshare.bench import venues
from nvshare.bench.compute.rows import Row
from nvshare.bench.processes import Venue
from nvshare.cli import concurrency
from nvshare.cli.node_options import node_spec, plain_errors
from nvshare.cli.options import SIZE, PlainGroup, Seconds, fail, only
from nvshare.cli.results import HTML, JSON, require_apart, say, write
from nvshare.client.connection import SchedulerError
from nvshare.gpu.profiles import parse_node
from nvshare.gpu.sim import SimError
from nvshare.report.compute import compute_table, simulated_note
from nvshare.report.findings import finding_line, findings_table, summary, timelines

_WIDTH = 140  # columns, where there is no terminal to ask
_PROCESSES = 5  # that check at the same time on one card, each with its context


@contextlib.contextmanager
def _set_up() -> Iterator[None]:
    """A node that cannot be checked is not a failed check: exit code 2."""
    try:
        yield
    except (SchedulerError, SimError) as error:
        fail(str(error), 2)


@click.group(cls=PlainGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--sim", "spec", callback=node_spec, metavar="NODE", help="On a simulated node of its own, e.g. 2xT4.")
@only("check", CHECKS)
@click.option(
    "--card-memory", type=SIZE, default=str(CARD_MEMORY), show_default="4GiB", help="Of each card, for all tasks."
)
@click.option("--seconds", type=Seconds(1, 60), default=SECONDS, show_default=True, help="How long tasks are watched.")
@click.option("--compare", is_flag=True, help="Also: two busy tasks natively, under nvshare and under MPS.")
@JSON
@HTML
@click.pass_context
def command(
    ctx: click.Context,
    spec: str | None,
    checks: tuple[str, ...],
    card_memory: int,
    seconds: float,
    compare: bool,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Does sharing work here? Each promise, with what was expected and seen.

    \b
    nvshare verify --sim 2xT4                      on simulated cards
    nvshare verify --compare --html verify.html    on those of this machine
    nvshare verify --only parallel,survivor
    nvshare verify concurrency scheduler.log       from logs

    A scheduler that declares --card-memory of each card is started for it; the rest of the card is not touched. Exit
    code: 0 passed, 1 failed, 2 usage or set-up, or nothing could be checked.
    """
    if ctx.invoked_subcommand is not None:
        return
    require_apart({"--json": json_path, "--html": html_path})
    _require_room(spec, card_memory)
    findings: list[Finding] = []
    rows: list[Row] = []
    began = time.monotonic()
    with (
        plain_errors(modelled=False),
        _set_up(),
        venues.chosen(spec, "verify", card_memory) as venue,
        _progress() as (begun, found),
    ):
        click.echo(f"nvshare verify on {venue.title}: {config.format_size(card_memory)} of each card", err=True)
        for finding in verify(venue, card_memory, checks, seconds, begun):
            findings.append(finding)
            found(finding)
        if compare:
            rows = list(compared(venue, Ground(venue, card_memory, seconds, False).small, 2 * seconds))
    took = time.monotonic() - began
    content = _content(venue, spec, card_memory, seconds, findings, rows)
    written = write("verify", venue.source, content, json_path, html_path)
    _show(findings, rows, venue, took)
    say(written)
    code = exit_code(findings)
    if code == NOTHING_CHECKED:
        fail("nothing could be checked here, so that nothing has passed: see what was seen instead", code)
    sys.exit(code)


command.add_command(concurrency.command)


def _require_room(spec: str | None, card_memory: int) -> None:
    if card_memory < SMALLEST_CARD:
        fail(f"--card-memory: {config.format_size(SMALLEST_CARD)} or more, or nothing can be told apart", 2)
    if spec is None:
        return
    _, profile = parse_node(spec)
    room = profile.memory_bytes - _PROCESSES * profile.context_bytes
    if card_memory > room:
        fail(f"--card-memory: {profile.name} has room for {config.format_size(room)} beside the tasks' contexts", 2)


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Callable[[Check[Ground]], None], Callable[[Finding], None]]]:
    """Show checks that begin, and findings: a spinner on a terminal, a line per finding everywhere."""
    console = Console(stderr=True)
    with console.status("starting") as spinner:
        yield (
            lambda check: spinner.update(f"{check.title} …"),
            lambda finding: console.print(finding_line(finding), markup=False, highlight=False, soft_wrap=True),
        )


def _show(findings: list[Finding], rows: list[Row], venue: Venue, seconds: float) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(findings_table(findings))
    for line in timelines(findings):
        click.echo(line)
    if rows:
        click.echo(f"\n{compute_table(rows)}")
    click.echo(f"\n{summary(findings)} on {venue.title} in {seconds:.0f} s")
    if venue.source != "gpu":
        click.echo(simulated_note(venue.source))


def _content(
    venue: Venue, spec: str | None, card_memory: int, seconds: float, findings: list[Finding], rows: list[Row]
) -> dict[str, Any]:
    return {
        "machine": {"node": venue.title},
        "node": venue.title,
        "spec": spec,
        "card_memory": card_memory,
        "seconds": seconds,
        "passed": passed(findings),
        "rows": [finding.to_dict() for finding in findings],
        "compare": [row.to_dict() for row in rows],
    }
