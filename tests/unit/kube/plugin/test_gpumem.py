"""Memory as a resource: what is offered, and which promises are made."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshare.kube.api import deviceplugin_pb2 as api
from nvshare.kube.api.services import HEALTHY, MAX_MESSAGE
from nvshare.kube.plugin import gpumem
from nvshare.kube.plugin.state import Gpu, Node, Picture, PodUse, node_of

A, B = "GPU-a", "GPU-b"
NODE = Node((Gpu(A, 1000), Gpu(B, 1000)))


def pod(name: str, memory: int, *gpus: str) -> PodUse:
    return PodUse(name, tuple(f"{gpu}__{name}" for gpu in gpus), tuple(f"{name}{number}" for number in range(memory)))


def last(the_pod: PodUse, *listed: PodUse) -> gpumem.LastAllocation:
    return gpumem.LastAllocation(the_pod.memory or the_pod.devices, frozenset(one.name for one in (the_pod, *listed)))


def test_every_mib_of_every_card_is_a_device_with_a_name_of_its_own() -> None:
    ids = [name for name, _ in gpumem.devices(NODE)]
    assert len(ids) == len(set(ids)) == 2000
    assert all(map(gpumem.known(NODE), ids))


@pytest.mark.parametrize("name", ["", "0", "00000", "zzzz", "GPU-a__1", "00 0", "00é0", gpumem.memory_id(2000)])
def test_other_names_are_not_known(name: str) -> None:
    assert not gpumem.known(NODE)(name)


def test_the_ratio_and_the_declared_size_say_how_much_is_offered() -> None:
    cards = [(A, 1000 << 20, True), (B, 3000 << 20, True)]
    assert [gpu.memory for gpu in node_of(cards, 10, 1.5).gpus] == [1500, 4500]
    assert [gpu.memory for gpu in node_of(cards, 10, 2.0, card_memory=2000 << 20).gpus] == [2000, 4000]


def test_a_lost_card_takes_its_memory_along() -> None:
    node = Node((Gpu(A, 1000, healthy=False), Gpu(B, 600)))
    assert sum(healthy for _, healthy in gpumem.devices(node)) == 600


def test_the_largest_list_fits_into_what_a_kubelet_takes() -> None:
    node = Node(tuple(Gpu(f"GPU-{index}", 143_000) for index in range(8)))  # 8 x H200
    devices = [api.Device(ID=name, health=HEALTHY) for name, _ in gpumem.devices(node)]
    assert gpumem.MOST_OFFERED - 8 <= len(devices) <= gpumem.MOST_OFFERED
    assert api.ListAndWatchResponse(devices=devices).ByteSize() <= MAX_MESSAGE


def test_a_promise_that_no_card_can_keep_is_refused_with_what_is_left() -> None:
    picture = Picture((pod("x", 400, A), pod("y", 700, B)))
    gpumem.check_promise(600, None, NODE, picture)
    with pytest.raises(gpumem.NoRoom, match=r"601 MiB left to promise \(MiB left: 600 of GPU-a, 300 of GPU-b\)"):
        gpumem.check_promise(601, None, NODE, picture)


def test_lost_cards_promise_nothing() -> None:
    with pytest.raises(gpumem.NoRoom, match="no card is there"):
        gpumem.check_promise(1, None, Node((Gpu(A, 1000, healthy=False),)), Picture())


def test_a_pod_that_has_its_card_already_is_promised_memory_of_that_card_only() -> None:
    mine, other = pod("mine", 0, A), pod("x", 400, A)
    picture = Picture((mine, other))
    gpumem.check_promise(600, last(mine, other), NODE, picture)
    with pytest.raises(gpumem.NoRoom, match="GPU GPU-a has 600 of 1000 MiB left"):
        gpumem.check_promise(601, last(mine, other), NODE, picture)


def test_a_new_pod_is_not_taken_for_the_one_before_it() -> None:
    """The kubelet lists a pod before it asks for its devices."""
    before, full, new = pod("before", 0, A), pod("full", 1000, A), PodUse("new")
    gpumem.check_promise(900, last(before, full), NODE, Picture((before, full, new)))


def test_pods_that_left_since_do_not_matter() -> None:
    mine, left = pod("mine", 100), pod("left", 10, A)
    found = last(mine, left).pod(Picture((mine,)))
    assert found == mine


def test_a_pods_promise_counts_on_each_of_its_cards_once() -> None:
    picture = Picture((pod("both", 300, A, B), pod("one", 200, A, A)))
    assert [picture.promised(A), picture.promised(B)] == [500, 300]


def test_a_pod_that_must_wait_holds_nothing() -> None:
    first, second = pod("first", 700, A), pod("second", 700, A)
    both = Picture((first, second))
    for one in (first, second):
        with pytest.raises(gpumem.NoRoom):
            gpumem.check_cards(one, 0, NODE, both)
    gpumem.check_cards(first, 0, NODE, Picture((first, second), frozenset({"second"})))


def test_memory_without_a_card_is_no_promise() -> None:
    gpumem.check_cards(pod("lonely", 5000), 0, NODE, Picture((pod("lonely", 5000),)))


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 1200), st.booleans()), max_size=12))
def test_pods_that_were_let_in_never_exceed_a_card(arrivals: list[tuple[str, int, bool]]) -> None:
    """Whatever the order of the two resources, and whether or not the last allocation is still known."""
    here: list[PodUse] = []
    for number, (gpu, size, memory_first) in zip(itertools.count(), arrivals, strict=False):
        name = f"p{number}"
        try:
            if memory_first:
                gpumem.check_promise(size, None, NODE, Picture((*here, PodUse(name))))
            else:
                half = pod(name, 0, gpu)
                gpumem.check_promise(size, last(half, *here), NODE, Picture((*here, half)))
            whole = pod(name, size, gpu)
            gpumem.check_cards(whole, 0, NODE, Picture((*here, whole)))
        except gpumem.NoRoom:
            continue
        here.append(whole)
    picture = Picture(tuple(here))
    assert all(picture.promised(gpu.uuid) <= gpu.memory for gpu in NODE.gpus)
