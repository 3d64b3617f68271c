"""Leases: where they go, who waits for whom, and what is left of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.leases import GRACE
from tests.unit.core.core_scene import GIB, HOLDER, MIB, A, B, Scene, only, with_cores

CARDS = (A, B, "GPU-c", "GPU-d")


def lease(scene: Scene, name: str, **wish: Any) -> tuple[str, ...] | str | None:
    """Ask for a lease: its cards, why it was refused, or None while it waits."""
    return outcome(scene.send(e.LeaseRequested(scene.now, name, HOLDER, **with_cores(wish))), name)


def cards_of_lease(scene: Scene, name: str, **wish: Any) -> tuple[str, ...]:
    """Ask for a lease that is granted at once: its cards."""
    cards = lease(scene, name, **wish)
    assert isinstance(cards, tuple), cards
    return cards


def outcome(answer: list[c.Command], name: str) -> tuple[str, ...] | str | None:
    for command in answer:
        if isinstance(command, c.LeaseGranted | c.LeaseRefused) and command.lease == name:
            return command.gpus if isinstance(command, c.LeaseGranted) else command.reason
    return None


def release(scene: Scene, name: str, left: str = "") -> list[str]:
    """End a lease; who got one because of that."""
    answer = scene.send(e.LeaseReleased(scene.now, name, left))
    return [command.lease for command in only(answer, c.LeaseGranted)]


def view(scene: Scene, name: str) -> dict[str, Any]:
    return next(lease for lease in scene.scheduler.snapshot(scene.now).to_dict()["leases"] if lease["id"] == name)


def test_twelve_leases_on_four_cards_are_three_each() -> None:
    scene = Scene(gpus=CARDS)
    cards = [cards_of_lease(scene, str(number), mem=GIB, cores=25) for number in range(12)]
    assert sorted(cards) == sorted([(card,) for card in CARDS] * 3)


def test_the_least_loaded_card_is_taken_by_cores_then_bytes_then_leases_then_clients() -> None:
    scene = Scene(gpus=(A, B))
    scene.register(1, A)
    assert lease(scene, "away from the client") == (B,)
    assert lease(scene, "away from the lease") == (A,)
    assert lease(scene, "away from both", mem=GIB) == (B,)
    assert lease(scene, "away from bytes", cores=10) == (A,)
    assert lease(scene, "away from cores", cores=10) == (B,)


def test_reservations_never_exceed_a_card() -> None:
    scene = Scene(gpus=(A,))
    assert lease(scene, "one", cores=60) == (A,)
    assert lease(scene, "too much beside it", cores=50) is None
    # WHEN room is made THEN who waits gets it
    assert release(scene, "one") == ["too much beside it"]
    assert lease(scene, "half", cores=50, mem=10 * GIB) == (A,)
    assert lease(scene, "bytes", mem=10 * GIB) is None


def test_a_lease_reserves_the_context_that_its_process_will_make() -> None:
    scene = Scene(gpus=(A,), total=16 * GIB)
    scene.register(1)
    scene.context(1, GIB)
    assert [lease(scene, str(number), mem=7 * GIB) for number in range(3)] == [(A,), (A,), None]
    # AND one as large as the card is granted on an empty one, context or not
    assert release(scene, "0") == ["2"]
    release(scene, "1")
    release(scene, "2")
    assert lease(scene, "whole", mem=16 * GIB) == (A,)


def test_several_cards_are_different_ones() -> None:
    scene = Scene(gpus=CARDS)
    assert set(lease(scene, "four", count=4) or ()) == set(CARDS)
    assert "5 GPUs are asked for" in str(lease(scene, "five", count=5))


def test_only_the_cards_that_are_allowed_are_given() -> None:
    scene = Scene(gpus=CARDS)
    allowed = (B, "GPU-d")
    assert {lease(scene, str(number), among=allowed) for number in range(6)} == {(B,), ("GPU-d",)}


def test_what_can_never_be_is_refused_at_once() -> None:
    scene = Scene(gpus=(A, B))
    assert "largest GPU to choose from has" in str(lease(scene, "huge", mem=17 * GIB))
    assert "between 1% and 100%" in str(lease(scene, "cores", cores=101))
    assert "at least 1" in str(lease(scene, "none", count=0))
    assert "unknown GPU GPU-x" in str(lease(scene, "stranger", among=("GPU-x",)))
    assert "twice" in str(lease(scene, "double", among=(A, A)))
    assert "not a memory quota" in str(lease(scene, "zero", mem=0))
    assert scene.scheduler.snapshot(0.0).leases == ()


def test_who_waits_is_not_overtaken_on_its_cards() -> None:
    scene = Scene(gpus=(A, B))
    lease(scene, "a", cores=60, among=(A,))
    assert lease(scene, "large", cores=100, among=(A,)) is None
    # WHEN a smaller one comes that would fit beside, THEN it waits behind the large one; other cards stay open
    assert lease(scene, "small", cores=10, among=(A,)) is None
    assert lease(scene, "elsewhere", cores=10) == (B,)
    assert release(scene, "a") == ["large"]
    assert release(scene, "large") == ["small"]


def test_who_gives_up_waiting_lets_the_next_one_through() -> None:
    scene = Scene(gpus=(A,))
    lease(scene, "held", cores=60)
    lease(scene, "large", cores=100)
    assert lease(scene, "small", cores=10) is None
    assert release(scene, "large") == ["small"]


def test_a_lease_is_a_group_with_its_quotas() -> None:
    scene = Scene()
    lease(scene, "x", mem=GIB, cores=30, label="trial")
    answer = scene.register(1, group="lease:x")
    assert only(answer, c.SetLimit)[0].mem_limit == GIB
    assert only(answer, c.SetCoreLimit)[0].percent == 30
    # WHEN it asks for more THEN the lease knows what was refused
    scene.allocate(1, GIB + MIB)
    assert view(scene, "x")["denied"] == {"gpu": A, "bytes": GIB + MIB, "limit": GIB, "reason": "quota"}


def test_the_place_of_what_is_left_is_kept_until_it_is_gone() -> None:
    scene = Scene()
    lease(scene, "x", cores=80)
    lease(scene, "next", cores=50)
    assert release(scene, "x", "process 7 still runs") == []
    assert view(scene, "x")["state"] == "quarantined"
    assert view(scene, "x")["reason"] == "process 7 still runs"
    assert release(scene, "x") == ["next"]
    assert [lease.id for lease in scene.scheduler.snapshot(0.0).leases] == ["next"]


def test_a_lease_is_held_on_after_a_restart_unless_others_have_its_place() -> None:
    scene = Scene(gpus=(A, B))
    assert lease(scene, "mine", cores=60, held=(B,)) == (B,)
    assert "is lost" in str(lease(scene, "late", cores=60, held=(B,)))
    assert lease(scene, "free", cores=60, held=(A,)) == (A,)


def test_who_claims_to_have_held_a_place_does_not_overtake_who_waits_for_it() -> None:
    scene = Scene()
    lease(scene, "one", cores=60)
    lease(scene, "waits", cores=60)
    assert "is lost" in str(lease(scene, "claims", cores=10, held=(A,)))


def test_holders_of_an_earlier_scheduler_come_back_before_others_are_served() -> None:
    scene = Scene()
    scene.send(e.LeasesAwaited(0.0))
    # WHEN a newcomer is faster than the holder of a place THEN it waits, and the holder has its place again
    assert lease(scene, "newcomer", cores=60) is None
    assert lease(scene, "mine", cores=30, held=(A,)) == (A,)
    # AND what is impossible is refused at once
    assert "at least 1" in str(lease(scene, "none", count=0))
    # AND the newcomer is served when the time of the others is over
    answer = scene.pass_time(GRACE)
    assert (outcome(answer, "newcomer"), only(answer, c.LeasesAwaitedNoMore)) == ((A,), [c.LeasesAwaitedNoMore()])
    assert scene.wake is None


def test_who_comes_back_too_late_is_not_awaited() -> None:
    scene = Scene()
    scene.send(e.LeasesAwaited(0.0))
    assert lease(scene, "newcomer", cores=60) is None
    scene.pass_time(GRACE)
    assert "is lost" in str(lease(scene, "late", cores=60, held=(A,)))


number = st.integers(0, 255)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(number, number, number), max_size=60))
def test_any_sequence_of_leases_keeps_every_invariant_and_serves_all(steps: list[tuple[int, int, int]]) -> None:
    scene = Scene(gpus=CARDS)
    names: list[str] = []
    for order, (what, a, b) in enumerate(steps):
        if what % 3 and names:
            name = names[a % len(names)]
            left = "a context" if b % 4 == 0 else ""
            release(scene, name, left)
            names = [lease.id for lease in scene.scheduler.snapshot(0.0).leases]
        elif what % 7 == 0:
            scene.register(order + 1, CARDS[a % 4])
            scene.context(order + 1, b * 8 * MIB, CARDS[a % 4])
        else:
            among = tuple(card for bit, card in enumerate(CARDS) if a >> bit & 1) or None
            mem = None if b % 3 == 0 else b * 64 * MIB + 1
            cores = None if b % 5 == 0 else a % 100 + 1
            if not isinstance(lease(scene, str(order), mem=mem, cores=cores, count=b % 3 + 1, among=among), str):
                names.append(str(order))
    # WHEN all who hold one end, again and again, THEN all are served and nothing stays reserved
    for _ in range(len(steps) + 1):
        held = [lease.id for lease in scene.scheduler.snapshot(0.0).leases if lease.state != "waiting"]
        for name in held:
            release(scene, name)
    assert scene.scheduler.snapshot(0.0).leases == ()
    assert all(gpu.reserved.leases == 0 for gpu in scene.scheduler._node.gpus.values())
