"""What commands that measure write: JSON for machines, a page for people."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from nvshare.bench.machine import conditions
from nvshare.cli.options import ResultFile, fail, give_up_output
from nvshare.report.page.kinds import NotAResult, recognised, stamped
from nvshare.report.page.page import result_page
from nvshare.report.page.written import as_json

JSON = click.option("--json", "json_path", type=ResultFile(), help="Write the rows to this file.")
HTML = click.option("--html", "html_path", type=ResultFile(), help="Write a page with pictures to this file.")


def require_apart(writes: Mapping[str, Path | None], reads: Iterable[Path] = ()) -> None:
    """Fail when two options name the same file, or one that the command reads."""
    taken = {path.resolve() for path in reads}
    for option, path in writes.items():
        if path is not None and path.resolve() in taken:
            fail(f"{option}: {path} is used already: name another file", 2)
        if path is not None:
            taken.add(path.resolve())


def replace_file(option: str, path: Path, text: str) -> None:
    """Write a file whole or not at all: an interrupted command leaves the old file as it was. A pipe or a device is
    written to, not replaced, and a link stays a link."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", errors="replace")
        else:
            _replace(path.resolve(), text)
    except OSError as error:
        fail(f"{option}: {path} cannot be written ({error.strerror})", 1)


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8", errors="replace")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, kind: str, source: str, content: Mapping[str, Any]) -> None:
    """``source``: model, simulated or gpu; kubernetes or logs, whose cards may be either."""
    replace_file("--json", path, as_json(_whole(kind, source, content)) + "\n")


def write(
    kind: str, source: str, content: Mapping[str, Any], json_path: Path | None, html_path: Path | None
) -> list[str]:
    """Write JSON and page where asked for; returns lines that say so. Commands write before they print, so that a
    reader who closes the pipe early does not lose the result."""
    told = []
    whole = _whole(kind, source, content)
    if json_path is not None:
        replace_file("--json", json_path, as_json(whole) + "\n")
        told.append(f"rows written to {json_path}")
    if html_path is not None:
        try:
            page = result_page(recognised(_plain(whole)))
        except NotAResult as error:
            fail(f"--html: {html_path} is not written, there is nothing to draw: {error}", 1)
        replace_file("--html", html_path, page)
        told.append(f"page written to {html_path}")
    return told


def telling(*paths: Path | None) -> Callable[[str], None]:
    """A function that prints while the command goes on measuring. When nobody reads any more, as after ``| head -1``, a
    command that writes a file goes on silently; one that does not ends."""

    def tell(text: str) -> None:
        try:
            click.echo(text)
        except BrokenPipeError:
            if all(path is None for path in paths):
                raise
            give_up_output()

    return tell


def say(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _whole(kind: str, source: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return stamped(kind, conditions(source, content))


def _plain(value: Any) -> Any:
    """A value as it comes back from a JSON file."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
