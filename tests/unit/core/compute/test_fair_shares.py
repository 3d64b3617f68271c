"""Weighted max-min fairness: what each group should get of a card."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from nvshare.core.compute.policy.fair import Demand, fair
from tests.unit.core.core_properties import for_all

SLACK = 1e-9
part = st.floats(0.0, 1.0)


@st.composite
def demands(draw: st.DrawFn, floors: bool = True) -> list[Demand]:
    """Up to six groups with quotas in percent. Their floors add up to no more than a card."""
    found, left = [], 100
    for _ in range(draw(st.integers(1, 6))):
        floor = draw(st.integers(0, left)) if floors else 0
        left -= floor
        cap = draw(st.integers(max(floor, 1), 100))
        found.append(Demand(draw(part), floor / 100, cap / 100))
    return found


@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        ([Demand()], [1.0]),
        ([Demand(), Demand()], [0.5, 0.5]),
        ([Demand(0.2), Demand()], [0.2, 0.8]),
        ([Demand(0.2), Demand(0.3), Demand()], [0.2, 0.3, 0.5]),
        ([Demand(0.5), Demand(0.5), Demand(0.5)], [1 / 3] * 3),
        ([Demand(cap=0.3)], [0.3]),
        ([Demand(cap=0.3), Demand(cap=0.6)], [0.3, 0.6]),
        ([Demand(cap=0.8), Demand(cap=0.4)], [2 / 3, 1 / 3]),
        ([Demand(floor=0.7), Demand()], [0.7 + 0.3 * 0.7 / 1.7, 0.3 / 1.7]),
        ([Demand(want=0.1, floor=0.7), Demand()], [0.1, 0.9]),
        ([Demand(floor=0.6), Demand(floor=0.2)], [0.75, 0.25]),
        ([Demand(floor=0.6, cap=0.6), Demand(floor=0.4, cap=0.4)], [0.6, 0.4]),
    ],
)
def test_a_card_is_shared(groups: list[Demand], shares: list[float]) -> None:
    assert fair(groups) == pytest.approx(shares)


def test_a_card_without_groups_is_shared_among_none() -> None:
    assert fair([]) == []


@for_all(demands())
def test_nobody_gets_more_than_it_can_use_or_may(groups: list[Demand]) -> None:
    assert all(0.0 <= share <= group.most + SLACK for group, share in zip(groups, fair(groups), strict=True))


@for_all(demands())
def test_every_group_gets_its_floor_or_all_it_can_use(groups: list[Demand]) -> None:
    assert all(share >= min(group.floor, group.most) - SLACK for group, share in zip(groups, fair(groups), strict=True))


@for_all(demands())
def test_all_of_the_card_is_given_that_can_be_used(groups: list[Demand]) -> None:
    assert sum(fair(groups)) == pytest.approx(min(1.0, sum(group.most for group in groups)), abs=1e-6)


@for_all(demands())
def test_beyond_their_floors_groups_that_want_more_get_by_their_weights(groups: list[Demand]) -> None:
    shares = fair(groups)
    levels = [
        (share - min(group.floor, group.most)) / group.weight
        for group, share in zip(groups, shares, strict=True)
        if share < group.most - 1e-6
    ]
    assert not levels or max(levels) - min(levels) <= 1e-6 / min(group.weight for group in groups if group.weight)
    # AND nobody has gone beyond that level
    for group, share in zip(groups, shares, strict=True):
        if levels and group.weight:
            assert (share - min(group.floor, group.most)) / group.weight <= max(levels) + 1e-6 / group.weight


@for_all(demands(floors=False), st.data())
def test_a_group_that_wants_more_never_takes_from_those_with_less(groups: list[Demand], data: st.DataObject) -> None:
    who = data.draw(st.integers(0, len(groups) - 1))
    more = data.draw(st.floats(groups[who].want, 1.0))
    before = fair(groups)
    after = fair([*groups[:who], replace(groups[who], want=more), *groups[who + 1 :]])
    assert after[who] >= before[who] - SLACK
    assert all(after[other] <= before[other] + 1e-6 for other in range(len(groups)) if other != who)


@for_all(demands(), demands())
def test_when_one_leaves_nobody_gets_less(groups: list[Demand], others: list[Demand]) -> None:
    # Floors of both lists together may be more than a card: only groups without floors leave here.
    leaving = [replace(other, floor=0.0) for other in others]
    together = fair([*groups, *leaving])[: len(groups)]
    assert all(alone >= one - 1e-6 for one, alone in zip(together, fair(groups), strict=True))


@for_all(demands(), st.randoms(use_true_random=False))
def test_the_order_of_groups_makes_no_difference(groups: list[Demand], random: object) -> None:
    order = list(range(len(groups)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shares = fair(groups)
    assert fair([groups[index] for index in order]) == pytest.approx([shares[index] for index in order], abs=1e-6)
