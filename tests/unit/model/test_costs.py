"""The model waits for what the library waits for, in the same sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvshare.model import costs

LIBRARY = Path(__file__).resolve().parents[3] / "native"
UNITS = {"NVS_NS_PER_US": 1000, "NVS_NS_PER_MS": 10**6, "NVS_NS_PER_S": 10**9}
SECONDS = {
    "NVS_IN_FLIGHT_LOOSE_NS": (costs.PACED_WORK, 1e-9),
    "USAGE_EVERY_NS": (costs.USAGE_PERIOD, 1e-9),
}
NUMBERS = {
    "NVS_WINDOW_MAX": costs.FREE_WINDOW,
    "nvs_chunk_bytes": costs.CHUNK,
    "UNIFIED_GRANULARITY": costs.GRANULE,
}


def defined(name: str) -> int:
    """The number that a macro or a constant of the library stands for."""
    pattern = re.compile(rf"^(?:#define {name}\s+|const size_t {name} = )(.+?);?\s*(?:/\*.*)?$", re.MULTILINE)
    (text,) = {found for path in LIBRARY.rglob("*.[ch]") for found in pattern.findall(path.read_text())}
    plain = re.sub(r"\(size_t\)|(?<=\d)u(?:ll)?\b", "", text)
    for unit, count in UNITS.items():
        plain = plain.replace(unit, str(count))
    assert re.fullmatch(r"[\d\s()*<]+", plain), plain
    return int(eval(plain))


@pytest.mark.parametrize("name", SECONDS)
def test_the_model_waits_as_long_as_the_library(name: str) -> None:
    seconds, unit = SECONDS[name]
    assert defined(name) * unit == pytest.approx(seconds)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_model_counts_in_the_sizes_of_the_library(name: str) -> None:
    assert defined(name) == NUMBERS[name]
