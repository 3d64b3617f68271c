"""The policy: which devices a container had best get."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshare.kube.plugin.placement import PACK, SPREAD, CannotPlace, Request, Surroundings, choose
from nvshare.kube.plugin.state import Gpu, Node, Picture, PodUse, device_id, uuid_of

PER_GPU = 4
GIB = 1024  # MiB


def node(count: int = 3, lost: tuple[int, ...] = ()) -> Node:
    return Node(tuple(Gpu(f"GPU-{index}", 16 * GIB, index not in lost) for index in range(count)), PER_GPU)


def used(*devices: str, name: str = "default/other", memory: int = 0) -> PodUse:
    return PodUse(name, devices, tuple(f"m{number}" for number in range(memory)))


def request(around: Surroundings, size: int = 1, **options: object) -> Request:
    """What a kubelet would ask: all that is healthy and that nobody has."""
    available = tuple(
        device for device, healthy in around.node.devices() if healthy and device not in around.picture.in_use
    )
    return Request(available, size, **options)  # type: ignore[arg-type]


def cards(devices: list[str]) -> list[str]:
    return [uuid_of(device) for device in devices]


def test_the_least_loaded_card_is_preferred() -> None:
    around = Surroundings(node(), Picture((used("GPU-0__1", "GPU-0__2", "GPU-1__1", "GPU-2__1", "GPU-2__2"),)))
    assert cards(choose(request(around), around)) == ["GPU-1"]


def test_pack_prefers_the_fullest_card_with_a_free_device() -> None:
    full = [device_id("GPU-0", number) for number in range(1, PER_GPU + 1)]
    around = Surroundings(node(), Picture((used(*full, "GPU-1__1", "GPU-2__1", "GPU-2__2"),)))
    assert cards(choose(request(around), around, PACK)) == ["GPU-2"]


def test_among_cards_with_as_many_tenants_the_one_with_less_to_do_is_preferred() -> None:
    around = Surroundings(node(), load={"GPU-0": (0.9, 0), "GPU-1": (0.1, 5), "GPU-2": (0.1, 3)})
    assert cards(choose(request(around), around)) == ["GPU-2"]
    assert cards(choose(request(around), around, PACK)) == ["GPU-0"]


def test_tenants_count_more_than_what_they_do() -> None:
    around = Surroundings(node(2), Picture((used("GPU-0__1"),)), {"GPU-1": (1.0, 1 << 40)})
    assert cards(choose(request(around), around)) == ["GPU-1"]


def test_without_any_difference_cards_go_by_uuid() -> None:
    assert choose(request(Surroundings(node())), Surroundings(node())) == ["GPU-0__1"]


def test_several_devices_of_one_container_are_on_different_cards() -> None:
    around = Surroundings(node(), Picture((used("GPU-0__1"),)))
    assert sorted(cards(choose(request(around, 3), around))) == ["GPU-0", "GPU-1", "GPU-2"]
    assert sorted(Counter(cards(choose(request(around, 5), around, PACK))).values()) == [1, 2, 2]


def test_required_devices_are_in_and_their_cards_are_not_taken_again() -> None:
    around = Surroundings(node())
    chosen = choose(request(around, 2, required=("GPU-0__3",)), around)
    assert chosen[0] == "GPU-0__3"
    assert cards(chosen) == ["GPU-0", "GPU-1"]


def test_what_the_kubelet_neither_offers_nor_lists_is_in_use() -> None:
    """An init container's devices are not listed."""
    around = Surroundings(node(2))
    asked = Request(tuple(device for device, _ in around.node.devices() if device not in ("GPU-0__1",)), 1)
    assert cards(choose(asked, around)) == ["GPU-1"]


def test_a_device_that_a_pod_has_is_not_preferred_although_the_kubelet_offers_it() -> None:
    around = Surroundings(node(1), Picture((used("GPU-0__1"),)))
    everything = Request(tuple(device for device, _ in around.node.devices()), 1)
    assert choose(everything, around) == ["GPU-0__2"]


def test_a_card_that_the_vendors_plugin_gave_away_counts_as_used() -> None:
    around = Surroundings(node(2), Picture((PodUse("default/whole", whole=("GPU-0",)),)))
    assert cards(choose(request(around), around)) == ["GPU-1"]


def test_a_card_with_room_for_the_promise_goes_before_a_less_loaded_one() -> None:
    crowded = used("GPU-0__1", memory=14 * GIB)
    two = (used("GPU-1__1", name="a/b"), used("GPU-1__2", name="a/c"))
    around = Surroundings(node(2), Picture((crowded, *two)))
    assert cards(choose(request(around, memory=4 * GIB), around)) == ["GPU-1"]
    assert cards(choose(request(around, memory=2 * GIB), around)) == ["GPU-0"]


