"""Who sleeps where contexts are in the way: properties of the rule."""

from __future__ import annotations

from hypothesis import strategies as st

from nvshare.core.sleep.policy.victims import Candidate, victims
from tests.unit.core.core_properties import for_all

CARDS = ("a", "b")
sizes = st.integers(0, 9)
candidates = st.lists(
    st.builds(
        Candidate,
        frees=st.dictionaries(st.sampled_from(CARDS), sizes),
        ticket=st.integers(0, 5),
        active_at=st.sampled_from([0.0, 1.0, 2.0]),
        leaving=st.booleans(),
    ),
    max_size=6,
)
lacks = st.dictionaries(st.sampled_from(CARDS), st.integers(-5, 30))


def freed(chosen: list[Candidate], card: str) -> int:
    return sum(one.frees.get(card, 0) for one in chosen)


@for_all(candidates, lacks)
def test_enough_sleep_for_each_card_where_enough_can(everybody: list[Candidate], lack: dict[str, int]) -> None:
    chosen = [everybody[index] for index in victims(everybody, lack)]
    for card, size in lack.items():
        assert freed(chosen, card) >= size or freed(everybody, card) < size


@for_all(candidates, lacks)
def test_nobody_sleeps_whom_the_others_make_unnecessary(everybody: list[Candidate], lack: dict[str, int]) -> None:
    chosen = victims(everybody, lack)
    met = [card for card, size in lack.items() if 0 < size <= freed(everybody, card)]
    for spared in chosen:
        rest = [everybody[index] for index in chosen if index != spared]
        assert any(freed(rest, card) < lack[card] for card in met)


def test_the_furthest_next_turn_goes_first() -> None:
    waits_long, waits, idle_long, idle = (
        Candidate({"a": 5}, 9),
        Candidate({"a": 5}, 2),
        Candidate({"a": 5}, 0, 1.0),
        Candidate({"a": 5}, 0, 7.0),
    )
    everybody = [waits, waits_long, idle, idle_long]
    order = [everybody[index] for size in (5, 10, 15, 20) for index in victims(everybody, {"a": size})[-1:]]
    assert order == [idle_long, idle, waits_long, waits]


def test_of_equals_the_largest_context_goes() -> None:
    assert victims([Candidate({"a": 3}), Candidate({"a": 8})], {"a": 2}) == [1]


def test_of_equals_goes_on_who_was_chosen_before() -> None:
    assert victims([Candidate({"a": 3}), Candidate({"a": 3}, leaving=True)], {"a": 2}) == [1]
