"""Every change of a slice is legal or raises, and the core tells the story of an illegal one."""

from __future__ import annotations

from itertools import product

import pytest

from nvshare.core.broken import InvariantBroken
from nvshare.core.compute.lifecycle import Change, IllegalChange, State, after, table
from tests.unit.core.core_stage import contending

LEGAL = {
    (State.NONE, Change.ASK): State.ASKED,
    (State.NONE, Change.GIVE): State.HELD,
    (State.NONE, Change.VOID): State.NONE,
    (State.ASKED, Change.ASK): State.ASKED,
    (State.ASKED, Change.GIVE): State.HELD,
    (State.ASKED, Change.VOID): State.NONE,
    (State.HELD, Change.ASK): State.HELD,
    (State.HELD, Change.GIVE): State.HELD,
    (State.HELD, Change.CLOSE): State.CLOSING,
    (State.HELD, Change.END): State.NONE,
    (State.HELD, Change.STICK): State.NONE,
    (State.HELD, Change.VOID): State.NONE,
    (State.CLOSING, Change.ASK): State.CLOSING,
    (State.CLOSING, Change.GIVE): State.CLOSING,
    (State.CLOSING, Change.CLOSE): State.CLOSING,
    (State.CLOSING, Change.END): State.NONE,
    (State.CLOSING, Change.STICK): State.NONE,
    (State.CLOSING, Change.VOID): State.NONE,
}


@pytest.mark.parametrize(("state", "change"), list(product(State, Change)), ids=lambda each: each.name)
def test_every_change_is_legal_or_raises(state: State, change: Change) -> None:
    if (state, change) in LEGAL:
        assert after(state, change) is LEGAL[state, change]
    else:
        with pytest.raises(IllegalChange, match=f"{change.name} of a slice that is {state.name}"):
            after(state, change)


def test_the_table_has_all_legal_changes_and_no_others() -> None:
    assert table() == LEGAL


def test_from_every_state_a_slice_can_be_void_and_begun_anew() -> None:
    for state in State:
        assert after(after(after(state, Change.VOID), Change.ASK), Change.GIVE) is State.HELD


def test_an_illegal_change_is_a_fault_of_the_core_and_tells_the_recent_story() -> None:
    # GIVEN a client with a slice, of which the core has lost the state
    stage = contending(1, 2, asking=True)
    stage.attachment(1).compute.state = State.NONE
    # WHEN that slice ends
    with pytest.raises(InvariantBroken) as broken:
        stage.over(1, 0.04)
    # THEN the fault is named, with what led to it
    assert broken.value.name == "legal changes"
    assert "0000000000000001: CLOSE of a slice that is NONE" in str(broken.value)
    assert "SliceRequested(now=0.0, client=1" in str(broken.value)
    assert "-> GiveSlice(client=1" in str(broken.value)
