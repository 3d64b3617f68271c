"""Every change of a client's sleep is legal or raises, and the core tells the story of an illegal one."""

from __future__ import annotations

from itertools import product

import pytest

from nvshare.core.broken import InvariantBroken
from nvshare.core.sleep.lifecycle import Change, IllegalChange, State, after, table
from tests.unit.core.core_sleep import SleepScene

LEGAL = {
    (State.AWAKE, Change.CHOOSE): State.LEAVING,
    (State.LEAVING, Change.SPARE): State.AWAKE,
    (State.LEAVING, Change.ORDER): State.ORDERED,
    (State.ORDERED, Change.SLEEP): State.ASLEEP,
    (State.ORDERED, Change.STAY): State.AWAKE,
    (State.ASLEEP, Change.CALL): State.CALLED,
    (State.CALLED, Change.DISMISS): State.ASLEEP,
    (State.CALLED, Change.WAKE): State.WAKING,
    (State.WAKING, Change.RISE): State.AWAKE,
    (State.WAKING, Change.FAIL): State.ASLEEP,
}


@pytest.mark.parametrize(("state", "change"), list(product(State, Change)), ids=lambda each: each.name)
def test_every_change_is_legal_or_raises(state: State, change: Change) -> None:
    if (state, change) in LEGAL:
        assert after(state, change) is LEGAL[state, change]
    else:
        with pytest.raises(IllegalChange, match=f"{change.name} of a client that is {state.name}"):
            after(state, change)


def test_the_table_has_all_legal_changes_and_no_others() -> None:
    assert table() == LEGAL


def test_an_illegal_change_is_a_fault_of_the_core_and_tells_the_recent_story() -> None:
    scene = SleepScene()
    scene.task(1, 0)
    with pytest.raises(InvariantBroken) as broken:
        scene.scheduler._sleepers._change(scene.scheduler._node.clients[1], Change.WAKE)
    assert broken.value.name == "legal changes of sleep"
    assert "0000000000000001: WAKE of a client that is AWAKE" in str(broken.value)
    assert "SleepableSaid(now=0.0, client=1" in str(broken.value)
