"""Each invariant of compute slices is broken on purpose, from inside, and must be named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvshare.core.broken import InvariantBroken
from nvshare.core.compute.invariants import COMPUTE_INVARIANTS
from nvshare.core.compute.lifecycle import State
from nvshare.core.state import Standing
from tests.unit.core.core_scene import A
from tests.unit.core.core_stage import Stage, contending


def busy() -> Stage:
    """1 has the slice, 2 and 3 ask."""
    return contending(1, 2, 3, asking=True)


def give_two(stage: Stage) -> None:
    other = contending(7, 8, asking=True).attachment(7).compute.slice
    other.attachment = stage.attachment(2)
    stage.attachment(2).compute.slice = other


def lose_a_slice(stage: Stage) -> None:
    stage.attachment(1).gpu.compute.exclusive = None


def keep_a_slice_without_the_grant(stage: Stage) -> None:
    stage.attachment(1).standing = Standing.IDLE


def forget_who_asks(stage: Stage) -> None:
    del stage.attachment(2).gpu.compute.asking[2]


def look_never_again(stage: Stage) -> None:
    stage.scheduler._slices.alarms.set(A, None)


def end_never(stage: Stage) -> None:
    stage.attachment(1).compute.slice.length = None


def count_wrongly(stage: Stage) -> None:
    stage.account(2).engaged += 1


def overfill(stage: Stage) -> None:
    stage.account(2).bucket.level = 1.0


def share_nothing(stage: Stage) -> None:
    stage.account(2).share = 0.0


def leave_an_account(stage: Stage) -> None:
    accounts = stage.attachment(1).gpu.compute.accounts
    accounts["process:99"] = accounts["process:1"]


def forget_the_state(stage: Stage) -> None:
    stage.attachment(1).compute.state = State.CLOSING


def hurry(stage: Stage) -> None:
    stage.attachment(1).compute.slice.deadline = 0.01


@pytest.mark.parametrize(
    ("name", "sabotage"),
    [
        ("one exclusive slice", give_two),
        ("one exclusive slice", lose_a_slice),
        ("slices below grants", keep_a_slice_without_the_grant),
        ("slices below grants", forget_who_asks),
        ("slices wake", lose_a_slice),
        ("slices wake", look_never_again),
        ("slices end", end_never),
        ("accounts balance", count_wrongly),
        ("accounts balance", overfill),
        ("accounts balance", share_nothing),
        ("accounts balance", leave_an_account),
        ("states agree", forget_the_state),
        ("given up on by right", hurry),
    ],
)
def test_a_broken_invariant_is_found(name: str, sabotage: Callable[[Stage], None]) -> None:
    stage = busy()
    sabotage(stage)
    scheduler = stage.scheduler
    assert list(COMPUTE_INVARIANTS[name](scheduler._node, scheduler._slices))
    with pytest.raises(InvariantBroken):
        scheduler.validate()


def test_every_invariant_has_its_sabotage() -> None:
    parameters = next(mark for mark in test_a_broken_invariant_is_found.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {name for name, _ in parameters.args[1]} == set(COMPUTE_INVARIANTS)
