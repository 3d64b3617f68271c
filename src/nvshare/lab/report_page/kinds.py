"""The kinds of results there are: how each is recognised, shown and compared. A new one is one more entry here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nvshare.lab.report_page import checks, compute, concurrency, kube, mission, moves, shapes
from nvshare.lab.report_page.parts import Content, Figure, Section, Tile


@dataclass(frozen=True)
class Kind:
    """``version`` of the layout: another one is not read. ``title`` says what was measured, ``judges`` whether a result
    passes or fails at all."""

    command: str
    shape: Mapping[str, Any]
    title: Callable[[Content], str]
    tiles: Callable[[Content], list[Tile]]
    sections: Callable[[Content], Iterable[Section]]
    figures: Callable[[Content], Iterable[Figure]]
    judges: Callable[[Content], bool] = lambda content: True
    version: int = 1


KINDS: dict[str, Kind] = {
    "mission": Kind(
        "nvshare bench mission", mission.SHAPE, mission.title, mission.tiles, mission.sections, mission.figures
    ),
    "demo": Kind("nvshare demo", mission.SHAPE, mission.title, mission.tiles, mission.sections, mission.figures),
    "swap": Kind(
        "nvshare bench swap", moves.SWAP, moves.title, moves.swap_tiles, moves.swap_sections, moves.swap_figures
    ),
    "eviction": Kind(
        "nvshare bench eviction",
        moves.EVICTION,
        moves.title,
        moves.eviction_tiles,
        moves.eviction_sections,
        moves.eviction_figures,
    ),
    "compute": Kind(
        "nvshare bench compute", compute.SHAPE, compute.title, compute.tiles, compute.sections, compute.figures
    ),
    "stress": Kind(
        "nvshare stress",
        checks.STRESS,
        checks.stress_title,
        checks.stress_tiles,
        checks.stress_sections,
        checks.stress_figures,
    ),
    "verify": Kind(
        "nvshare verify",
        checks.VERIFY,
        checks.verify_title,
        checks.verify_tiles,
        checks.verify_sections,
        checks.verify_figures,
    ),
    "concurrency": Kind(
        "nvshare verify concurrency",
        concurrency.SHAPE,
        concurrency.title,
        concurrency.tiles,
        concurrency.sections,
        concurrency.figures,
        concurrency.judges,
    ),
    "kube-test": Kind(
        "nvshare kube-test",
        kube.SHAPE,
        kube.title,
        kube.tiles,
        kube.sections,
        kube.figures,
    ),
}


class NotAResult(Exception):
    """The text says in one line what is wrong with it."""


@dataclass(frozen=True)
class Result:
    kind: Kind
    content: Content

    @property
    def source(self) -> str:
        """model, simulated or gpu; kubernetes or logs, whose cards may be either."""
        return str(self.content["source"])

    @property
    def title(self) -> str:
        return self.kind.title(self.content)


def stamped(kind: str, content: Content) -> dict[str, Any]:
    """A result as it is written: with what it is."""
    return {"kind": kind, "version": KINDS[kind].version, **content}


def recognised(content: Content) -> Result:
    """A result of ours, or ``NotAResult``."""
    if not isinstance(content, Mapping) or not isinstance(content.get("kind"), str):
        raise NotAResult("it is not a result of nvshare: it does not say of which kind it is")
    kind = KINDS.get(content["kind"])
    if kind is None:
        raise NotAResult(f"{content['kind']!r} is no kind of result: known are {', '.join(KINDS)}")
    if content.get("version") != kind.version:
        raise NotAResult(
            f"it has version {content.get('version')!r} of {kind.command}, this nvshare reads version {kind.version}: "
            "use the release that wrote it"
        )
    wrong = shapes.problem(content, kind.shape)
    if wrong is not None:
        raise NotAResult(f"it is no result of {kind.command}: {' '.join(wrong.split())}")
    if "rows" in kind.shape and not content["rows"]:
        raise NotAResult(f"it has no rows: that run of {kind.command} measured nothing")
    return Result(kind, content)


def parsed(text: str) -> Result:
    """From a file's text; ``NotAResult`` when it is none of ours."""
    if not text.strip():
        raise NotAResult("it is empty")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise NotAResult(f"it is not JSON, or was cut off ({error})") from None
    except RecursionError:
        raise NotAResult("it is not a result of nvshare: it is nested too deeply") from None
    return recognised(content)
