"""Virtual time and the fluid sharing of an engine."""

from __future__ import annotations

import pytest

from nvshare.model.engine import Deadlock, Engine, Process, Signal
from nvshare.model.fluid import Fluid


def finish_times(efficiency: float, work: list[tuple[float, int, float]]) -> list[float]:
    """Submit pieces (when, user, seconds) and say when each was done."""
    engine = Engine()
    fluid = Fluid(engine, efficiency)
    times = [0.0] * len(work)

    def submit(index: int, at: float, user: int, seconds: float) -> Process:
        yield at
        yield fluid.submit(user, seconds)
        times[index] = engine.now

    for index, (at, user, seconds) in enumerate(work):
        engine.start(submit(index, at, user, seconds))
    engine.run()
    return times


def test_alone_work_takes_what_it_takes() -> None:
    assert finish_times(0.9, [(0.0, 1, 2.0)]) == [pytest.approx(2.0)]


def test_two_users_share_with_the_loss_of_time_slicing() -> None:
    assert finish_times(0.8, [(0.0, 1, 1.0), (0.0, 2, 1.0)]) == [pytest.approx(2.5), pytest.approx(2.5)]


def test_who_is_left_alone_goes_on_at_full_speed() -> None:
    # GIVEN one second and three seconds of work begun together at efficiency 1
    # THEN the short one ends after 2 s, the long one after 4 s
    assert finish_times(1.0, [(0.0, 1, 1.0), (0.0, 2, 3.0)]) == [pytest.approx(2.0), pytest.approx(4.0)]


def test_one_users_work_is_done_in_order_and_does_not_compete_with_itself() -> None:
    assert finish_times(0.5, [(0.0, 1, 1.0), (0.0, 1, 2.0)]) == [pytest.approx(1.0), pytest.approx(3.0)]


def test_a_batch_takes_as_long_as_its_pieces() -> None:
    pieces = finish_times(0.9, [(0.0, 1, 0.1)] * 30 + [(0.5, 2, 2.0)])
    batch = finish_times(0.9, [(0.0, 1, 3.0), (0.5, 2, 2.0)])
    assert pieces[29] == pytest.approx(batch[0])
    assert pieces[30] == pytest.approx(batch[1])


def test_a_process_that_waits_for_ever_is_an_error() -> None:
    engine = Engine()

    def wait() -> Process:
        yield Signal()

    engine.start(wait())
    with pytest.raises(Deadlock):
        engine.run()


def test_a_signal_that_fired_before_does_not_block() -> None:
    engine = Engine()
    signal = Signal()
    signal.fire("value")
    seen: list[object] = []

    def wait() -> Process:
        seen.append((yield signal))

    engine.start(wait())
    engine.run()
    assert seen == ["value"]
