"""One function of many values, on all cores."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial

import pytest

from nvshare.bench.parallel import HelperEnded, spread


def test_every_result_comes_with_the_place_of_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert dict(spread(abs, range(-6, 0))) == dict(enumerate([6, 5, 4, 3, 2, 1]))


def test_few_values_are_not_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: pytest.fail("it started processes"))
    assert list(spread(abs, [-1, 2])) == [(0, 1), (1, 2)]


def test_a_helper_that_ends_is_told_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(HelperEnded, match="ended"):
        list(spread(os._exit, [3] * 5))
    assert not multiprocessing.active_children()


def test_closing_ends_what_is_still_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    results = spread(partial(pow, 3), [1, 2, 3, 4])
    next(results)
    results.close()
    assert not multiprocessing.active_children()
