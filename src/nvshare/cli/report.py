"""``nvshare report``: a result as tables and a page; two results side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from nvshare.cli.options import Finite, PlainCommand, fail
from nvshare.cli.results import HTML, replace_file, require_apart
from nvshare.daemon.translate import printable
from nvshare.report.page.compare import Comparison, compared
from nvshare.report.page.kinds import NotAResult, Result, parsed
from nvshare.report.page.page import comparison_page, result_page
from nvshare.report.page.parts import Section, Tile

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("first", metavar="A.json", type=_FILE)
@click.argument("second", metavar="[B.json]", type=_FILE, required=False)
@HTML
@click.option(
    "--noise",
    type=Finite(0, 1000),
    default=5.0,
    show_default=True,
    help="Percent that may be chance, where results do not say it themselves.",
)
def command(first: Path, second: Path | None, html_path: Path | None, noise: float) -> None:
    """Show what a measurement wrote with --json; with two files, what got better or worse.

    \b
    nvshare bench mission --model 2xT4 --json before.json
    nvshare report before.json --html before.html            tables and pictures
    nvshare report before.json after.json --html diff.html   two runs of one kind

    Reads what bench, demo, stress, verify and kube-test write. Exit code 2 when a file is none of those.
    """
    require_apart({"--html": html_path}, reads=filter(None, (first, second)))
    result = _read(first)
    if second is None:
        page, lines = result_page(result), _shown(result)
    else:
        comparison = _compared((first, second), result, _read(second), noise / 100)
        page, lines = comparison_page(comparison), _differences(comparison)
    if html_path is not None:
        replace_file("--html", html_path, page)
    click.echo("\n".join(printable(line) for text in lines for line in text.split("\n")))
    if html_path is not None:
        click.echo(f"\npage written to {html_path}")


def _read(path: Path) -> Result:
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{path}: cannot be read ({error.strerror})", 2)
    except UnicodeDecodeError:
        fail(f"{path}: it is not a result of nvshare: it is not text", 2)
    except NotAResult as error:
        fail(f"{path}: {error}", 2)


def _compared(paths: tuple[Path, Path], before: Result, after: Result, noise: float) -> Comparison:
    one, other = (path.stem for path in paths)
    names = (str(paths[0]), str(paths[1])) if one == other else (one, other)
    try:
        return compared(before, after, noise, names)
    except NotAResult as error:
        fail(str(error), 2)


def _shown(result: Result) -> Iterator[str]:
    yield f"{result.kind.command}: {result.title}"
    yield from map(_tile, result.kind.view.tiles(result.content))
    yield from _told(result.kind.view.sections(result.content))
    findings = result.content.get("findings") or ()
    yield from ("", *map(str, findings)) if findings else ()


def _differences(comparison: Comparison) -> Iterator[str]:
    before, after = comparison.before, comparison.after
    yield f"{before.kind.command}: {before.title}, against {after.title}"
    yield from ("", comparison.table().text(), "", comparison.note())
    yield ", ".join(f"{tile.label}: {tile.value}" for tile in comparison.tiles())


def _tile(tile: Tile) -> str:
    return f"  {tile.label}: {tile.value}" + (f" ({tile.note})" if tile.note else "")


def _told(sections: Iterable[Section]) -> Iterator[str]:
    for section in sections:
        if section.table is not None:
            yield from ("", f"{section.title}:", section.table.text())
        if section.lines:
            yield from ("", f"{section.title}:", *section.lines)
