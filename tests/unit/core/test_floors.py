"""Floors: which are in force on a card, who is refused, who waits, and what is said of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.policy.floors import Claim, in_force, room
from nvshare.core.settings import Cores
from tests.unit.core.core_scene import GIB, A, B, Scene, cores, only, said, to_clients
from tests.unit.core.test_leases import lease, release

claims = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=12)


def floors(scene: Scene, gpu: str = A) -> dict[str, int]:
    """In force on a card, by group."""
    groups = scene.scheduler.snapshot(scene.now).groups
    return {group.id: group.core_floor_in_force.get(gpu, 0) for group in groups}


def three(third: str = "50..") -> Scene:
    """Two that have all of a card between them, and a third that came later."""
    scene = Scene()
    for client, quota in enumerate(("50..", "50..60", third), start=1):
        scene.register(client, core_limit=quota)
    return scene


# --- the policy


def test_floors_come_into_force_in_the_order_of_arrival_each_as_a_whole() -> None:
    arrived = [Claim("a", 50), Claim("b", 60), Claim("c", 50), Claim("d", 1)]
    assert in_force(arrived) == {"a": 50, "b": 0, "c": 50, "d": 0}


def test_who_has_its_floor_keeps_it_whoever_came_before() -> None:
    arrived = [Claim("early", 60), Claim("holder", 50, held=50), Claim("other", 40, held=40)]
    assert in_force(arrived) == {"early": 0, "holder": 50, "other": 40}
    # AND a floor that is raised beyond the room stays as it was, one that is lowered makes room
    arrived = [Claim("raised", 60, held=30), Claim("lowered", 20, held=50), Claim("new", 50)]
    assert in_force(arrived) == {"raised": 60, "lowered": 20, "new": 0}


@given(claims)
def test_floors_in_force_never_exceed_a_card_and_none_waits_for_room_that_is_there(
    wishes: list[tuple[int, int]],
) -> None:
    # GIVEN claims of which some are in force already
    held: dict[str, int] = {}
    for round_ in range(2):
        arrived = [Claim(str(number), wish[round_], held.get(str(number), 0)) for number, wish in enumerate(wishes)]
        after = in_force(arrived)
        left = 100 - sum(after.values())
        assert left >= 0
        for claim in arrived:
            assert min(claim.held, claim.floor) <= after[claim.group] <= claim.floor
            assert after[claim.group] == claim.floor or claim.floor - after[claim.group] > left
            assert room(after, claim.group) == left + after[claim.group]
        held = after


# --- operators


def test_a_floor_beyond_the_card_is_refused_with_the_names_of_those_who_hold_them() -> None:
    scene = three("100")
    event = e.LimitsChanged(scene.now, "process:3", mem_limit=GIB, core_limit=cores("50.."))
    said_why = (
        "50% of GPU GPU-a cannot be guaranteed to process 3: process 1 has 50%, process 2 has 50%, "
        "which leaves 0% of 100%; guarantee less, or lower or end one of these first"
    )
    assert scene.scheduler.why_unchanged(event) == said_why
    # WHEN it is sent all the same THEN nothing changes
    answer = scene.send(event)
    assert said(answer) == [f"Limits unchanged: {said_why}"]
    assert to_clients(answer) == []
    group = scene.scheduler.snapshot(0.0).groups[2]
    assert (group.core_floor, group.mem_limit) == (0, None)
    # AND what fits is taken: a cap, and a floor where one made room
    scene.limit("process:3", core_limit=30)
    scene.limit("process:2", core_limit="30..60")
    assert scene.scheduler.why_unchanged(e.LimitsChanged(scene.now, "process:3", core_limit=cores("20..30"))) is None
    scene.limit("process:3", core_limit="20..30")
    assert floors(scene) == {"process:1": 50, "process:2": 30, "process:3": 20}


def test_a_floor_counts_only_on_the_cards_where_its_group_is() -> None:
    scene = Scene(gpus=(A, B))
    scene.register(1, A, core_limit="80..")
    scene.register(2, B, core_limit="80..")
    assert (floors(scene, A), floors(scene, B)) == (
        {"process:1": 80, "process:2": 0},
        {"process:1": 0, "process:2": 80},
    )
    # WHEN one of them comes to the other card as well THEN it is guaranteed there what is left: nothing
    answer = scene.attach(1, B)
    assert floors(scene, B) == {"process:1": 0, "process:2": 80}
    assert [line for line in said(answer, c.Level.WARN) if "GPU-b" in line]
    refused = scene.scheduler.why_unchanged(e.LimitsChanged(scene.now, "process:1", core_limit=cores("70..")))
    assert "70% of GPU GPU-b" in str(refused)


def test_what_is_lowered_or_taken_back_is_never_refused() -> None:
    scene = three()
    for quota in ("50..", "40..70", "10.."):
        assert scene.scheduler.why_unchanged(e.LimitsChanged(0.0, "process:1", core_limit=cores(quota))) is None
    scene.limit("process:3", core_limit=10)
    scene.limit("process:3", clear=frozenset({"core_limit"}))
    assert floors(scene) == {"process:1": 50, "process:2": 50, "process:3": 0}


def test_the_log_says_what_is_guaranteed_where_that_changed() -> None:
    scene = Scene()
    scene.register(1, core_limit="20..30")
    changed = "Compute limit changed for process 1: "
    assert said(scene.limit("process:1", core_limit="20..80")) == [f"{changed}30% -> 80%"]
    assert said(scene.limit("process:1", core_limit="30..50")) == [f"{changed}80% -> 50%, guaranteed 20% -> 30%"]
    answer = scene.limit("process:1", core_limit="40..50")
    assert said(answer) == [f"{changed}50% -> 50%, guaranteed 30% -> 40%"]
    assert only(answer, c.SetCoreLimit) == []  # a client knows its cap only


@pytest.mark.parametrize("order", list(itertools.permutations(["register", "operator", "annotation"])))
def test_a_quota_hides_the_whole_of_the_one_below_it_whatever_the_order(order: tuple[str, ...]) -> None:
    scene = Scene()
    pod = e.Pod("one", "ns", "trainer", cores=cores("30..60"))
    steps: dict[str, Callable[[], object]] = {
        "register": lambda: scene.register(1, group="pod:one", core_limit="20.."),
        "operator": lambda: scene.limit("pod:one", core_limit=40),
        "annotation": lambda: scene.send(e.PodSeen(scene.now, pod)),
    }
    for step in order:
        steps[step]()
    steps["operator"]()  # before the group was there it changed nothing
    story = [scene.scheduler._node.groups["pod:one"].cores]
    scene.send(e.PodSeen(scene.now, e.Pod("one", "ns", "trainer")))
    story.append(scene.scheduler._node.groups["pod:one"].cores)
    scene.limit("pod:one", clear=frozenset({"core_limit"}))
    story.append(scene.scheduler._node.groups["pod:one"].cores)
    assert story == [Cores(30, 60), Cores(0, 40), Cores(20, 100)]
    assert floors(scene) == {"pod:one": 20}


# --- who arrives


def test_a_floor_that_finds_no_room_waits_and_the_log_says_for_whom() -> None:
    scene = Scene()
    scene.register(1, core_limit="50..")
    scene.register(2, core_limit="40..")
    answer = scene.register(3, core_limit="30..")
    assert said(answer, c.Level.WARN) == [
        "30% of GPU GPU-a is not guaranteed to process 3 yet, only 0%: process 1 has 50%, process 2 has 40%, "
        "and floors add up to 100% at most; it is as soon as there is room: lower or end one of these"
    ]
    assert floors(scene)["process:3"] == 0
    assert scene.scheduler._node.groups["process:3"].floor_on(A) == 0
    # WHEN others come THEN it is not said again
    assert said(scene.register(4), c.Level.WARN) == []
    # WHEN one leaves THEN it comes into force by itself
    answer = scene.gone(1)
    assert floors(scene)["process:3"] == 30
    assert "30% of GPU GPU-a is guaranteed to process 3 from now on" in said(answer)


def test_those_who_wait_are_served_in_the_order_of_arrival() -> None:
    scene = three()
    scene.register(4, core_limit="50..")
    scene.gone(1)
    assert floors(scene) == {"process:2": 50, "process:3": 50, "process:4": 0}
    scene.limit("process:2", core_limit=60)
    assert floors(scene) == {"process:2": 0, "process:3": 50, "process:4": 50}


def test_a_group_has_its_floor_once_however_many_processes_it_has() -> None:
    scene = Scene()
    for client in (1, 2, 3):
        scene.register(client, group="run:7", core_limit="60..")
    assert floors(scene) == {"run:7": 60}
    for client in (1, 2):
        scene.gone(client)
    assert floors(scene) == {"run:7": 60}


def test_an_annotation_that_finds_no_room_keeps_what_was_guaranteed() -> None:
    scene = Scene()
    scene.register(1, group="pod:one")
    scene.register(2, core_limit="60..")
    pod = e.Pod("one", "ns", "trainer", cores=cores("30.."))
    scene.send(e.PodSeen(scene.now, pod))
    assert floors(scene) == {"pod:one": 30, "process:2": 60}
    answer = scene.send(e.PodSeen(scene.now, e.Pod("one", "ns", "trainer", cores=cores("50..80"))))
    assert floors(scene) == {"pod:one": 30, "process:2": 60}
    assert "50% of GPU GPU-a is not guaranteed to pod ns/trainer yet, only 30%" in said(answer, c.Level.WARN)[0]
    scene.gone(2)
    assert floors(scene) == {"pod:one": 50}
    # AND an operator's floor below an annotation is accepted, for it is not in force
    scene.register(3, core_limit="50..")
    assert scene.scheduler.why_unchanged(e.LimitsChanged(0.0, "pod:one", core_limit=cores("90.."))) is None


def test_what_was_set_before_a_restart_waits_for_room_instead_of_being_lost() -> None:
    scene = three("100")
    scene.limit("process:3", core_limit="50..", mem_limit=GIB, kept=True)
    group = scene.scheduler.snapshot(0.0).groups[2]
    assert (group.core_floor, group.core_floor_in_force, group.mem_limit) == (50, {A: 0}, GIB)


# --- leases


def test_a_lease_goes_where_its_floor_has_room() -> None:
    scene = Scene(gpus=(A, B))
    scene.register(1, A, core_limit="60..")
    assert lease(scene, "one", cores="50..") == (B,)
    assert lease(scene, "two", cores="50..") == (B,)
    assert floors(scene, B) == {"process:1": 0, "lease:one": 50, "lease:two": 50}
    assert lease(scene, "three", cores="50..") is None
    assert lease(scene, "four", cores=60, among=(A,)) is None  # not overtaken
    # WHEN the floor on the other card is lowered THEN who waited gets it
    answer = scene.limit("process:1", core_limit="40..")
    assert [granted.lease for granted in only(answer, c.LeaseGranted)] == ["three"]
    assert floors(scene, A) == {"process:1": 40, "lease:one": 0, "lease:two": 0, "lease:three": 50}


def test_a_lease_reserves_its_floor_or_else_its_cap() -> None:
    scene = Scene()
    assert [lease(scene, str(number), cores="25..") for number in range(5)] == [(A,)] * 4 + [None]
    assert release(scene, "0") == ["4"]
    for number in range(1, 5):
        release(scene, str(number))
    assert floors(scene) == {}
    assert lease(scene, "capped", cores=80) == (A,)
    assert lease(scene, "both", cores="20..90") == (A,)
    assert lease(scene, "more", cores=1) is None


def test_a_lease_that_was_held_is_not_lost_because_others_have_floors_now() -> None:
    scene = Scene()
    scene.register(1, core_limit="80..")
    assert lease(scene, "mine", cores="30..", held=(A,)) == (A,)
    assert floors(scene) == {"process:1": 80, "lease:mine": 0}
    scene.gone(1)
    assert floors(scene) == {"lease:mine": 30}


def test_a_lease_with_a_wrong_floor_is_refused() -> None:
    assert "between 1% and 100%, the floor at most the cap" in str(lease(Scene(), "x", cores=Cores(60, 30)))


# --- any sequence

number = st.integers(0, 255)
QUOTAS = ("30..", "60..", "100..", "50..80", "10", "1..1", None)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(number, number, number), max_size=40))
def test_no_sequence_guarantees_more_than_a_card(steps: list[tuple[int, int, int]]) -> None:
    scene = Scene(gpus=(A, B))
    for what, a, b in steps:
        client, quota = 1 + a % 6, QUOTAS[b % len(QUOTAS)]
        here = {int(view.id, 16) for view in scene.scheduler.snapshot(0.0).clients}
        groups = [group.id for group in scene.scheduler.snapshot(0.0).groups]
        leases = [view.id for view in scene.scheduler.snapshot(0.0).leases]
        if what % 5 == 0 and client not in here:
            gpus = ((A,), (B,), (A, B))[a % 3]
            scene.register(client, *gpus, group=("", "pod:one")[a % 2], core_limit=quota)
        elif what % 5 == 1 and client in here:
            scene.gone(client)
        elif what % 5 == 2 and groups:
            scene.limit(groups[a % len(groups)], core_limit=quota, kept=b % 2 == 0)
        elif what % 5 == 3:
            lease(scene, f"{what}-{a}-{b}", cores=quota)
        elif leases:
            release(scene, leases[a % len(leases)], "a context" if b % 4 == 0 else "")
        for gpu in (A, B):
            assert sum(floors(scene, gpu).values()) <= 100


@pytest.mark.parametrize("quota", [0, 101])
def test_wrong_caps_are_ignored_in_the_words_as_before(quota: int) -> None:
    (line,) = said(Scene().register(1, core_limit=quota), c.Level.WARN)
    assert line.startswith(f"Ignored compute limit {quota}% for process 1: between 1% and 100%")
