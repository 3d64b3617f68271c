"""The shape of JSON that a class is written as, and whether parsed JSON has it; if not, where it differs, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from nvshare.bench.columns import hints

_LARGEST = 1 << 63  # what machines count with
_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}


@dataclass(frozen=True)
class Maybe:
    """May be null, or not there at all."""

    shape: Any


@dataclass(frozen=True)
class Each:
    """An object with any names, all of whose values have this shape."""

    shape: Any


def shape_of(kind: Any) -> Any:
    """What JSON must have of a value of this type; see ``problem``."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return {name: shape_of(hint) for name, hint in hints(kind)}
    if is_typeddict(kind):
        return {name: Maybe(shape_of(hint)) for name, hint in get_type_hints(kind).items()}
    if origin is Annotated:
        return shape_of(inner[0])
    if origin in (Union, UnionType):
        (known,) = (each for each in inner if each is not NoneType)
        return Maybe(shape_of(known))
    if origin is tuple and Ellipsis not in inner:
        return tuple(map(shape_of, inner))
    if origin in (tuple, list, Sequence):
        return [shape_of(inner[0])]
    if origin in (dict, Mapping):
        return dict if inner[1] is Any else Each(shape_of(inner[1]))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return tuple(map(shape_of, get_type_hints(kind).values()))
    return kind


def problem(value: Any, shape: Any, where: str = "") -> str | None:
    """Shapes: ``str``, ``int``, ``float``, ``bool``, ``dict`` (with anything in it); ``[shape]``, a list; ``(a, b)``, a
    list of just these; ``{"field": shape}``, an object with at least these. None: it fits."""
    if isinstance(shape, Maybe):
        return None if value is None else problem(value, shape.shape, where)
    if isinstance(shape, dict | Each):
        if not isinstance(value, dict):
            return f"{where or 'it'} is not an object"
        fields = shape if isinstance(shape, dict) else dict.fromkeys(value, shape.shape)
        found = (_field(value, name, inner, where) for name, inner in fields.items())
        return next(filter(None, found), None)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is not a list"
        found = (problem(entry, shape[0], f"{where}[{place}]") for place, entry in enumerate(value))
        return next(filter(None, found), None)
    if isinstance(shape, tuple):
        if not isinstance(value, list) or len(value) != len(shape):
            return f"{where} is not a list of {len(shape)}"
        found = (
            problem(entry, inner, f"{where}[{place}]")
            for place, (entry, inner) in enumerate(zip(value, shape, strict=True))
        )
        return next(filter(None, found), None)
    return None if _is(value, shape) else f"{where} is not {_NAMES[shape]}"


def _field(value: dict[str, Any], name: str, shape: Any, where: str) -> str | None:
    path = f"{where}.{name}" if where else name
    if name not in value and not isinstance(shape, Maybe):
        return f"{path} is missing"
    return problem(value.get(name), shape, path)


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int):
        return kind in (int, float) and abs(value) < _LARGEST
    return isinstance(value, kind) and (not isinstance(value, float) or math.isfinite(value))
