"""The text form of a compute quota: what it means, what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshare.cores import Cores

percents = st.integers(1, 100)
FORMS = "use 60, 30..60 (30 guaranteed, at most 60) or 30.., in whole percent from 1 to 100"


@st.composite
def quotas(draw: Any) -> Cores:
    cap = draw(percents)
    return Cores(draw(st.integers(0, cap)), cap)


@given(quotas())
def test_what_is_written_is_read_again(quota: Cores) -> None:
    assert Cores.parse(str(quota)) == quota
    assert Cores.of(quota.plain) == Cores.of(quota) == quota


@given(st.text("0123456789.% x-", max_size=12))
def test_any_text_is_a_quota_in_range_or_is_refused_with_the_forms(text: str) -> None:
    refused = None
    try:
        assert Cores.parse(text).allowed
    except ValueError as error:
        refused = str(error)
    assert refused is None or (refused.startswith(repr(text)) and refused.endswith(FORMS))


@pytest.mark.parametrize(
    ("text", "floor", "cap"),
    [
        ("60", 0, 60),
        ("60%", 0, 60),
        ("060", 0, 60),
        ("100", 0, 100),
        ("30..60", 30, 60),
        ("30%..60%", 30, 60),
        ("30..60%", 30, 60),
        ("60..60", 60, 60),
        ("30..", 30, 100),
        ("30..100", 30, 100),
        ("100..", 100, 100),
        ("..60", 0, 60),
    ],
)
def test_forms(text: str, floor: int, cap: int) -> None:
    assert Cores.parse(text) == Cores(floor, cap)


@pytest.mark.parametrize(
    "text",
    ["", "..", "%", "0", "0..60", "30..0", "101", "30..101", "101..", "-5", "30.60", "30...60", "30..60..", "30 .. 60",
     " 30", "half", "1e1", "\u0663\u0660", "30%%", "..%", "0" * 5000, "9" * 5000],
    ids=lambda text: repr(text[:9]),
)  # fmt: skip
def test_nonsense_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        Cores.parse(text)
    assert str(refused.value) == f"{text!r} is not a compute quota: {FORMS}"


def test_a_floor_above_the_cap_is_named() -> None:
    with pytest.raises(ValueError) as refused:
        Cores.parse("60..30")
    assert str(refused.value) == f"'60..30' guarantees 60 and allows only 30: {FORMS}"


@pytest.mark.parametrize("value", [0, 101, -1, True, "many", Cores(60, 30), Cores(0, 0), Cores(-1, 10)])
def test_a_program_gets_the_same_bounds(value: Any) -> None:
    with pytest.raises(ValueError, match="in whole percent from 1 to 100"):
        Cores.of(value)


def test_json_has_a_number_where_nothing_is_guaranteed() -> None:
    assert (Cores(0, 60).plain, Cores(30, 60).plain, Cores(30).plain) == (60, "30..60", "30..")
