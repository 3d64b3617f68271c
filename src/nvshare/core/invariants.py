"""What must hold after every event, by name. Tests check it after each step; it is too slow to be used in service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nvshare.core.awaited_facts import MAX_REQUESTS
from nvshare.core.broken import InvariantBroken
from nvshare.core.compute.invariants import COMPUTE_INVARIANTS
from nvshare.core.compute.slices import Slices
from nvshare.core.floors import is_on
from nvshare.core.leases import reservable
from nvshare.core.memory.headroom import computed_headroom, limit, oversubscribed
from nvshare.core.memory.selection import can_ever_run, chosen, is_contended, is_overtaken
from nvshare.core.memory.turns import Turns
from nvshare.core.policy.membership import pod_group
from nvshare.core.policy.placement import WHOLE, floor_of, reserved
from nvshare.core.settings import Mode
from nvshare.core.sleep.invariants import SLEEP_INVARIANTS
from nvshare.core.sleep.sleepers import Sleepers
from nvshare.core.state import Attachment, Client, GpuState, Lease, Node, Reserved, Standing

EPSILON = 1e-6  # seconds; times are sums of floats


def check(node: Node, turns: Turns, slices: Slices, sleepers: Sleepers) -> None:
    for name, invariant in INVARIANTS.items():
        for detail in invariant(node, turns):
            raise InvariantBroken(name, detail, node)
    for name, invariant_of_slices in COMPUTE_INVARIANTS.items():
        for detail in invariant_of_slices(node, slices):
            raise InvariantBroken(name, detail, node)
    for name, invariant_of_sleep in SLEEP_INVARIANTS.items():
        for detail in invariant_of_sleep(node, sleepers):
            raise InvariantBroken(name, detail, node)


def _card_not_overcommitted(node: Node, turns: Turns) -> Iterator[str]:
    """All that clients can have on a card fits it, unless more was adopted, or the card shrank afterwards."""
    for gpu in node.gpus.values():
        allocated = sum(attachment.granted - attachment.released for attachment in gpu.attachments.values())
        if allocated != gpu.allocated:
            yield f"{gpu.uuid}: clients have {allocated} bytes, booked are {gpu.allocated}"
        held = sum(map(_held, gpu.attachments.values()))
        if held != gpu.held:
            yield f"{gpu.uuid}: clients can have {held} bytes on the card, booked are {gpu.held}"
        if held > max(limit(gpu), gpu.tolerated):
            yield f"{gpu.uuid}: {held} bytes on a card of {gpu.capacity} (tolerated: {gpu.tolerated})"


def _held(attachment: Attachment) -> int:
    if attachment.silent:
        return min(attachment.had, attachment.allocated)
    promised = [
        size
        for number, size in (*attachment.earlier, (attachment.number, attachment.target))
        if number >= attachment.applied
    ]
    return (
        min(attachment.allocated, max(attachment.resident, *promised))
        if attachment.client.can_swap
        else attachment.allocated
    )


def _sums_agree(node: Node, turns: Turns) -> Iterator[str]:
    """What is summed up as events come equals the sum over the members."""
    for gpu in node.gpus.values():
        attachments = gpu.attachments.values()
        sums = (
            ("resident", gpu.resident, sum(attachment.resident for attachment in attachments)),
            ("host", gpu.host, sum(attachment.host for attachment in attachments)),
            ("wanted", gpu.wanted, sum(attachment.wanted for attachment in attachments)),
            ("lacking", len(gpu.lacking), sum(not attachment.whole for attachment in attachments)),
            ("contexts", gpu.contexts, sum(attachment.context_here for attachment in attachments)),
            ("contexts away", gpu.contexts_away, sum(one.context - one.context_here for one in attachments)),
            ("running", gpu.allocated_running, sum(attachment.allocated for attachment in gpu.running.values())),
        )
        for what, booked, real in sums:
            if booked != real:
                yield f"{gpu.uuid}: {what} booked as {booked}, members have {real}"
        if gpu.headroom not in (None, computed_headroom(gpu)):
            yield f"{gpu.uuid}: headroom is {computed_headroom(gpu)}, not {gpu.headroom}"
    for group in node.groups.values():
        real_by_gpu: dict[str, int] = {}
        for client in node.clients.values():
            if client.group is group:
                for uuid, attachment in client.gpus.items():
                    real_by_gpu[uuid] = real_by_gpu.get(uuid, 0) + attachment.granted - attachment.released
        if {k: v for k, v in real_by_gpu.items() if v} != {k: v for k, v in group.allocated.items() if v}:
            yield f"group {group.id}: booked {group.allocated}, members have {real_by_gpu}"


def _one_exclusive_holder(node: Node, turns: Turns) -> Iterator[str]:
    """Grants are exclusive where clients take turns. In serial mode one client holds a card alone. A client that drains
    or is stuck is not a holder."""
    for gpu in node.gpus.values():
        if node.settings.mode is Mode.SERIAL and len(gpu.running) > 1:
            yield f"{gpu.uuid}: {_names(gpu.running)} run beside each other in serial mode"
        for attachment in gpu.running.values():
            if attachment.exclusive is not gpu.turns:
                yield f"{gpu.uuid}: the grant of {attachment.client.hex} is exclusive: {attachment.exclusive}"


def _holders_resident(node: Node, turns: Turns) -> Iterator[str]:
    """A client that runs has all of its memory on the card. One that cannot move memory is never sent a target."""
    for gpu in node.gpus.values():
        for attachment in gpu.running.values():
            if not attachment.whole and not attachment.client.oversize:  # that one may be given more while it runs
                yield f"{attachment.client.hex} runs on {gpu.uuid}: {attachment.bound} of {attachment.allocated} bytes"
        for attachment in gpu.attachments.values():
            if attachment.number and not attachment.client.can_swap:
                yield f"{attachment.client.hex} cannot move memory but was told to on {gpu.uuid}"


def _requests_answered(node: Node, turns: Turns) -> Iterator[str]:
    """A request for memory waits only for room on the card, and its client is there."""
    for gpu in node.gpus.values():
        for request in gpu.pending:
            if gpu.attachments.get(request.attachment.client.id) is not request.attachment:
                yield f"request {request.number} on {gpu.uuid} is of a client that is gone"
        if gpu.pending:
            first = gpu.pending[0]
            if not oversubscribed(gpu) or limit(gpu) - gpu.held >= first.size:
                yield f"request {first.number} of {first.attachment.client.hex} waits although {gpu.uuid} has room"
            for request in gpu.pending:
                if request.attachment.client.can_swap and request.attachment.standing is Standing.IDLE:
                    yield f"request {request.number} of {request.attachment.client.hex} waits, and need not"


def _standings_agree(node: Node, turns: Turns) -> Iterator[str]:
    """A client is on a card's list exactly when its own standing says so, and has a grant exactly when not idle."""
    for client in node.clients.values():
        for attachment in client.gpus.values():
            gpu = attachment.gpu
            lists = {Standing.RUNNING: gpu.running, Standing.DRAINING: gpu.draining, Standing.STUCK: gpu.stuck}
            for standing, members in lists.items():
                if (client.id in members) != (attachment.standing is standing):
                    yield f"{client.hex} on {gpu.uuid} is {attachment.standing.value}, listed {standing.value} or not"
            if bool(attachment.grant) != (attachment.standing is not Standing.IDLE):
                yield f"{client.hex} on {gpu.uuid} is {attachment.standing.value} with grant {attachment.grant}"
            if (client.id in gpu.queue) != bool(client.ticket):
                yield f"{client.hex} waits on some of its cards only"
            if client.ticket and attachment.standing is Standing.RUNNING:
                yield f"{client.hex} waits for what it holds on {gpu.uuid}"


