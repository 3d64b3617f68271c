"""docs/compute.md says what the code does: the diagram of a slice, and the constants."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from nvshare.core.compute.lifecycle import Change, State, table
from nvshare.core.compute.policy import constants
from tools.compute_constants import header

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/compute.md").read_text()
LISTED = {name: value for name, value in vars(constants).items() if name.isupper()}
ROOMS = ("src/nvshare/core/compute", "native/client", "native/interposer/gate", "native/interposer/link")
# What decides nothing: rounding, sizes of tables, what status shows, and the connection to the scheduler.
OTHERS = {
    *("TICK", "ROUNDING", "EPSILON", "DIGITS", "LEAST_SHARE", "WHOLE", "SPEAK_BY", "FOR_CONTROL"),
    *("REMEMBERED_S", "SAMPLE_S", "FRESH_S"),
    *("EMPTY_SAMPLES", "UNREADY_MAX", "BYTES_PER_NS", "STORY_BYTES"),
    *("RETRY_FIRST_NS", "RETRY_LAST_NS", "RETRY_BUSY_NS", "REGISTER_WAIT_NS", "RETRY_SILENT_NS", "RETRY_REFUSED_NS"),
    *("STEADY_NS", "MEMORY_DELAY_NS", "USAGE_EVERY_NS", "ANSWER_WAIT_NS", "LIMITS_WAIT_NS", "SILENCE_NS"),
    "PATIENCE_MS",
}


def test_the_diagram_shows_the_table_of_a_slice() -> None:
    drawn = {
        (State[before], Change[change]): State[after]
        for before, after, changes in re.findall(r"^    (\w+) --> (\w+): (.+)$", PAGE, re.MULTILINE)
        for change in changes.split(", ")
    }
    assert drawn == table()


def test_every_change_is_explained() -> None:
    assert re.findall(r"^\| ([A-Z]+) \| ", PAGE, re.MULTILINE)[: len(Change)] == [change.name for change in Change]


def test_the_table_of_constants_is_that_of_the_code() -> None:
    rows = dict(re.findall(r"^\| ([A-Z_]+) \| ([\d.]+) \| (?:s|part|slices|number) \| ", PAGE, re.MULTILINE))
    assert {name: float(value) for name, value in rows.items()} == LISTED
    assert len(rows) <= 30


def test_the_library_has_the_constants_of_the_scheduler() -> None:
    assert (ROOT / "native/include/compute_constants.h").read_text() == header(), "run: make generate"


@pytest.mark.parametrize("room", ROOMS)
def test_no_other_constant_decides(room: str) -> None:
    found = set()
    for path in (ROOT / room).rglob("*"):
        if path.suffix == ".py" and path.name != "constants.py":
            found |= {name for name, value in _assigned(path) if _is_number(value)}
        elif path.suffix in (".c", ".h") and path.name != "slice_table.h":
            macros = re.findall(r"^#define (\w+)\s+(\S.*)$", path.read_text(), re.MULTILINE)
            found |= {name for name, value in macros if re.match(r"[(\d]", value) and not name.startswith("NVS_")}
    assert found - OTHERS == set()


def _assigned(path: Path) -> list[tuple[str, ast.expr]]:
    named = []
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign):
            named += [(target.id, statement.value) for target in statement.targets if isinstance(target, ast.Name)]
    return [(name, value) for name, value in named if name.isupper()]


def _is_number(value: ast.expr) -> bool:
    return not isinstance(value, ast.Dict) and any(
        isinstance(part, ast.Constant) and isinstance(part.value, int | float) for part in ast.walk(value)
    )