def test_while_its_memory_is_not_known_a_container_is_taken_for_a_large_one() -> None:
    small, large = used("GPU-0__1", memory=10 * GIB), used("GPU-1__1", name="a/b", memory=8 * GIB)
    more = (used("GPU-2__1", name="a/c"), used("GPU-2__2", name="a/d"))
    around = Surroundings(node(3), Picture((small, large, *more)))
    assert cards(choose(request(around), around)) == ["GPU-2"]


def test_a_pods_own_promise_does_not_keep_it_from_a_card() -> None:
    own = used("GPU-0__1", name="default/mine", memory=10 * GIB)
    around = Surroundings(node(1), Picture((own,)))
    asked = request(around, memory=12 * GIB, pod="default/mine")
    assert cards(choose(asked, around)) == ["GPU-0"]


def test_more_than_there_is_cannot_be_placed() -> None:
    around = Surroundings(node(2))
    with pytest.raises(CannotPlace, match="9 devices are asked for, and 8 are free"):
        choose(request(around, 9), around)


def test_more_required_than_asked_for_cannot_be_placed() -> None:
    around = Surroundings(node(2))
    with pytest.raises(CannotPlace, match="2 devices are required, but only 1 asked for"):
        choose(request(around, 1, required=("GPU-0__1", "GPU-1__1")), around)


def test_devices_that_are_not_ours_and_cards_that_are_lost_are_never_chosen() -> None:
    around = Surroundings(node(2, lost=(0,)))
    asked = Request(("GPU-9__1", "GPU-0__1", "GPU-1__99", "GPU-1__x", "nonsense", "GPU-1__2"), 1)
    assert choose(asked, around) == ["GPU-1__2"]
    with pytest.raises(CannotPlace):
        choose(Request(asked.available, 2), around)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Surroundings, Request]:
    the_node = node(draw(st.integers(1, 5)), lost=tuple(draw(st.sets(st.integers(0, 4), max_size=2))))
    devices = [device for device, _ in the_node.devices()]
    taken = draw(st.lists(st.sampled_from(devices), unique=True))
    pods = tuple(used(device, name=f"n/{device}", memory=draw(st.integers(0, 40)) * 100) for device in taken)
    load = {gpu.uuid: (draw(st.floats(0, 2)), draw(st.integers(0, 9))) for gpu in the_node.gpus}
    around = Surroundings(the_node, Picture(pods), load)
    free = list(request(around).available)
    size = draw(st.integers(0, len(free)))
    required = draw(st.lists(st.sampled_from(free), unique=True, max_size=size)) if free else []
    available = draw(st.permutations(free))
    return around, Request(tuple(available), size, tuple(required), draw(st.sampled_from([None, 1000, 9000])))


@given(scenes(), st.sampled_from([SPREAD, PACK]))
def test_exactly_what_was_asked_for_is_chosen(scene: tuple[Surroundings, Request], policy: str) -> None:
    around, asked = scene
    chosen = choose(asked, around, policy)
    assert len(chosen) == len(set(chosen)) == asked.size
    assert set(asked.required) <= set(chosen) <= set(asked.available)
    assert choose(Request(asked.available[::-1], asked.size, asked.required, asked.memory), around, policy) == chosen


@given(scenes(), st.sampled_from([SPREAD, PACK]))
def test_no_card_is_taken_twice_while_another_has_a_free_device(
    scene: tuple[Surroundings, Request], policy: str
) -> None:
    around, asked = scene
    chosen = choose(asked, around, policy)
    own = Counter(cards(chosen))
    required = Counter(cards(list(asked.required)))
    left = Counter(cards([device for device in asked.available if device not in chosen]))
    for uuid, count in own.items():
        if count > required[uuid]:
            assert all(own[other] >= count - 1 for other in left)


@given(scenes())
def test_one_device_lands_on_a_card_with_the_fewest_tenants(scene: tuple[Surroundings, Request]) -> None:
    around, asked = scene
    unpromised = Picture(tuple(used(*pod.devices, name=pod.name) for pod in around.picture.pods))
    around = Surroundings(around.node, unpromised, around.load)
    free = {uuid_of(device) for device in asked.available}
    if not free:
        return
    (chosen,) = choose(Request(asked.available, 1), around)
    tenants = around.picture.tenants
    assert tenants[uuid_of(chosen)] == min(tenants[uuid] for uuid in free)


@given(scenes(), st.integers(1, 16 * GIB))
def test_where_a_card_has_room_for_the_promise_one_with_room_is_chosen(
    scene: tuple[Surroundings, Request], memory: int
) -> None:
    around, asked = scene
    room = {
        uuid: around.picture.room(around.node.by_uuid[uuid]) for uuid in {uuid_of(device) for device in asked.available}
    }
    if any(free >= memory for free in room.values()):
        (chosen,) = choose(Request(asked.available, 1, memory=memory), around)
        assert room[uuid_of(chosen)] >= memory
