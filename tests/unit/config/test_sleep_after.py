"""When tasks sleep, as users write it."""

from __future__ import annotations

import pytest

from nvshare.config import SLEEP_AFTER, Environment, SleepAfter, parse_sleep_after


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("auto", SleepAfter()),
        ("OFF", SleepAfter(room=False)),
        ("90", SleepAfter(idle=90.0)),
        ("90s", SleepAfter(idle=90.0)),
        ("1.5m", SleepAfter(idle=90.0)),
        ("2 h", SleepAfter(idle=7200.0)),
        ("7d", SleepAfter(idle=604800.0)),
    ],
)
def test_what_is_allowed(text: str, meant: SleepAfter) -> None:
    assert parse_sleep_after(text) == meant
    assert parse_sleep_after(str(meant)) == meant


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "0.5s", "8d", "1w", "nan", "1e3"])
def test_what_is_not(text: str) -> None:
    with pytest.raises(ValueError, match="auto, off, or a time from 1s to 7d"):
        parse_sleep_after(text)


def test_a_value_that_cannot_be_used_is_named_with_the_default() -> None:
    environment = Environment({"NVSHARE_SLEEP_AFTER": "never"})
    assert environment.get(SLEEP_AFTER) == SleepAfter(room=False)
    assert environment.warnings[0].endswith("using the default, off")
