"""How late timers fire, as a histogram."""

from __future__ import annotations

from nvshare.daemon.pulse import BOUNDS, Pulse


def test_each_timer_is_counted_in_the_bucket_of_its_lateness() -> None:
    pulse = Pulse()
    for late in (-0.001, 0.0, BOUNDS[0], BOUNDS[0] * 1.5, BOUNDS[-1], BOUNDS[-1] + 1.0):
        pulse.fired(late)
    said = pulse.to_dict()
    assert said["late_counts"] == [3, 1, *[0] * (len(BOUNDS) - 3), 1, 1]
    assert said["late_s"] == round(BOUNDS[0] * 2.5 + BOUNDS[-1] * 2 + 1.0, 6)
