"""Property tests of pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

Test = Callable[..., None]


def for_all(*strategies: st.SearchStrategy[Any]) -> Callable[[Test], Test]:
    """The test holds for all of these: for two hundred of them, the same ones in every run."""
    steady = settings(max_examples=200, deadline=None, derandomize=True)
    return lambda test: steady(given(*strategies)(test))