def _gone_own_nothing(node: Node, turns: Turns) -> Iterator[str]:
    """A client that is gone is on no card, in no queue, in no group, and has no alarm."""
    for gpu in node.gpus.values():
        parts = (
            gpu.attachments,
            gpu.running,
            gpu.draining,
            gpu.stuck,
            gpu.queue,
            gpu.lacking,
            gpu.silent,
            gpu.oversize,
        )
        for members in parts:
            for client in members.keys() - node.clients.keys():
                yield f"{client:016x} is gone but still on {gpu.uuid}"
    for group in node.groups.values():
        for client in group.clients.keys() - node.clients.keys():
            yield f"{client:016x} is gone but still in group {group.id}"
        if not group.clients and not group.opened:
            yield f"group {group.id} has neither clients nor an owner"
        cards = Counter(uuid for client in node.clients.values() if client.group is group for uuid in client.gpus)
        if group.cards != cards:
            yield f"group {group.id}: cards booked as {dict(group.cards)}, members use {dict(cards)}"
    for client in turns.alarms.owners() - node.clients.keys():
        yield f"{client:016x} is gone but has an alarm"


def _grant_numbers_unique(node: Node, turns: Turns) -> Iterator[str]:
    seen: set[int] = set()
    for client in node.clients.values():
        for attachment in client.gpus.values():
            if attachment.grant in seen:
                yield f"grant {attachment.grant} is held twice"
            if attachment.grant:
                seen.add(attachment.grant)


