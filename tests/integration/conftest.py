"""What every command promises to programs: its exit code, and the keys of the JSON that it writes.

``tests/data/recorded/commands.json`` holds both for each command line. With ``RECORD=1`` the tests write it anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

RECORDED = Path(__file__).parents[1] / "data" / "recorded" / "commands.json"
_NAMES = re.compile(r"(GPU-|MIG-)?[0-9a-f]{8}(-?[0-9a-f]{4}){2,4}[0-9a-f]*|\d+(\.\d+)?")  # UUIDs, ids, pids, numbers

OPTIONAL = {"rows[].figures.host_stood_still_ms"}  # there where the host stood still

Check = Callable[..., None]


def key_paths(value: Any, path: str = "") -> Iterator[str]:
    """``rows[].details.tasks[].name``; a key that is the name of one thing is ``*``."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from key_paths(entry, f"{path}.*" if _NAMES.fullmatch(key) else f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value:
        for entry in value:
            yield from key_paths(entry, f"{path}[]")
    else:
        yield path


def differences(seen: Iterable[str], known: Iterable[str]) -> set[str]:
    """Keys that only one of two runs of a command has, but for what depends on the machine.

    A list may be empty in one run and not in the other: ``tasks`` then stands for all of ``tasks[]``.
    """
    left, right = frozenset(seen) - OPTIONAL, frozenset(known) - OPTIONAL

    def has_empty_list(keys: frozenset[str], key: str) -> bool:
        return any(key.startswith(f"{one}[]") or one.startswith(f"{key}[]") for one in keys)

    return {
        key for here, there in ((left, right), (right, left)) for key in here - there if not has_empty_list(there, key)
    }


@pytest.fixture(scope="session")
def recorded() -> Check:
    """Compare a command's exit code, JSON and options with what was recorded for this line.

    ``code`` is None where the exit code depends on the machine.
    """

    def check(line: str, code: int | None, content: Any = None, options: list[str] | None = None) -> None:
        seen: dict[str, Any] = {"code": code, "keys": sorted({*key_paths(content)}) if content is not None else None}
        seen |= {"options": options} if options is not None else {}
        known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        if os.environ.get("RECORD"):
            RECORDED.write_text(json.dumps(dict(sorted({**known, line: seen}.items())), indent=1) + "\n")
            return
        expected = known[line]
        assert {**seen, "keys": None} == {**expected, "keys": None}
        assert (seen["keys"] is None) is (expected["keys"] is None)
        assert differences(seen["keys"] or (), expected["keys"] or ()) == set()

    return check
