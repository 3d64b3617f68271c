"""What must hold of sleep after every event, by name."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.core.sleep.lifecycle import State
from nvshare.core.sleep.sleepers import Sleepers
from nvshare.core.state import Client, GpuState, Node, Standing

AWAITED = (State.ORDERED, State.WAKING)


def _sleepers_hold_nothing(node: Node, sleepers: Sleepers) -> Iterator[str]:
    """A client whose contexts are off its cards, or on their way, has no grant and no byte there."""
    for client in node.clients.values():
        for uuid, attachment in client.gpus.items() if not client.sleep.is_here else ():
            if attachment.standing is not Standing.IDLE or attachment.grant or attachment.compute.slice is not None:
                yield f"{client.hex} is {client.sleep.state.value} and {attachment.standing.value} on {uuid}"
            if attachment.held or attachment.resident or attachment.target:
                yield f"{client.hex} is {client.sleep.state.value} with {attachment.held} bytes on {uuid}"


def _contexts_agree(node: Node, sleepers: Sleepers) -> Iterator[str]:
    """The context of a client that sleeps takes nothing. Every other one takes all that it has."""
    for client in node.clients.values():
        for uuid, attachment in client.gpus.items():
            here = 0 if client.sleep.state is State.ASLEEP else attachment.context
            if attachment.context_here != here:
                yield f"{client.hex} is {client.sleep.state.value} with {attachment.context_here} bytes on {uuid}"


def _one_is_called(node: Node, sleepers: Sleepers) -> Iterator[str]:
    """Room is made on a card for one sleeper at a time, on all cards of that sleeper together."""
    for client in node.clients.values():
        for uuid, attachment in client.gpus.items():
            if (attachment.gpu.called is client) is not (client.sleep.state is State.CALLED):
                yield f"{client.hex} is {client.sleep.state.value}, and called on {uuid} or not"
    for gpu in node.gpus.values():
        if gpu.called is not None and gpu.called.id not in gpu.attachments:
            yield f"{gpu.called.hex} is called on {gpu.uuid} and gone"


def _answers_are_awaited(node: Node, sleepers: Sleepers) -> Iterator[str]:
    """A client that was told to sleep or to wake answers by a deadline, or is late. Nobody else is."""
    alarmed = sleepers.alarms.owners()
    for client in node.clients.values():
        sleep = client.sleep
        waits = sleep.answer_by is not None
        if (waits or sleep.late) is not (sleep.state in AWAITED) or (waits and sleep.late):
            yield f"{client.hex} is {sleep.state.value}, to answer by {sleep.answer_by}, late: {sleep.late}"
        if waits and client.id not in alarmed:
            yield f"{client.hex} is never found late"
    for gone in alarmed - node.clients.keys():
        yield f"{gone:016x} is gone but has an alarm"


def _called_wait_for_room(node: Node, sleepers: Sleepers) -> Iterator[str]:
    """Whoever is called lacks room on a card, and there somebody runs or gives up what he has."""
    for client in node.clients.values():
        if client.sleep.state is not State.CALLED:
            continue
        full = [one.gpu for one in client.gpus.values() if not sleepers.has_room(one)]
        if not any(_gives_way(node, client, gpu) for gpu in full):
            yield f"{client.hex} is called, and nothing makes room for it on {[gpu.uuid for gpu in full]}"


def _gives_way(node: Node, client: Client, gpu: GpuState) -> bool:
    if gpu.running or gpu.draining or gpu.stuck:
        return True
    others = [one for one in gpu.attachments.values() if one.client is not client]
    return any(one.held > one.bound or one.silent or one.client.sleep.moves for one in others)


def _sleepers_are_heard(node: Node, sleepers: Sleepers) -> Iterator[str]:
    """A sleeper waits in the queues of its cards only while another is called there, or its turn has not come."""
    for client in node.clients.values():
        if (
            client.sleep.state is State.ASLEEP
            and client.ticket
            and not client.sleep.lost
            and sleepers.may_be_called(client)
        ):
            yield f"{client.hex} sleeps although its turn has come"


SLEEP_INVARIANTS = {
    "sleepers hold nothing": _sleepers_hold_nothing,
    "contexts agree": _contexts_agree,
    "one sleeper is called": _one_is_called,
    "answers are awaited": _answers_are_awaited,
    "who is called waits for room": _called_wait_for_room,
    "sleepers are heard": _sleepers_are_heard,
}
