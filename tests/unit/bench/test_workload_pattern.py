"""The numbers the workloads compute with, and how their results are checked."""

from __future__ import annotations

import ctypes
import itertools
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshare.bench.workloads import pattern
from nvshare.bench.workloads.spec import WORKLOADS

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)


@given(FLOATS, FLOATS)
def test_sums_are_those_of_single_precision(x: float, y: float) -> None:
    # GIVEN two float32
    # WHEN they are added as the check does
    (found,) = pattern.add_f32([x], [y])
    # THEN the result is the double sum rounded once to float32, by the C compiler's own conversion
    assert found == ctypes.c_float(x + y).value


@given(st.integers(min_value=1, max_value=200), st.integers(min_value=0, max_value=2**31))
def test_random_blocks_lie_inside_and_apart(n: int, seed: int) -> None:
    elements = n * n
    blocks = pattern.random_blocks(elements, seed)
    assert blocks[0].start == 0
    assert blocks[-1].start + len(blocks[-1].x) == elements
    for before, after in itertools.pairwise(blocks):
        assert before.start + len(before.x) <= after.start


def test_the_same_seed_gives_the_same_numbers_and_another_one_does_not() -> None:
    assert pattern.random_blocks(10**6, 7) == pattern.random_blocks(10**6, 7)
    assert pattern.random_blocks(10**6, 7) != pattern.random_blocks(10**6, 8)


def test_samples_cover_every_random_block_and_plain_places() -> None:
    # GIVEN the blocks of a matrix
    elements = 14000 * 14000
    blocks = pattern.random_blocks(elements, 3)
    # WHEN it is decided where to look
    samples = list(pattern.samples(elements, blocks, 3))
    # THEN every block is looked at, and places that hold the fill values only
    assert samples[: len(blocks)] == blocks
    plain = samples[len(blocks) :]
    assert plain
    assert all(set(sample.expected()) == {pattern.FILL_X + pattern.FILL_Y} for sample in plain)


@pytest.mark.parametrize("seed", [1, 2, 99])
def test_the_bytes_foretold_are_the_bytes_of_the_blocks(seed: int) -> None:
    elements = WORKLOADS["add-small"].elements
    blocks = pattern.random_blocks(elements, seed)
    into, back = pattern.copied_bytes(elements, seed, results=2)
    assert into == sum(len(block.x) + len(block.y) for block in blocks) * 4
    assert back == 2 * sum(len(sample.x) for sample in pattern.samples(elements, blocks, seed)) * 4


def test_the_fill_is_the_bit_pattern_of_the_float() -> None:
    assert array("f", [pattern.FILL_X]).tobytes() == pattern.float_bits(pattern.FILL_X).to_bytes(4, "little")


def test_one_wrong_bit_changes_the_checksum() -> None:
    right, wrong = pattern.Checksum(), pattern.Checksum()
    right.add(array("f", [1.0, 2.0]))
    wrong.add(array("f", [1.0, 2.0000002]))
    assert right.text != wrong.text


def test_workloads_have_the_published_sizes() -> None:
    gib = 2**30
    assert WORKLOADS["add"].bytes / gib == pytest.approx(11.7, abs=0.1)
    assert WORKLOADS["add-small"].bytes / gib == pytest.approx(3.65, abs=0.01)
    assert WORKLOADS["add-idle-small"].bytes == WORKLOADS["add-small"].bytes
    assert [workload.iterations for workload in WORKLOADS.values()] == [4000, 40000, 4000]


def test_pauses_vary_but_keep_their_mean_for_every_seed() -> None:
    workload = WORKLOADS["add-idle-small"]
    for seed in range(5):
        pauses = list(itertools.islice(workload.sleeps(seed), 100))
        assert len({round(pause, 9) for pause in pauses}) > 50
        assert sum(pauses) / 100 == pytest.approx(workload.sleep)


def test_a_shortened_workload_has_fewer_adds_of_the_same_size() -> None:
    short = WORKLOADS["add"].shortened(0.1)
    assert (short.iterations, short.n) == (400, 28000)
    assert WORKLOADS["add"].shortened(0.0).iterations == 1