def _work_conserving(node: Node, turns: Turns) -> Iterator[str]:
    """A waiter is held up on one of its cards: by its own drain, by holders, drainers or earlier waiters that leave it
    no room, or by memory that is on its way."""
    if not node.settings.anti_thrash:
        for client in node.clients.values():
            if client.ticket or any(attachment.standing is not Standing.IDLE for attachment in client.gpus.values()):
                yield f"{client.hex} is scheduled while anti-thrash is off"
    for client in node.clients.values():
        if client.ticket and not any(_held_up(turns, attachment) for attachment in client.gpus.values()):
            yield f"{client.hex} waits for nothing"


def _held_up(turns: Turns, attachment: Attachment) -> bool:
    gpu = attachment.gpu
    if attachment.standing is Standing.DRAINING or not attachment.whole or (gpu.turns and is_overtaken(attachment)):
        return True
    if not gpu.turns or attachment in chosen(turns.node.settings, gpu):
        return False
    if gpu.running or gpu.draining or not can_ever_run(attachment.client):
        return True
    return any(
        other.client.ticket < attachment.client.ticket and can_ever_run(other.client) for other in gpu.queue.values()
    )


def _memory_moves(node: Node, turns: Turns) -> Iterator[str]:
    """A client whose turn has come, but whose memory has not, has a target that brings all of it into room that is
    there; or another client gives room up for it, or is silent. The work of a stuck client is there already: it may
    wait for more beside others that cannot leave either."""
    for gpu in node.gpus.values():
        for attachment in chosen(turns.node.settings, gpu) if gpu.lacking else ():
            there = attachment.resident >= attachment.need or gpu.held <= limit(gpu)
            comes = attachment.whole or (attachment.bound >= attachment.need and there)
            comes = comes or not attachment.client.sleep.is_here  # the invariants of sleep say more
            if not comes and not (gpu.draining or gpu.pending or _gives_up(gpu) or _works_on(attachment)):
                yield f"{attachment.client.hex} waits for memory on {gpu.uuid}, and nothing moves"


def _works_on(attachment: Attachment) -> bool:
    """It is stuck, so nothing can be taken from it, on a card where nothing can be given to it: others run or are stuck
    there too, or there is more on the card than fits."""
    gpu = attachment.gpu
    return attachment.standing is Standing.STUCK and (bool(gpu.running) or len(gpu.stuck) > 1 or gpu.held > limit(gpu))


def _gives_up(gpu: GpuState) -> bool:
    return any(
        attachment.held > attachment.bound
        or attachment.silent
        or attachment.client.sleep.moves
        or any(other.standing is Standing.DRAINING for other in attachment.client.gpus.values())
        for attachment in gpu.attachments.values()
    )


def _first_come_first_served(node: Node, turns: Turns) -> Iterator[str]:
    """Every card's queue keeps the one order of arrival, so waiting for each other in a circle is impossible."""
    for gpu in node.gpus.values():
        tickets = [attachment.client.ticket for attachment in gpu.queue.values()]
        if tickets != sorted(set(tickets)):
            yield f"{gpu.uuid}: queue order {tickets}"


