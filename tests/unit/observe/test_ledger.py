"""Counters of tasks never go back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshare.observe import families as f
from nvshare.observe.ledger import KEPT_S, Ledger

NAMES = ("train", "serve")


def status(used: dict[int, float]) -> dict[str, Any]:
    """Clients with the seconds they used; the even ones are of one task, the odd ones of another."""
    return {
        "scheduler": {"cards": ["GPU-a"]},
        "groups": [],
        "clients": [
            {
                "id": f"{client:016x}",
                "namespace": "",
                "pod": "",
                "group": f"process:{client}",
                "name": NAMES[client % 2],
                "gpus": [{"uuid": "GPU-a", "occupied_s": seconds, "swapped_in": 0, "swapped_out": 0}],
            }
            for client, seconds in used.items()
        ],
    }


def seconds(ledger: Ledger, now: float = 0.0) -> dict[str, float]:
    return {one.labels[-1]: one.value for one in ledger.samples(now) if one.family is f.TASK_GPU_SECONDS}


def test_the_use_of_a_process_that_ended_stays() -> None:
    ledger = Ledger()
    ledger.book(status({2: 1.0, 4: 2.0}), 0.0)
    ledger.book(status({4: 2.5}), 1.0)
    ledger.book(status({4: 2.5, 6: 0.25}), 2.0)
    assert seconds(ledger) == {"train": 3.75}


def test_a_process_that_comes_back_after_a_restart_of_the_scheduler_goes_on_where_it_was() -> None:
    ledger = Ledger()
    ledger.book(status({2: 10.0}), 0.0)
    ledger.book(status({}), 1.0)
    ledger.book(status({2: 11.0}), 2.0)
    assert seconds(ledger) == {"train": 11.0}


def test_a_figure_that_begins_anew_is_added() -> None:
    ledger = Ledger()
    ledger.book(status({2: 10.0}), 0.0)
    ledger.book(status({2: 0.5}), 1.0)
    assert seconds(ledger) == {"train": 10.5}


def test_the_series_of_a_task_ends_some_time_after_it() -> None:
    ledger = Ledger()
    ledger.book(status({2: 1.0, 3: 1.0}), 0.0)
    ledger.book(status({3: 1.0}), KEPT_S)
    assert seconds(ledger, KEPT_S) == {"train": 1.0, "serve": 1.0}
    assert seconds(ledger, KEPT_S + 1) == {"serve": 1.0}


@given(st.lists(st.dictionaries(st.integers(1, 6), st.floats(0, 5)), max_size=12))
def test_counters_grow_by_what_was_used_whoever_comes_and_goes(steps: list[dict[int, float]]) -> None:
    ledger, used, expected = Ledger(), dict.fromkeys(range(1, 7), 0.0), {"train": 0.0, "serve": 0.0}
    for now, step in enumerate(steps):
        for client, more in step.items():
            used[client] += more
            expected[NAMES[client % 2]] += more
        before = seconds(ledger)
        ledger.book(status({client: used[client] for client in step}), float(now))
        after = seconds(ledger)
        assert all(after[task] >= value for task, value in before.items())
        assert after == pytest.approx({task: expected[task] for task in after})
