"""The verdicts of the stress test over what was seen."""

from __future__ import annotations

from nvshare.acceptance.stress.load import share_of
from nvshare.acceptance.stress.task import matrix_size
from nvshare.acceptance.stress.verdicts import (
    State,
    at_once,
    balance,
    clean_shutdown,
    launch_configurations,
    process_set,
    quantile,
    success_rate,
)

MIB = 1 << 20
EMPTY = State(frozenset(), {"a": frozenset(), "b": frozenset()}, {"a": 0, "b": 0}, frozenset())


def test_the_success_rate_is_judged_against_what_is_required() -> None:
    workers = [{"ok": True}] * 9 + [{"ok": False, "error": "CudaError: no"}]
    assert not success_rate(workers, 100).ok
    assert success_rate(workers, 90).ok
    assert "CudaError: no" in success_rate(workers, 100).seen
    assert not success_rate([], 100).ok


def test_a_wrong_launch_configuration_is_named() -> None:
    verdict = launch_configurations({"all": "", "forced CPU": "a worker saw a GPU"}, 100)
    assert not verdict.ok
    assert "forced CPU: a worker saw a GPU" in verdict.seen
    assert launch_configurations({"all": "", "forced CPU": "x"}, 50).ok


def on(cards: str, began: float = 0.0) -> list[dict[str, object]]:
    """Workers that saw these cards, all for 10 s from the same moment."""
    return [{"uuid": card, "began": began, "seconds": 10.0} for card in cards]


def test_balance_is_even_or_off_by_one_where_it_cannot_be() -> None:
    assert balance(on("ab" * 6), "ab").ok
    assert not balance(on("aaaaaaabbbbb"), "ab").ok
    assert balance(on("aba"), "ab").ok
    assert not balance(on("aaa"), "ab").ok
    assert not balance(on("abc"), "ab").ok
    assert not balance([], "ab").ok
    assert not balance([{"error": "it never began"}], "ab").ok


def test_workers_that_were_not_there_at_once_need_not_be_even_but_no_card_is_left_out() -> None:
    # GIVEN room for two: the third and fourth come when the first two have gone
    verdict = balance([*on("ab"), *on("aa", began=10.0)], "ab")
    assert verdict.ok
    assert verdict.seen.startswith("workers per card: 3, 1; at most 2 of 4 were there at once")
    # AND where nobody ever was on a card
    left_out = balance([*on("aa"), *on("aa", began=10.0)], "ab")
    assert not left_out.ok
    assert "a card was left out" in left_out.seen
    # AND a stranger's card is none of ours in any case
    assert not balance([*on("ab"), *on("ac", began=10.0)], "ab").ok


def test_at_once_counts_the_most_at_any_moment() -> None:
    assert at_once([]) == 0
    assert at_once([(0.0, 2.0), (1.0, 2.0), (2.0, 2.0)]) == 2
    assert at_once([(0.0, 5.0), (1.0, 5.0), (2.0, 5.0)]) == 3


def test_what_is_left_is_named() -> None:
    left = State(frozenset({7}), {"a": frozenset({7}), "b": frozenset()}, {"a": 900 * MIB, "b": 0}, frozenset({"x"}))
    assert not process_set(EMPTY, left).ok
    verdict = clean_shutdown(EMPTY, left, 64 * MIB)
    assert not verdict.ok
    for text in ("leases left: x", "contexts left on a: 7", "900 MiB more in use on a"):
        assert text in verdict.seen
    assert clean_shutdown(left, EMPTY, 64 * MIB).ok
    assert process_set(left, left).ok


def test_quantiles() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.99) == 2.0
    assert quantile([], 0.5) == 0.0


def test_shares_let_the_workers_of_a_card_fit_side_by_side() -> None:
    assert [share_of(workers, 4) for workers in (1, 4, 5, 12, 400)] == [100, 100, 50, 33, 1]


def test_matrices_fit_the_memory_of_a_worker() -> None:
    for size in (16 * MIB, 256 * MIB, 1024 * MIB):
        n = matrix_size(size)
        rounded = 4 * -(-(4 * n * n) // (2 * MIB)) * 2 * MIB
        assert 0.9 * size <= rounded <= size