def _nobody_starves(node: Node, turns: Turns) -> Iterator[str]:
    """A waiter's turn begins within (waiters ahead + 1) longest turns (quantum + drain deadline), if timers are on
    time, and not counting the time in which memory is on its way."""
    for client in node.clients.values():
        bound = client.start_by + turns.late - client.start_by_late
        if client.ticket and node.now > bound + EPSILON:
            yield f"{client.hex} should have begun by {bound}, it is {node.now}"


def _turns_end(node: Node, turns: Turns) -> Iterator[str]:
    """A client that drains, or holds a turn that others wait for, has an alarm, and the alarm is not overdue."""
    alarmed = turns.alarms.owners()
    for client in node.clients.values():
        if _must_end(client, turns) and client.id not in alarmed:
            yield f"{client.hex} is never told that its turn or drain is over"
    due = turns.alarms.next()
    if due is not None and due <= node.now:
        yield f"an alarm for {due} was not answered, it is {node.now}"


def _must_end(client: Client, turns: Turns) -> bool:
    for attachment in client.gpus.values():
        if attachment.standing is Standing.DRAINING:
            return True
        if (
            attachment.standing is Standing.RUNNING
            and attachment.gpu.turns
            and is_contended(turns.node.settings, attachment.gpu)
        ):
            return True
    return False


def _gangs_complete(node: Node, turns: Turns) -> Iterator[str]:
    """Of a client's cards none drains while another is held: a turn ends on all of them."""
    for client in node.clients.values():
        standings = {attachment.standing for attachment in client.gpus.values()}
        if {Standing.RUNNING, Standing.DRAINING} <= standings:
            yield f"{client.hex} drains on one of its cards and runs on another"


def _leases_fit(node: Node, turns: Turns) -> Iterator[str]:
    """No part of a card is reserved twice, and the sums on the cards are those of the leases."""
    for gpu in node.gpus.values():
        mine = [lease.reserved[gpu.uuid] for lease in node.leases.values() if gpu.uuid in lease.reserved]
        sums = Reserved(sum(one.cores for one in mine), sum(one.bytes for one in mine), len(mine))
        if sums != gpu.reserved:
            yield f"{gpu.uuid}: leases have reserved {sums}, booked are {gpu.reserved}"
        if sums.cores > WHOLE or sums.bytes > reservable(node, gpu):
            yield f"{gpu.uuid}: reserved beyond the card: {sums}"
    for lease in node.leases.values():
        if (lease.id in node.lease_queue) == bool(lease.reserved):
            yield f"lease {lease.id} waits and holds, or neither"
        if lease.reserved and (len(lease.reserved) != lease.count or not set(lease.reserved) <= set(lease.among)):
            yield f"lease {lease.id} wanted {lease.count} of {lease.among} and has {list(lease.reserved)}"


def _first_lease_waits_for_room(node: Node, turns: Turns) -> Iterator[str]:
    """The lease that waits longest waits for room on its cards, or for the holders of an earlier scheduler."""
    for lease in node.lease_queue.values() if node.leases_awaited is None else ():
        cards = [uuid for uuid in lease.among if _has_room(node, node.gpus[uuid], lease)]
        if len(cards) >= lease.count:
            yield f"lease {lease.id} waits although {', '.join(cards)} have room"
        return


def _has_room(node: Node, gpu: GpuState, lease: Lease) -> bool:
    context = gpu.largest_context if gpu.declared is None else 0
    size = 0 if lease.mem is None else min(lease.mem + context, reservable(node, gpu))
    floors = sum(group.floor_on(gpu.uuid) for group in node.groups.values())
    return (
        gpu.reserved.cores + reserved(lease.cores) <= WHOLE
        and gpu.reserved.bytes + size <= reservable(node, gpu)
        and floors + floor_of(lease.cores) <= WHOLE
    )


