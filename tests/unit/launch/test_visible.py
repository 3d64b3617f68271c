"""An outer CUDA_VISIBLE_DEVICES is a bound that is never exceeded."""

from __future__ import annotations

import pytest

from nvshare.launch.visible import BadChoice, bound, choose

CARDS = ("GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333", "MIG-cccc4444")


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,2", [0, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-bbbb3333,0", [2, 0]),
        ("GPU-b", [2]),
        ("gpu-b", []),
        ("GPU-aaaa", []),
        ("MIG-cccc4444", [3]),
        ("0,9,1", [0]),
        ("0,-1,1", [0]),
        ("0,x,1", [0]),
        ("1,1", []),
        ("0,GPU-aaaa1111", []),
        ("١", []),
    ],
)
def test_the_bound_is_read_as_the_driver_reads_it(value: str | None, indices: list[int]) -> None:
    assert bound(value, CARDS) == tuple(CARDS[index] for index in indices)


def test_a_choice_is_of_all_cards_by_index_or_uuid() -> None:
    assert choose("2,0", CARDS, CARDS) == (CARDS[2], CARDS[0])
    assert choose("GPU-bbbb3333", CARDS, CARDS) == (CARDS[2],)


@pytest.mark.parametrize(
    ("text", "allowed", "problem"),
    [
        ("4", CARDS, r"GPU 4 does not exist: there are 0, 1, 2, 3"),
        ("", CARDS, r"GPU \(nothing\) does not exist"),
        ("0,", CARDS, r"GPU \(nothing\) does not exist"),
        ("1,1", CARDS, "GPU 1 is named twice"),
        ("1", CARDS[2:], "GPU 1 is outside of CUDA_VISIBLE_DEVICES, which allows 2, 3"),
    ],
)
def test_a_choice_that_cannot_be_says_what_there_is(text: str, allowed: tuple[str, ...], problem: str) -> None:
    with pytest.raises(BadChoice, match=problem):
        choose(text, CARDS, allowed)
