"""Residency planning: how many bytes each client may have on a card when not all of them fit.

Guarantees: who runs has all of its bytes and is told nothing; then those who wait get theirs, in the order of their
turns, into what is left or what the ones after them can give up; nobody loses more than those before it need (least
eviction), the last one in the order first. Who does not wait gets back only what nobody else claims, who does not
answer nothing until it does. At no moment can the clients together have more on the card than it holds: a raise is
paid from bytes that somebody has confirmed to have given up, in steps worth a message.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

STEP = 32 << 20  # bytes; a smaller raise is sent only if it completes a client


class Claim(enum.Enum):
    RUNS = "runs"  # has a grant, or work that could not be stopped: never loses a byte
    NEXT = "next"  # waits for its turn
    SPARE = "spare"  # does not wait, or cannot run whoever gives up what


@dataclass(slots=True)
class Stake:
    """One client's bytes on the card."""

    claim: Claim
    want: int  # what it has allocated or asked for
    fixed: int  # the part of it that cannot leave the card
    bound: int  # what it may have, as it was last told
    held: int  # what it can still have at this moment, by all that is on its way
    evictable: bool = True  # it can be told to have less at this moment
    lacks: bool = False  # some of it is not on the card yet
    deaf: bool = False  # it does not answer; what it holds it may have left without saying so, so it is told of no more


def plan(stakes: Sequence[Stake], limit: int, pressed: bool = False) -> list[int]:
    """What each is to have in the end; ``stakes`` are in the order in which they will run. ``pressed``: what is too
    much must go though nobody here waits for it."""
    goals = [stake.bound if stake.claim is Claim.RUNS else max(stake.bound, stake.fixed) for stake in stakes]
    left = limit - sum(stake.fixed for stake in stakes)
    floors = [stake.fixed for stake in stakes]
    for index, stake in enumerate(stakes):
        if stake.claim is Claim.SPARE:
            continue
        share = stake.want - stake.fixed
        if stake.claim is Claim.NEXT:
            share = max(0, min(share, left))
        floors[index] = stake.fixed + share
        left -= share
    needed = sum(max(floor, goal) for floor, goal in zip(floors, goals, strict=True)) - limit
    if pressed or any(
        floor > goal or (stake.claim is Claim.NEXT and stake.lacks)  # it was told to come, but the card has shrunk
        for stake, floor, goal in zip(stakes, floors, goals, strict=True)
    ):
        for index in reversed(range(len(stakes))):
            given = max(0, min(needed, goals[index] - floors[index]))
            goals[index] -= given
            needed -= given
    goals = [max(floor, goal) for floor, goal in zip(floors, goals, strict=True)]
    left = limit - sum(goals)
    for index, stake in enumerate(stakes):
        more = 0 if stake.deaf else max(0, min(left, stake.want - goals[index]))
        goals[index] += more
        left -= more
    return goals


def steps(stakes: Sequence[Stake], goals: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """The targets to send now as (index, target): every lowering, then raises as far as confirmed room goes."""
    now = [
        (index, goal)
        for index, (stake, goal) in enumerate(zip(stakes, goals, strict=True))
        if goal < stake.bound and stake.evictable
    ]
    free = limit - sum(stake.held for stake in stakes)
    if free < 0:  # more is out than there is: first some of it has to come back; what cannot leave may stay
        for index, stake in enumerate(stakes):
            if stake.claim is not Claim.RUNS and not stake.deaf and stake.bound < stake.want <= stake.fixed:
                now.append((index, stake.fixed))
        return now
    by_claim = sorted(range(len(stakes)), key=lambda index: stakes[index].claim is Claim.SPARE)
    for index in by_claim:
        stake, goal = stakes[index], goals[index]
        if goal <= stake.bound or stake.deaf:
            continue
        reach = min(goal, stake.held + free)
        worth = reach - stake.bound >= STEP or (reach > stake.bound and reach >= stake.want)
        if worth:
            now.append((index, reach))
        if reach < goal and stake.claim is not Claim.SPARE:
            break  # all that comes free is for this one
        free -= max(0, reach - stake.held)
    return now
