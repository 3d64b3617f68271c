"""The bill: GPU time that a slice really used. This function holds every correction, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from nvshare.core.compute.policy.constants import ENDS_BY, GRAIN


@dataclass(frozen=True)
class Usage:
    """What is known of a slice's use of the card; all in seconds."""

    said: float  # what the client says it used until now
    elapsed: float  # since the slice began, or since a change of quota
    pending: float = 0.0  # what the client says is still in flight
    kept_waiting: float = 0.0  # for how long others waited for it that could have run
    overlapped: float = 0.0  # for how long it shared the card with the slice before or after it


def bill(usage: Usage) -> float:
    """Seconds that a group is charged for a slice."""
    # No clock runs faster than the scheduler's: a client cannot have used more than the time that passed.
    used = min(max(usage.said, 0.0), usage.elapsed)
    # A client that keeps the card from others pays for it, whatever it says. The slack is what it may have in flight.
    used = max(used, min(usage.kept_waiting - GRAIN, usage.elapsed))
    # Two that share the card have half of it each.
    shared = min(used, usage.overlapped) / 2
    # What is in flight is billed at once, for the next decision comes before its end; the final bill replaces it.
    return used + min(usage.pending, ENDS_BY) - shared