def _floors_fit(node: Node, turns: Turns) -> Iterator[str]:
    """Floors in force add up to at most a card, and a floor waits only while the whole of it finds no room."""
    for gpu in node.gpus.values():
        floors = {name: group.floor_on(gpu.uuid) for name, group in node.groups.items()}
        left = WHOLE - sum(floors.values())
        if left < 0:
            yield f"{gpu.uuid}: floors in force come to {WHOLE - left}%: {floors}"
        for name, group in node.groups.items():
            missing = group.cores.floor - floors[name]
            if group.cards[gpu.uuid] and gpu.claimants.get(name) is not group:
                yield f"{name} has clients on {gpu.uuid} and does not count there"
            if missing < 0 or (floors[name] and name not in gpu.claimants):
                yield f"{name} has a floor of {floors[name]}% on {gpu.uuid} and asks for {group.cores}"
            if name in gpu.claimants and 0 < missing <= left:
                yield f"{name} waits for {missing}% more of {gpu.uuid}, and {left}% is left"
        for group in gpu.claimants.values():
            if not is_on(node, group, gpu):
                yield f"{group.id} counts on {gpu.uuid} and is not there"


def _waits_end(node: Node, turns: Turns) -> Iterator[str]:
    """Whatever waits for facts has a deadline, and those behind it in its line have no earlier one."""
    for line in (node.registering.values(), node.first_requests.values()):
        deadlines = [waiting.by for waiting in line]
        if deadlines != sorted(deadlines) or any(by <= node.now for by in deadlines):
            yield f"what waits for facts is due at {deadlines}, it is {node.now}"
    if node.leases_awaited is not None and node.leases_awaited <= node.now:
        yield f"holders of leases are awaited until {node.leases_awaited}, it is {node.now}"


def _waits_are_needed(node: Node, turns: Turns) -> Iterator[str]:
    """A registration waits for a pod that is not known, a request for a sample that was ordered, and both are of
    somebody who is there."""
    for client, registration in node.registering.items():
        if client in node.clients or node.knows_pod(pod_group(registration.event.process.pod or "")):
            yield f"{client:016x} waits to be registered and need not"
    for (client, uuid), first in node.first_requests.items():
        if node.gpus[uuid].attachments.get(client) is not first.attachment:
            yield f"{client:016x} is gone and waits for a sample of {uuid}"
        if not 0 < len(first.events) <= MAX_REQUESTS or not 0 < first.sample <= node.samples_ordered:
            yield f"{len(first.events)} requests of {client:016x} wait for sample {first.sample}"


def _owners_agree(node: Node, turns: Turns) -> Iterator[str]:
    """What a process has opened is a run or leases that are held; the names of pods are those of known ones."""
    held: dict[int, set[str]] = {}
    for lease in node.leases.values():
        if lease.held:
            held.setdefault(lease.pid, set()).add(lease.id)
    for pid, found in node.opened.items():
        if not (found.run or found.leases) or set(found.leases) != held.get(pid, set()):
            yield f"process {pid} has opened {found}, its leases are {held.get(pid)}"
    for pid in held.keys() - node.opened.keys():
        yield f"process {pid} holds leases and has opened none"
    for title, group in node.pods_named.items():
        if not node.knows_pod(group):
            yield f"pod {title} is {group}, which is not known"


def _names(members: dict[int, Attachment]) -> str:
    return ", ".join(f"{client:016x}" for client in members)


INVARIANTS = {
    "card not overcommitted": _card_not_overcommitted,
    "sums agree": _sums_agree,
    "one exclusive holder": _one_exclusive_holder,
    "holders are resident": _holders_resident,
    "requests are answered": _requests_answered,
    "memory moves": _memory_moves,
    "standings agree": _standings_agree,
    "gone clients own nothing": _gone_own_nothing,
    "grant numbers unique": _grant_numbers_unique,
    "work conserving": _work_conserving,
    "first come, first served": _first_come_first_served,
    "nobody starves": _nobody_starves,
    "turns end": _turns_end,
    "gangs drain together": _gangs_complete,
    "leases fit": _leases_fit,
    "floors fit": _floors_fit,
    "the first lease waits for room only": _first_lease_waits_for_room,
    "waits for facts end": _waits_end,
    "waits for facts are needed": _waits_are_needed,
    "owners agree": _owners_agree,
}
