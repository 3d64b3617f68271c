"""The table of a slice's states is the same in C."""

from __future__ import annotations

from pathlib import Path

from tools.slice_table import header

ROOT = Path(__file__).parents[3]


def test_the_header_says_what_the_core_says() -> None:
    assert (ROOT / "native/client/slice_table.h").read_text() == header(), "run: make generate"
