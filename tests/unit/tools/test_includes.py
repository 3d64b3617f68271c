"""The native code's include contract: it holds, and a planted violation is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.includes import Check

ROOT = Path(__file__).parents[3]

LOW_AND_HIGH: dict[str, set[str]] = {"low": set(), "high": {"low"}}
SOUND = {
    "native/include/abi.h": "",
    "native/interposer/low/low.h": '#include "abi.h"\n',
    "native/interposer/high/high.h": "",
    "native/interposer/high/high.c": '#include "high/high.h"\n#include "low/low.h"\n',
    "native/simcuda/sim.h": '#include "abi.h"\n',
    "tests/native/test_low.c": '#include "low/low.h"\n',
}


def violations(root: Path, changes: dict[str, str], folders: dict[str, set[str]] | None = None) -> list[str]:
    """What the check says about a small tree that is sound but for these files."""
    for name, text in {**SOUND, **changes}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found: list[str] = Check(root, folders=folders or LOW_AND_HIGH, upward={}).violations()
    return found


def test_the_native_code_keeps_the_contract() -> None:
    assert Check(ROOT).violations() == []


def test_a_sound_tree_has_no_violation(tmp_path: Path) -> None:
    assert violations(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("native/interposer/low/low.c", '#include "high/high.h"\n', "low may not include high"),
        ("native/interposer/low/low.c", '#include "low.h"\n', "does not name its folder"),
        ("native/interposer/low/low.c", '#include "low/gone.h"\n', "is not there"),
        ("native/interposer/low/low.c", '#include "../low/low.h"\n', "climbs out of its folder"),
        ("native/interposer/attic/old.c", '#include "low/low.h"\n', "attic is not in the table"),
        ("native/interposer/low/low.c", '#include "sim.h"\n', "belongs to the other side"),
        ("native/simcuda/memory.c", '#include "low/low.h"\n', "belongs to the other side"),
        ("native/client/client.c", '#include "low/low.h"\n', "the interposer and the client share no code"),
        ("tests/native/test_high.c", '#include "high/high.c"\n', "is a source file"),
        ("native/simcuda/memory.c", '#  include "memory.c"\n', "is a source file"),
    ],
)
def test_a_planted_include_is_found_with_its_place(tmp_path: Path, name: str, text: str, reason: str) -> None:
    # GIVEN a sound tree WHEN one file gets a wrong include
    found = violations(tmp_path, {name: "/* a comment */\n" + text})
    # THEN that line is named, and nothing else
    assert len(found) == 1
    assert found[0].startswith(f"{name}:2: ")
    assert reason in found[0]


def test_a_header_that_the_table_names_may_be_included_from_below(tmp_path: Path) -> None:
    violations(tmp_path, {"native/interposer/low/low.c": '#include "high/high.h"\n'})
    upward = {("low", "high/high.h"): "a reason"}
    assert Check(tmp_path, folders=LOW_AND_HIGH, upward=upward).violations() == []


def test_folders_that_form_a_cycle_are_found(tmp_path: Path) -> None:
    found = violations(
        tmp_path, {"native/interposer/low/low.c": '#include "high/high.h"\n'}, {"low": {"high"}, "high": {"low"}}
    )
    assert len(found) == 1
    assert "the table of folders has a cycle" in found[0]


def test_a_permission_that_nothing_needs_is_found(tmp_path: Path) -> None:
    found = violations(tmp_path, {"native/interposer/high/high.c": ""})
    assert found == ["high includes nothing of low: take it out of the table"]
