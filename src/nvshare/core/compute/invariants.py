"""What must hold of compute slices after every event, by name."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.core.compute.lifecycle import State
from nvshare.core.compute.policy.constants import ENDS_BY, LONGEST
from nvshare.core.compute.slices import Slices
from nvshare.core.compute.terms import open_slices, overlaps
from nvshare.core.state import Node, Standing

EPSILON = 1e-6  # seconds


def _one_exclusive_slice(node: Node, slices: Slices) -> Iterator[str]:
    """A card has one exclusive slice at a time. What is left of the one before it is short, or was given up on."""
    for gpu in node.gpus.values():
        card = gpu.compute
        exclusive = [
            attachment.client.hex
            for attachment in gpu.attachments.values()
            if attachment.compute.slice is not None
            and attachment.compute.slice.exclusive
            and not attachment.compute.slice.beside
        ]
        if len(exclusive) > 1:
            yield f"{gpu.uuid}: {', '.join(exclusive)} have exclusive slices at once"
        for slice in card.lingering.values():
            if slice.closed_at is None:
                yield f"{gpu.uuid}: the slice of {slice.attachment.client.hex} was handed on before its end"
        listed = {slice.number for slice in (*open_slices(card), *card.lingering.values())}
        states = [attachment.compute for attachment in gpu.attachments.values()]
        known = {slice.number for state in states for slice in (state.slice, state.overrun) if slice is not None}
        if listed != known:
            yield f"{gpu.uuid}: slices {sorted(listed)} are listed, clients have {sorted(known)}"


def _slices_below_grants(node: Node, slices: Slices) -> Iterator[str]:
    """Only a client that holds the grant, and whose terms are slices, has a slice or asks for one."""
    for gpu in node.gpus.values():
        for attachment in gpu.attachments.values():
            state = attachment.compute
            entitled = state.in_slices and attachment.standing is Standing.RUNNING
            if state.engaged and not entitled:
                standing = attachment.standing.value
                yield f"{attachment.client.hex} is {standing} on {gpu.uuid} but takes slices (terms: {state.in_slices})"
            if state.asks is not (attachment.client.id in gpu.compute.asking):
                yield f"{attachment.client.hex} asks for a slice on {gpu.uuid} and is not listed, or is and does not"
        for client in gpu.compute.asking.keys() - gpu.attachments.keys():
            yield f"{client:016x} is gone but asks for a slice on {gpu.uuid}"


def _slices_wake(node: Node, slices: Slices) -> Iterator[str]:
    """A client that asks waits for a slice that will end, or for credit that will come."""
    due = slices.alarms.next()
    if due is not None and due <= node.now:
        yield f"a compute alarm for {due} was not answered, it is {node.now}"
    alarmed = slices.alarms.owners()
    for gpu in node.gpus.values():
        card = gpu.compute
        for attachment in card.asking.values():
            if attachment.compute.ready_since is not None and attachment.compute.slice is None:
                if overlaps(attachment) or card.exclusive is None:
                    yield f"{attachment.client.hex} could have a slice on {gpu.uuid} and has none"
                elif gpu.uuid not in alarmed:
                    yield f"{attachment.client.hex} waits on {gpu.uuid} for a slice that nobody ends"
            elif gpu.uuid not in alarmed:
                yield f"{attachment.client.hex} waits on {gpu.uuid} for credit, and nobody looks again"


def _slices_end(node: Node, slices: Slices) -> Iterator[str]:
    """A slice that keeps others waiting has an end, or was told to end."""
    for gpu in node.gpus.values():
        slice = gpu.compute.exclusive
        if slice is None or slice.closed_at is not None or slice.told_to_end:
            continue
        waits = any(attachment.compute.ready_since is not None for attachment in gpu.compute.asking.values())
        if waits and slice.length is None:
            yield f"{slice.attachment.client.hex} holds its slice on {gpu.uuid} without end while others could run"


def _accounts_balance(node: Node, slices: Slices) -> Iterator[str]:
    """There are accounts of groups that exist, and of no others. Credit and debt are within their bounds."""
    for gpu in node.gpus.values():
        for name, account in gpu.compute.accounts.items():
            if name not in node.groups:
                yield f"{gpu.uuid}: group {name} is gone, its account is not"
                continue
            bucket = account.bucket
            if not -ENDS_BY * bucket.cap - EPSILON <= bucket.level <= max(LONGEST, bucket.depth) + EPSILON:
                yield f"{gpu.uuid}: credit of group {name} is {bucket.level} s of {bucket.depth}"
            if bucket.cap != node.groups[name].core_percent / 100:
                yield f"{gpu.uuid}: the account of group {name} knows cap {bucket.cap}"
            if not 0.0 < account.share <= 1.0 + EPSILON:
                yield f"{gpu.uuid}: group {name} has share {account.share}"
            states = [
                attachment.compute for attachment in gpu.attachments.values() if attachment.client.group.id == name
            ]
            engaged = sum(state.engaged for state in states)
            if account.engaged != engaged:
                yield f"{gpu.uuid}: group {name} has {engaged} slices and requests, its account knows {account.engaged}"


def _states_agree(node: Node, slices: Slices) -> Iterator[str]:
    """A client has a slice exactly while its state says so."""
    for gpu in node.gpus.values():
        for attachment in gpu.attachments.values():
            state, slice = attachment.compute.state, attachment.compute.slice
            has = State.NONE if slice is None else State.HELD if slice.closed_at is None else State.CLOSING
            if has is not state and not (slice is None and state is State.ASKED):
                yield f"{attachment.client.hex} on {gpu.uuid} is {state.name}, its slice is {has.name}"


def _given_up_on_by_right(node: Node, slices: Slices) -> Iterator[str]:
    """A client has a deadline only after the end it was given, or after it was told to end."""
    for gpu in node.gpus.values():
        for slice in open_slices(gpu.compute):
            if slice.deadline is None or slice.closed_at is not None or slice.told_to_end:
                continue
            if slice.end is None or slice.deadline < slice.end:
                yield f"{slice.attachment.client.hex} must end its slice on {gpu.uuid} by {slice.deadline}, unasked"


COMPUTE_INVARIANTS = {
    "one exclusive slice": _one_exclusive_slice,
    "slices below grants": _slices_below_grants,
    "slices wake": _slices_wake,
    "slices end": _slices_end,
    "accounts balance": _accounts_balance,
    "states agree": _states_agree,
    "given up on by right": _given_up_on_by_right,
}
