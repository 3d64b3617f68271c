"""``nvshare demo``: see it work in under a minute, on the real GPU or a simulated one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from nvshare import procfs
from nvshare.bench import demo, venues
from nvshare.bench.outcome import Progress
from nvshare.bench.processes import ProcessBackend, Venue
from nvshare.bench.workloads.spec import WORKLOADS
from nvshare.cli.node_options import plain_errors
from nvshare.cli.options import PlainCommand
from nvshare.cli.results import HTML, JSON, require_apart, say, telling, write
from nvshare.gpu.cards import NoCards
from nvshare.report.text import RULE, summary_table, task_report

_NODE = "2xT4"
_SPEED = 1.0  # as fast as life: slices are milliseconds of the host's own time, whose hiccups count as often
_SCENE_WALL_SECONDS = 4.0


@contextlib.contextmanager
def _venue() -> Iterator[Venue]:
    """The real GPU if there is one, else a simulated node of our own."""
    with contextlib.ExitStack() as stack:
        try:
            venue = stack.enter_context(venues.real())
        except NoCards:
            venue = stack.enter_context(venues.simulated(_NODE, _SPEED, "demo"))
        yield venue


def _speed_of(venue: Venue, backend: ProcessBackend) -> float:
    """Adds per second: known of a simulated card, measured on a real one."""
    if venue.profile is not None:
        return 1 / venue.profile.kernel_seconds(WORKLOADS["add-small"].kernel_bytes)
    return demo.calibrate(backend)


def _introduce(venue: Venue, tell: Callable[[str], None]) -> None:
    tell(f"nvshare demo on {venue.title}")
    if venue.profile is not None:
        tell(
            "This machine has no NVIDIA GPU: the cards are simulated, as fast as real ones. The programs, the library "
            "and the scheduler are real."
        )
    tell("")


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@JSON
@HTML
def command(json_path: Path | None, html_path: Path | None) -> None:
    """See nvshare work: one task alone, two at once, several mostly idle ones, and a memory quota.

    \b
    nvshare demo
    nvshare demo --json demo.json

    Uses the real GPU if there is one, else a simulated node that is gone afterwards. Exit code 1 when a task failed.
    """
    require_apart({"--json": json_path, "--html": html_path})
    console = Console(stderr=True)
    tell = telling(json_path, html_path)
    played = []
    before = procfs.processor_time()
    with plain_errors(), _venue() as venue:
        _introduce(venue, tell)
        backend = ProcessBackend(venue)
        with console.status("starting") as status:
            chosen = demo.scenes(_speed_of(venue, backend), _SCENE_WALL_SECONDS * venue.speed)
            for scene, row in demo.play(backend, chosen, lambda title: _follow(status, title)):
                status.stop()  # while it lives it takes standard output for itself
                tell(f"{row.test}. {scene.title} ({row.source})\n{task_report(row.details)}\n")
                status.start()
                played.append((scene, row))
    rows = [row for _, row in played]
    sentences = [scene.sentence(row) if row.passed else f"FAILED: {scene.title}." for scene, row in played]
    note = demo.busy_note(before, procfs.processor_time()) if venue.source == "simulated" else None
    sentences += [note] if note else []
    content = {
        "node": venue.title,
        "speed": venue.speed,
        "rows": [row.to_dict() for row in rows],
        "findings": sentences,
    }
    written = write("demo", venue.source, content, json_path, html_path)
    say([f"{RULE}\n{summary_table(rows)}\n{RULE}", *sentences, *written])
    for row in rows:
        if not row.passed:
            click.echo("\n".join(row.messages), err=True)
    sys.exit(0 if all(row.passed for row in rows) else 1)


def _follow(status: Status, title: str) -> Progress:
    status.update(title)
    return lambda part: status.update(f"{title}: {100 * part:.0f} %")
