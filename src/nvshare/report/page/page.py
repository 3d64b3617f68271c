"""A page is one HTML file with everything in it. It loads nothing, and its policy forbids it to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from nvshare import __version__
from nvshare.bench.columns import BAD, GOOD
from nvshare.report.page.compare import Comparison
from nvshare.report.page.kinds import Result
from nvshare.report.page.parts import Section, Tile
from nvshare.report.page.svg import asset
from nvshare.report.tables import Table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_NUMBER = re.compile(r"^[+-]?\d[\d.,]*( ?(%|s|B|[KMGT]iB|GB/s|it/s|×))?$|^–?$")
_SOURCES = {
    "model": "modelled: the real scheduler core, cards and time computed",
    "simulated": "simulated: real processes on simulated cards",
    "gpu": "measured on real cards",
    "kubernetes": "on a Kubernetes cluster",
    "logs": "told from logs",
}
_VERDICTS = {GOOD: "good", BAD: "bad", "better": "good", "worse": "bad"}


def result_page(result: Result) -> str:
    """The page of one result."""
    content = result.content
    tiles = result.kind.view.tiles(content)
    sections = list(result.kind.view.sections(content))
    findings = content.get("findings")
    if isinstance(findings, list) and findings:
        sections.append(Section("Findings", lines=findings))
    about = f'{_verdict(result, tiles)}{_source(result.source)}<span class="about">{escape(_about(result))}</span>'
    return _document(
        f"{result.kind.command}: {result.title}", result.kind.command, result.title, about, tiles, sections
    )


def _verdict(result: Result, tiles: Sequence[Tile]) -> str:
    if not result.kind.judges(result.content):
        return ""
    passed = not any(tile.bad for tile in tiles)
    return _badge("passed" if passed else "not as promised", "good" if passed else "bad")


def comparison_page(comparison: Comparison) -> str:
    """The page of two results of one kind."""
    before, after = comparison.before, comparison.after
    about = _source(after.source) if before.source == after.source else _source(before.source) + _source(after.source)
    names = f"{comparison.names[0]} → {comparison.names[1]}"
    about += f'<span class="about">{escape(names)}</span>'
    title = before.title if before.title == after.title else f"{before.title} → {after.title}"
    command = f"nvshare report, {before.kind.command}"
    return _document(f"{command}: {title}", command, title, about, comparison.tiles(), comparison.sections())


def _document(
    name: str, command: str, title: str, about: str, tiles: Sequence[Tile], sections: Iterable[Section]
) -> str:
    style, script = asset("page.css"), asset("page.js")
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{escape(name)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n",
            f'<header><p class="command">{escape(command)}</p><h1>{escape(title)}</h1><div>{about}</div></header>\n',
            f'<dl class="tiles">{"".join(map(_tile, tiles))}</dl>\n',
            "\n".join(map(_section, sections)),
            f"<footer>nvshare {escape(__version__)}</footer>\n</main>\n",
            f'<div id="tip" role="status"></div>\n<script>\n{script}</script>\n</body>\n</html>\n',
        )
    )


def _about(result: Result) -> str:
    content = result.content
    versions = content.get("versions")
    told = ["cut short"] if content.get("complete") is False else []
    told += [str(content["date"])] if isinstance(content.get("date"), str) else []
    if isinstance(versions, dict):
        told += [f"{name} {version}" for name, version in versions.items()]
    machine = content.get("machine")
    if isinstance(machine, dict):
        told += [f"{name} {machine[name]}" for name in ("driver", "cuda") if isinstance(machine.get(name), str)]
    speed = content.get("speed")
    if result.source == "simulated" and isinstance(speed, int | float) and speed != 1:
        told.append(f"{speed:g} times as fast as life")
    return ", ".join(told)


def _source(source: str) -> str:
    return _badge(_SOURCES.get(source, source), "good" if source == "gpu" else "")


def _badge(words: str, looks: str) -> str:
    return f'<span class="badge {looks}">{escape(words)}</span>'


def _tile(tile: Tile) -> str:
    note = f'<div class="note">{escape(tile.note)}</div>' if tile.note else ""
    looks = "tile bad" if tile.bad else "tile"
    return (
        f'<div class="{looks}"><dt>{escape(tile.label)}</dt>'
        f'<dd><div class="figure">{escape(tile.value)}</div>{note}</dd></div>'
    )


def _section(section: Section) -> str:
    lead = f"<p>{escape(section.lead)}</p>" if section.lead else ""
    marks = "".join(f'<li><i class="{escape(mark)}"></i>{escape(words)}</li>' for mark, words in section.legend)
    legend = f'<ul class="legend">{marks}</ul>' if marks else ""
    chart = f'<div class="plot">{section.chart}</div>' if section.chart else ""
    table = _table(section.table) if section.table is not None else ""
    said = "".join(f"<li>{escape(str(line))}</li>" for line in section.lines)
    lines = f"<ul>{said}</ul>" if said else ""
    return f"<section><h2>{escape(section.title)}</h2>{lead}{legend}{chart}{table}{lines}</section>"


def _table(table: Table) -> str:
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.headings)
    numbers = [bool(column) and all(map(_NUMBER.match, column)) for column in columns]
    heads = "".join(map(_heading, table.headings, numbers))
    body = "".join("<tr>" + "".join(map(_cell, row, numbers)) + "</tr>" for row in table.rows)
    return f'<div class="rows"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _heading(words: str, right: bool) -> str:
    return f'<th class="number">{escape(words)}</th>' if right else f"<th>{escape(words)}</th>"


def _cell(words: str, right: bool) -> str:
    if words in _VERDICTS:
        return f'<td class="{_VERDICTS[words]}"><span>{escape(words)}</span></td>'
    return f'<td class="number">{escape(words)}</td>' if right else f"<td>{escape(words)}</td>"
