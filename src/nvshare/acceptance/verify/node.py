"""Checks of the node as a whole: how tasks spread over its cards, and a restart of its scheduler."""

from __future__ import annotations

import contextlib
import time
from collections import Counter

from nvshare import procfs
from nvshare.acceptance.finding import Verdict
from nvshare.acceptance.verify.ground import START, Ground, task
from nvshare.acceptance.waiting import eventually

PER_CARD = 2  # leases
LONGEST_PAUSE = 2.0  # seconds that a task may pause because its scheduler is gone
BACK_WITHIN = 10.0  # seconds until the new scheduler knows the task
_PATIENCE = 5.0


def spread(ground: Ground) -> Verdict:
    """Leases go to the card with the fewest leases, and a process in a lease sees only its card."""
    cards = ground.venue.uuids
    if len(cards) == 1:
        return Verdict("not checked: there is one card only", None)
    with contextlib.ExitStack() as stack:
        leases = [stack.enter_context(ground.lease()) for _ in range(PER_CARD * len(cards))]
        probes = [stack.enter_context(ground.probe(ground.lease_environment(lease))) for lease in leases]
        for probe in probes:
            probe.send(do="look")
        seen = [probe.receive()["uuid"] for probe in probes]
    count = Counter(seen)
    matches = all(lease.gpus == (uuid,) for lease, uuid in zip(leases, seen, strict=True))
    text = f"{', '.join(str(count[uuid]) for uuid in cards)} of {len(leases)} tasks per card"
    return Verdict(text if matches else f"{text}; one saw another card than its own", matches and _even(count, cards))


def _even(count: Counter[str], cards: tuple[str, ...]) -> bool:
    return all(count[uuid] == PER_CARD for uuid in cards)


def restart(ground: Ground) -> Verdict:
    """Kill and restart the scheduler while a task computes."""
    if not ground.own_scheduler:
        return Verdict("not checked: the scheduler was there before and serves others too", None)
    name = task(0)
    with ground.crew(ground.small) as crew:
        crew.call_up([name])
        begin = time.monotonic() + START
        end = begin + ground.seconds + LONGEST_PAUSE
        crew.begin([name], end)
        before = _allocated(ground, crew.client(name))
        killed = procfs.kill(int(ground.status()["scheduler"]["pid"]), _PATIENCE)
        ground.venue.ensure_scheduler()
        began = time.monotonic()
        known = eventually(lambda: _allocated(ground, crew.client(name)) == before, BACK_WITHIN)
        took = time.monotonic() - began
        (track,) = crew.tracks([name], end)
    pause = track.longest_pause(begin, end)
    wrong = "" if track.right else "; its results are wrong"
    back = f"known again with its memory after {took:.1f} s" if known else "it was never known again with its memory"
    text = f"longest pause {pause:.2f} s, {back}{wrong}"
    return Verdict(text, killed and known and pause <= LONGEST_PAUSE and track.right and before > 0)


def _allocated(ground: Ground, client: str) -> int:
    """Bytes that the scheduler counts for a client; 0 while it does not know the client."""
    clients = ground.status()["clients"]
    return sum(gpu["allocated"] for one in clients if one["id"] == client for gpu in one["gpus"])
