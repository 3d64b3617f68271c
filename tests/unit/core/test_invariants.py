"""A checker that cannot fail proves nothing: each invariant is broken on purpose, from inside, and must be named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvshare.core import events as e
from nvshare.core.broken import InvariantBroken
from nvshare.core.events import HeldGpu
from nvshare.core.invariants import INVARIANTS
from nvshare.core.policy.membership import Opened
from nvshare.core.settings import Mode
from nvshare.core.state import HeldRequest, Lease, Node, Standing, WaitingRegistration
from tests.unit.core.core_scene import GIB, HOLDER, A, B, Scene, process_in


def busy_scene() -> Scene:
    """1 drains, 2 to 4 wait; all on card A, 4 on both."""
    scene = Scene(Mode.SERIAL, gpus=(A, B))
    for client in (1, 2, 3):
        scene.register(client, group="pod:x")
    scene.register(4, A, B)
    scene.allocate(1, GIB)
    for client in (1, 2, 3, 4):
        scene.request(client)
    scene.pass_time(30.0)
    return scene


def overcommit(node: Node) -> None:
    node.gpus[A].capacity = GIB - 1


def lose_bytes(node: Node) -> None:
    node.groups["pod:x"].allocated[A] -= 1


def grant_twice(node: Node) -> None:
    for number, client in ((91, 2), (92, 3)):
        attachment = node.clients[client].gpus[A]
        attachment.standing, attachment.grant, attachment.exclusive = Standing.RUNNING, number, True
        node.gpus[A].running[client] = attachment


def forget_standing(node: Node) -> None:
    node.clients[1].gpus[A].standing = Standing.IDLE


def leave_a_ghost(node: Node) -> None:
    node.gpus[A].attachments[99] = node.gpus[B].attachments[4]


def reuse_a_number(node: Node) -> None:
    for uuid in (A, B):
        attachment = node.clients[4].gpus[uuid]
        attachment.standing, attachment.grant = Standing.STUCK, 5
        node.gpus[uuid].stuck[4] = attachment


def hold_up_for_nothing(node: Node) -> None:
    attachment = node.clients[1].gpus[A]
    attachment.standing, attachment.grant = Standing.IDLE, 0
    del node.gpus[A].draining[1]


def overtake(node: Node) -> None:
    node.clients[2].ticket, node.clients[3].ticket = node.clients[3].ticket, node.clients[2].ticket


def starve(node: Node) -> None:
    node.clients[2].start_by = node.now - 1.0


def drain_for_ever(node: Node) -> None:
    attachment = node.clients[1].gpus[A]
    node.now += 100.0
    for client in node.clients.values():
        client.start_by = node.now
    assert attachment.standing is Standing.DRAINING


def split_the_gang(node: Node) -> None:
    gang = node.clients[4]
    gang.ticket = 0
    for gpu in node.gpus.values():
        gpu.queue.pop(4)
    a, b = gang.gpus.values()
    a.standing, a.grant = Standing.DRAINING, 7
    node.gpus[A].draining[4] = a
    b.standing, b.grant, b.exclusive = Standing.RUNNING, 8, True
    node.gpus[B].running[4] = b


def run_without_memory(node: Node) -> None:
    attachment = node.clients[2].gpus[A]
    attachment.standing, attachment.grant, attachment.exclusive, attachment.arrived = Standing.RUNNING, 91, True, False
    node.gpus[A].running[2] = attachment


def leave_unanswered(node: Node) -> None:
    gpu = node.gpus[A]
    gpu.pending.append(HeldRequest(node.clients[2].gpus[A], 1, GIB))


def move_nothing(node: Node) -> None:
    """2 is next on a card that is free, and nobody brings its memory."""
    hold_up_for_nothing(node)
    attachment = node.clients[2].gpus[A]
    attachment.allocated, attachment.target, attachment.arrived = 2 * GIB, GIB, False
    node.gpus[A].lacking[2] = attachment
    attachment.client.can_swap = True


def reserve_twice(node: Node) -> None:
    node.gpus[A].reserved.cores += 60


def guarantee_too_much(node: Node) -> None:
    for client in (1, 2):
        node.clients[client].group.floors[A] = 60


def keep_a_lease_waiting(node: Node) -> None:
    lease = Lease("x", "", HOLDER, None, None, 1, (A,))
    node.leases["x"] = node.lease_queue["x"] = lease


def wait_for_ever(node: Node) -> None:
    node.registering[9] = WaitingRegistration(registration(9), node.now)


def wait_for_nothing(node: Node) -> None:
    node.registering[1] = WaitingRegistration(registration(1), node.now + 1.0)


def hold_a_lease_for_nobody(node: Node) -> None:
    node.opened[77] = Opened(HOLDER, leases=("x",))


def registration(client: int) -> e.ClientRegistered:
    return e.ClientRegistered(0.0, client, process_in("pod:y", client), (HeldGpu(A),))


@pytest.mark.parametrize(
    ("name", "sabotage"),
    [
        ("card not overcommitted", overcommit),
        ("sums agree", lose_bytes),
        ("one exclusive holder", grant_twice),
        ("holders are resident", run_without_memory),
        ("requests are answered", leave_unanswered),
        ("memory moves", move_nothing),
        ("standings agree", forget_standing),
        ("gone clients own nothing", leave_a_ghost),
        ("grant numbers unique", reuse_a_number),
        ("work conserving", hold_up_for_nothing),
        ("first come, first served", overtake),
        ("nobody starves", starve),
        ("turns end", drain_for_ever),
        ("gangs drain together", split_the_gang),
        ("leases fit", reserve_twice),
        ("floors fit", guarantee_too_much),
        ("the first lease waits for room only", keep_a_lease_waiting),
        ("waits for facts end", wait_for_ever),
        ("waits for facts are needed", wait_for_nothing),
        ("owners agree", hold_a_lease_for_nobody),
    ],
)
def test_a_broken_invariant_is_found(name: str, sabotage: Callable[[Node], None]) -> None:
    scene = busy_scene()
    node = scene.scheduler._node

    sabotage(node)

    found = [broken for broken, check in INVARIANTS.items() if any(check(node, scene.scheduler._turns))]
    assert name in found
    with pytest.raises(InvariantBroken):
        scene.scheduler.validate()


def test_every_invariant_has_its_sabotage() -> None:
    parameters = next(mark for mark in test_a_broken_invariant_is_found.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {name for name, _ in parameters.args[1]} == set(INVARIANTS)


def test_a_broken_invariant_tells_the_recent_story() -> None:
    scene = busy_scene()
    scene.scheduler._node.gpus[A].capacity = 0

    with pytest.raises(
        InvariantBroken, match=r"(?s)card not overcommitted.*LockRequested\(now=0\.0, client=4.*-> Drop"
    ):
        scene.scheduler.validate()


def stuck_without_all_of_its_memory() -> Scene:
    """1, larger than the card, is stuck and next; a neighbour that cannot move memory has left room to it."""
    scene = Scene(Mode.SERIAL)
    scene.register(3)
    scene.allocate(3, 6 * GIB)
    scene.register(1, HeldGpu(A, 32 * GIB, 10 * GIB), can_swap=True, oversize=True)
    scene.request(1)
    scene.register(2)
    scene.request(2)
    scene.pass_time(41.0)
    assert scene.state(1) == "stuck"
    scene.request(1)
    scene.gone(3)
    return scene


def test_a_stuck_client_alone_on_its_card_is_told_to_bring_all_of_its_memory() -> None:
    scene = stuck_without_all_of_its_memory()
    scene.release(2)
    attachment = scene.scheduler._node.clients[1].gpus[A]
    for books in (attachment, attachment.gpu):
        books.held -= GIB
    attachment.target -= GIB

    with pytest.raises(InvariantBroken, match="memory moves"):
        scene.scheduler.validate()


def test_a_stuck_client_on_a_card_that_shrank_is_granted_when_enough_has_come() -> None:
    scene = stuck_without_all_of_its_memory()
    scene.outsiders(3 * GIB)
    scene.release(2)
    assert scene.memory[1, A].target > 13 * GIB
    assert scene.memory[1, A].resident < 13 * GIB

    scene.move(1, 3 * GIB)

    assert scene.state(1) == "running"
