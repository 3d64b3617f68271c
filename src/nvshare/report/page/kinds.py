"""The kinds of results: how each is recognised, shown and compared. A new kind is one more entry here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nvshare.report.page import compute, concurrency, eviction, fairness, kube, mission, shapes, stress, swap, verify
from nvshare.report.page.parts import Content, Section, Tile
from nvshare.report.tables import Figure


class View(Protocol):
    """A module of this folder: the shape that the JSON of its kind must have, a title, large figures, sections with
    plots and tables, and the figures that two results are compared by."""

    @property
    def SHAPE(self) -> Mapping[str, Any]: ...

    @property
    def title(self) -> Callable[[Content], str]: ...

    @property
    def tiles(self) -> Callable[[Content], list[Tile]]: ...

    @property
    def sections(self) -> Callable[[Content], Iterable[Section]]: ...

    @property
    def figures(self) -> Callable[[Content], Iterable[Figure]]: ...


@dataclass(frozen=True)
class Kind:
    """``judges``: whether a result passes or fails at all. ``version``: of the layout; other versions are not read."""

    command: str
    view: View
    judges: Callable[[Content], bool] = lambda content: True
    version: int = 1


KINDS: dict[str, Kind] = {
    "mission": Kind("nvshare bench mission", mission),
    "demo": Kind("nvshare demo", mission),
    "swap": Kind("nvshare bench swap", swap),
    "eviction": Kind("nvshare bench eviction", eviction),
    "compute": Kind("nvshare bench compute", compute),
    "fairness": Kind("nvshare bench fairness", fairness, lambda content: bool(content["promises"])),
    "stress": Kind("nvshare stress", stress),
    "verify": Kind("nvshare verify", verify),
    "concurrency": Kind("nvshare verify concurrency", concurrency, concurrency.judges),
    "kube-test": Kind("nvshare kube-test", kube),
}


class NotAResult(Exception):
    """This is no result; the text says why, in one line."""


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
        return self.kind.view.title(self.content)


def stamped(kind: str, content: Content) -> dict[str, Any]:
    """A result as it is written, with its kind and version."""
    return {"kind": kind, "version": KINDS[kind].version, **content}


def recognised(content: Content) -> Result:
    """The result that this content is, or ``NotAResult``."""
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
    wrong = shapes.problem(content, kind.view.SHAPE)
    if wrong is not None:
        raise NotAResult(f"it is no result of {kind.command}: {' '.join(wrong.split())}")
    if "rows" in kind.view.SHAPE and not content["rows"]:
        raise NotAResult(f"it has no rows: that run of {kind.command} measured nothing")
    return Result(kind, content)


def parsed(text: str) -> Result:
    """The result that a file's text is, or ``NotAResult``."""
    if not text.strip():
        raise NotAResult("it is empty")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise NotAResult(f"it is not JSON, or was cut off ({error})") from None
    except RecursionError:
        raise NotAResult("it is not a result of nvshare: it is nested too deeply") from None
    return recognised(content)
