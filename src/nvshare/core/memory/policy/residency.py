"""Residency planning: how many bytes each client may have on a card when not all of them fit.

Guarantees:
- A client that runs has all of its bytes and is told nothing.
- Waiters get theirs in the order of their turns, from what is left and from what the clients after them can give up.
- Nobody loses more than the clients before it need (least eviction), and the last one in the order loses first.
- A client that does not wait gets back only what nobody else claims. A silent one gets nothing until it answers.
- At no moment can the clients together have more on the card than it holds: a raise is paid from bytes that a client
  has confirmed to have given up, in steps that are worth a message.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

STEP = 32 << 20  # bytes; a smaller raise is sent only if it completes a client


class Claim(enum.Enum):
    RUNS = "runs"  # has a grant, or work that could not be stopped: never loses a byte
    NEXT = "next"  # waits for its turn
    SPARE = "spare"  # does not wait, or cannot run whatever others give up


class Stake(NamedTuple):
    """One client's bytes on the card."""

    claim: Claim
    want: int  # bytes that it has allocated or asked for
    fixed: int  # the part of it that cannot leave the card
    bound: int  # what it may have, as it was last told
    held: int  # what it can still have at this moment, by all that is on its way
    evictable: bool = True  # it can be told to have less at this moment
    lacks: bool = False  # some of it is not on the card yet
    silent: bool = False  # the client does not answer, so it is promised nothing more


def plan(stakes: Sequence[Stake], limit: int, pressed: bool = False) -> list[int]:
    """The bytes that each is to have in the end. ``stakes`` are in the order in which the clients will run.
    ``pressed``: what is too much must go, though no client here waits for it."""
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
        more = 0 if stake.silent else max(0, min(left, stake.want - goals[index]))
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
            if stake.claim is not Claim.RUNS and not stake.silent and stake.bound < stake.want <= stake.fixed:
                now.append((index, stake.fixed))
        return now
    by_claim = sorted(range(len(stakes)), key=lambda index: stakes[index].claim is Claim.SPARE)
    for index in by_claim:
        stake, goal = stakes[index], goals[index]
        if goal <= stake.bound or stake.silent:
            continue
        reach = min(goal, stake.held + free)
        worth = reach - stake.bound >= STEP or (reach > stake.bound and reach >= stake.want)
        if worth:
            now.append((index, reach))
        if reach < goal and stake.claim is not Claim.SPARE:
            break  # all that comes free is for this one
        free -= max(0, reach - stake.held)
    return now
