"""``nvshare verify concurrency``: did tasks run in parallel or in turns, told from logs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from nvshare.cli.options import OneLineCommand, ResultFile, fail
from nvshare.cli.results import replace_file
from nvshare.lab.concurrency import lines, picture
from nvshare.lab.concurrency.story import Story, Unreadable, tell
from nvshare.lab.concurrency.verdict import MIXED, PARALLEL, SERIAL, Verdict, evidence, judge
from nvshare.lab.report_page.written import as_json

KIND, VERSION = "concurrency", 1  # of the JSON
_WIDTH = 80
_STANDARD_INPUT = "-"


@click.command("concurrency", cls=OneLineCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--expect", type=click.Choice((PARALLEL, SERIAL, MIXED)), help="Exit code 1 when it is not this.")
@click.option("--json", "json_path", type=ResultFile(), help="Verdict, evidence and timeline.")
@click.option("--svg", "svg_path", type=ResultFile(), help="The timeline as a picture.")
def command(logs: tuple[str, ...], expect: str | None, json_path: Path | None, svg_path: Path | None) -> None:
    """Did tasks run in parallel, in turns, or both? Give the logs of one run, of its scheduler, its tasks or both; -
    reads from a pipe.

    \b
    nvshare verify concurrency scheduler.log
    nvshare verify concurrency scheduler.log task-1.log task-2.log --svg timeline.svg
    kubectl logs -n nvshare-system -l name=nvshare-scheduler --timestamps --tail=-1 |
        nvshare verify concurrency --expect parallel -

    Exit code: 0 told, 1 not as expected, 2 nothing can be told from these logs.
    """
    for option, path in (("--json", json_path), ("--svg", svg_path)):
        if path is not None and path.resolve() in [Path(name).resolve() for name in logs]:
            fail(f"{option} {path}: that is one of the logs: name another file", 2)
    try:
        story = tell([lines.read(name, _text(name)) for name in dict.fromkeys(logs)])
        verdict = judge(story)
    except Unreadable as error:
        fail(str(error), 2)
    _show(story, verdict)
    if json_path is not None:
        replace_file("--json", json_path, as_json(_content(story, verdict)) + "\n")
    if svg_path is not None:
        replace_file("--svg", svg_path, picture.svg(story, f"nvshare: {verdict.word}") + "\n")
    if expect is not None and expect != verdict.word:
        click.echo(f"expected {expect}, seen {verdict.word}")
        sys.exit(1)


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == _STANDARD_INPUT else Path(name).read_bytes()
    except OSError as error:
        raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
    if not data.strip():
        raise Unreadable(f"{name} is empty")
    return data.decode(errors="replace")


def _show(story: Story, verdict: Verdict) -> None:
    for line in (*picture.text(story, _WIDTH), "", *evidence(verdict)):
        click.echo(line)
    for note in story.notes:
        click.echo(f"note: {note}")
    click.echo(f"Verdict: {verdict.word}")


def _content(story: Story, verdict: Verdict) -> dict[str, Any]:
    def pairs(spans: Any) -> list[list[float]]:
        return [[round(span.begin, 3), round(span.end, 3)] for span in spans]

    timeline = [
        {
            "card": row.card,
            "task": row.task,
            "on": pairs(row.on),
            "waited": pairs(row.waited),
            "progress": pairs(row.progress),
        }
        for row in picture.rows(story)
    ]
    return {
        "kind": KIND,
        "version": VERSION,
        **verdict.to_dict(),
        "evidence": evidence(verdict),
        "notes": story.notes,
        "timeline": timeline,
    }
