"""What must hold of compute turns after every event, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvshare.core.compute_terms import open_turns, overlaps
from nvshare.core.policy.credit import DEBT_WAIT
from nvshare.core.policy.shares import LONGEST
from nvshare.core.state import Node, Standing

if TYPE_CHECKING:
    from nvshare.core.compute import Compute

EPSILON = 1e-6  # seconds


def _one_exclusive_turn(node: Node, compute: Compute) -> Iterator[str]:
    """One exclusive turn at a time on a card; what is left of the one before it is short, or was given up on."""
    for gpu in node.gpus.values():
        card = gpu.compute
        exclusive = [
            place.client.hex
            for place in gpu.attachments.values()
            if place.compute.turn is not None and place.compute.turn.exclusive and not place.compute.turn.beside
        ]
        if len(exclusive) > 1:
            yield f"{gpu.uuid}: {', '.join(exclusive)} have exclusive turns at once"
        for turn in card.lingering.values():
            if turn.closed_at is None:
                yield f"{gpu.uuid}: the turn of {turn.place.client.hex} was handed on before it said that it is over"
        listed = {turn.number for turn in (*open_turns(card), *card.lingering.values())}
        states = [place.compute for place in gpu.attachments.values()]
        known = {turn.number for state in states for turn in (state.turn, state.overrun) if turn is not None}
        if listed != known:
            yield f"{gpu.uuid}: turns {sorted(listed)} are listed, clients have {sorted(known)}"


def _turns_below_grants(node: Node, compute: Compute) -> Iterator[str]:
    """A turn, or a request for one, only of a client that holds the grant and was told to take turns."""
    for gpu in node.gpus.values():
        for place in gpu.attachments.values():
            state = place.compute
            entitled = state.told and place.standing is Standing.RUNNING
            if state.engaged and not entitled:
                yield f"{place.client.hex} is {place.standing.value} on {gpu.uuid}, told: {state.told}, but takes turns"
            if state.asks is not (place.client.id in gpu.compute.asking):
                yield f"{place.client.hex} asks for a turn on {gpu.uuid} and is not listed, or is and does not"
        for client in gpu.compute.asking.keys() - gpu.attachments.keys():
            yield f"{client:016x} is gone but asks for a turn on {gpu.uuid}"


def _turns_wake(node: Node, compute: Compute) -> Iterator[str]:
    """Who asks either waits for a turn that will end, or for credit that will come; nobody waits for nothing."""
    due = compute.alarms.next()
    if due is not None and due <= node.now:
        yield f"a compute alarm for {due} was not answered, it is {node.now}"
    alarmed = compute.alarms.owners()
    for gpu in node.gpus.values():
        card = gpu.compute
        for place in card.asking.values():
            if place.compute.ready_since is not None and place.compute.turn is None:
                if overlaps(place) or card.exclusive is None:
                    yield f"{place.client.hex} could have a turn on {gpu.uuid} and has none"
                elif gpu.uuid not in alarmed:
                    yield f"{place.client.hex} waits on {gpu.uuid} for a turn that nobody ends"
            elif gpu.uuid not in alarmed:
                yield f"{place.client.hex} waits on {gpu.uuid} for credit, and nobody looks again"


def _turns_not_passed_over(node: Node, compute: Compute) -> Iterator[str]:
    """A holder that keeps others waiting was told when to end, or is about to be asked."""
    for gpu in node.gpus.values():
        turn = gpu.compute.exclusive
        if turn is None or turn.closed_at is not None or turn.told_to_end:
            continue
        waits = any(place.compute.ready_since is not None for place in gpu.compute.asking.values())
        if waits and turn.length is None:
            yield f"{turn.place.client.hex} holds its turn on {gpu.uuid} without end while others could run"


def _books_balance(node: Node, compute: Compute) -> Iterator[str]:
    """Books of groups that are there, and of no others; credit and debt within their bounds."""
    for gpu in node.gpus.values():
        for name, book in gpu.compute.books.items():
            if name not in node.groups:
                yield f"{gpu.uuid}: group {name} is gone, its books are not"
                continue
            if not -DEBT_WAIT * book.quota - EPSILON <= book.credit <= max(LONGEST, book.reach * book.quota) + EPSILON:
                yield f"{gpu.uuid}: credit of group {name} is {book.credit} s"
            if book.quota != node.groups[name].core_percent / 100:
                yield f"{gpu.uuid}: books of group {name} know quota {book.quota}"
            states = [place.compute for place in gpu.attachments.values() if place.client.group.id == name]
            engaged = sum(state.engaged for state in states)
            if book.engaged != engaged:
                yield f"{gpu.uuid}: books of group {name} know {book.engaged} turns and requests, there are {engaged}"


def _given_up_on_by_right(node: Node, compute: Compute) -> Iterator[str]:
    """Only who was told when to end must have spoken by then."""
    for gpu in node.gpus.values():
        for turn in open_turns(gpu.compute):
            if turn.deadline is None or turn.closed_at is not None or turn.told_to_end:
                continue
            if turn.end is None or turn.deadline < turn.end:
                yield f"{turn.place.client.hex} is to end its turn on {gpu.uuid} by {turn.deadline} and does not know"


COMPUTE_INVARIANTS = {
    "one exclusive turn": _one_exclusive_turn,
    "turns below grants": _turns_below_grants,
    "turns wake": _turns_wake,
    "turns not passed over": _turns_not_passed_over,
    "books balance": _books_balance,
    "given up on by right": _given_up_on_by_right,
}
