"""``nvshare verify concurrency``: did tasks run in parallel or in turns, told from logs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nvshare.acceptance.concurrency import lines
from nvshare.acceptance.concurrency.sharing import MIXED, PARALLEL, SERIAL, judge
from nvshare.acceptance.concurrency.story import Unreadable, tell
from nvshare.acceptance.exit_code import FAILED
from nvshare.cli.options import PlainCommand, ResultFile, fail
from nvshare.cli.results import HTML, JSON, replace_file, require_apart, say, write
from nvshare.report import concurrency as report

KIND, SOURCE = "concurrency", "logs"
_STANDARD_INPUT = "-"


@click.command("concurrency", cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--expect", type=click.Choice((PARALLEL, SERIAL, MIXED)), help="Exit code 1 when it is not this.")
@JSON
@HTML
@click.option("--svg", "svg_path", type=ResultFile(), help="The timeline as a picture.")
def command(
    logs: tuple[str, ...], expect: str | None, json_path: Path | None, html_path: Path | None, svg_path: Path | None
) -> None:
    """Did tasks run in parallel, in turns, or both? Give the logs of one run, of its scheduler, its tasks or both; -
    reads from a pipe.

    \b
    nvshare verify concurrency scheduler.log
    nvshare verify concurrency scheduler.log task-*.log --html timeline.html
    kubectl logs -n nvshare-system -l name=nvshare-scheduler \\
        --timestamps --tail=-1 | nvshare verify concurrency --expect parallel -

    Exit code: 0 told, 1 not as expected, 2 nothing can be told from these logs.
    """
    require_apart({"--json": json_path, "--html": html_path, "--svg": svg_path}, reads=map(Path, logs))
    try:
        story = tell([lines.read(name, _text(name)) for name in dict.fromkeys(logs)])
        sharing = judge(story)
    except Unreadable as error:
        fail(str(error), 2)
    written = write(KIND, SOURCE, report.content(story, sharing, expect), json_path, html_path)
    if svg_path is not None:
        replace_file("--svg", svg_path, report.picture(story, sharing) + "\n")
    say([*report.text(story, sharing), *written])
    if expect not in (None, sharing.word):
        click.echo(f"expected {expect}, seen {sharing.word}")
        sys.exit(FAILED)


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == _STANDARD_INPUT else Path(name).read_bytes()
    except OSError as error:
        raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
    if not data.strip():
        raise Unreadable(f"{name} is empty")
    return data.decode(errors="replace")
