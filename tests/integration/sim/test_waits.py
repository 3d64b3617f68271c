"""Streams that wait for values in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvshare.gpu.sim import SimNode

pytestmark = pytest.mark.simulated

Run = Callable[..., str]


def test_a_stream_waits_until_the_value_is_there(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        flag, first, second = d.alloc(8), d.stream(), d.stream()
        d.fill(flag, 0, 8)
        # GIVEN work behind a wait for a value
        d.cuStreamWaitValue32_v2(first, flag, 3, 0)
        d.spin(1e-3, first)
        assert d.code("cuStreamQuery", first) == 600
        # WHEN a smaller value is written THEN it waits on, and others run
        d.cuStreamWriteValue32_v2(second, flag, 2, 0)
        d.cuStreamSynchronize(second)
        assert d.code("cuStreamQuery", first) == 600
        # WHEN the value comes THEN the work is done
        d.cuStreamWriteValue32_v2(second, flag, 3, 0)
        d.cuStreamSynchronize(first)
        """,
    )


@pytest.mark.parametrize(
    ("condition", "value", "short", "enough"),
    [(0, 5, 4, 6), (1, 5, 6, 5), (2, 6, 1, 4), (3, 0xFFFFFFFE, 1, 2)],
    ids=["greater or equal", "equal", "and", "nor"],
)
def test_each_condition(node: SimNode, run: Run, condition: int, value: int, short: int, enough: int) -> None:
    run(
        node,
        f"""
        d = Driver()
        flag, stream = d.alloc(8), d.stream()
        d.fill(flag, {short}, 8)
        d.sync()
        d.cuStreamWaitValue32(stream, flag, {value}, {condition})
        assert d.code("cuStreamQuery", stream) == 600
        d.cuMemcpyHtoDAsync_v2(flag, struct.pack("I", {enough}), 4, d.stream())
        d.cuStreamSynchronize(stream)
        """,
    )


def test_two_cards_wait_for_each_other_through_host_memory(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d, e = Driver(), Driver(device=1)
        flags = d.host_alloc(8)
        there = e.stream()
        d.cuCtxSetCurrent(d.context)
        here = d.stream()
        for number in range(1, 50):
            d.cuStreamWriteValue32_v2(here, flags, number, 0)
            d.cuStreamWaitValue32_v2(here, flags + 4, number, 0)
            d.cuCtxSetCurrent(e.context)
            e.spin(1e-4, there)
            e.cuStreamWriteValue32_v2(there, flags + 4, number, 0)
            e.cuStreamWaitValue32_v2(there, flags, number, 0)
            d.cuCtxSetCurrent(d.context)
        d.cuStreamSynchronize(here)
        """,
    )


def test_a_context_that_ends_takes_its_waits_along(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        flag, stream = d.alloc(8), d.stream()
        d.fill(flag, 0, 8)
        d.cuStreamWaitValue64_v2(stream, flag, 1, 0)
        d.cuDevicePrimaryCtxReset_v2(0)
        again = Driver()
        again.spin(1e-3)
        again.sync()
        """,
    )
