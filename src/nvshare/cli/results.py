"""What measurements leave behind: JSON for machines, a page for people. The same for every command that measures."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from nvshare.cli.options import fail
from nvshare.lab.report_page.kinds import NotAResult, recognised, stamped
from nvshare.lab.report_page.page import result_page
from nvshare.lab.report_page.written import as_json

_SIMULATED = {"model": True, "simulated": True, "gpu": False}  # of other sources nobody knows
JSON = click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file."
)
HTML = click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page with pictures to this file.",
)


def require_writable(
    json_path: Path | None, html_path: Path | None, svg_path: Path | None = None, reads: Sequence[Path] = ()
) -> None:
    """End at once, and not after minutes of work, when a result cannot be written; what is there stays until then.
    ``reads``: files that the command needs as they are."""
    taken = [path.resolve() for path in reads]
    for option, path in (("--json", json_path), ("--html", html_path), ("--svg", svg_path)):
        if path is None:
            continue
        if path.resolve() in taken:
            fail(f"{option} {path}: that file is used already: name another", 2)
        taken.append(path.resolve())
        try:
            there = path.exists()
            with path.open("a"):
                pass
            if not there:
                path.unlink()
        except OSError as error:
            fail(f"{option} {path}: cannot be written ({error.strerror})", 2)


def replace_file(option: str, path: Path, text: str) -> None:
    """Whole or not at all: who is interrupted keeps what was written before."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8", errors="replace")
        aside.replace(path)
    except OSError as error:
        fail(f"{option} {path}: cannot be written ({error.strerror})", 1)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, kind: str, source: str, content: Mapping[str, Any]) -> None:
    """``source``: model, simulated or gpu; kubernetes or logs, whose cards may be either."""
    replace_file("--json", path, as_json(_whole(kind, source, content)) + "\n")


def write(kind: str, source: str, content: Mapping[str, Any], json_path: Path | None, html_path: Path | None) -> None:
    """Both, where asked for, and say so."""
    if json_path is not None:
        write_json(json_path, kind, source, content)
        click.echo(f"rows written to {json_path}")
    if html_path is not None:
        try:
            page = result_page(recognised(_plain(_whole(kind, source, content))))
        except NotAResult as error:
            fail(f"--html {html_path}: there is nothing to draw: {error}", 1)
        replace_file("--html", html_path, page)
        click.echo(f"page written to {html_path}")


def _whole(kind: str, source: str, content: Mapping[str, Any]) -> dict[str, Any]:
    stamp = {"date": time.strftime("%Y-%m-%d"), "simulated": _SIMULATED.get(source), "source": source}
    return stamped(kind, {**stamp, **content})


def _plain(value: Any) -> Any:
    """As it comes back from a file."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
