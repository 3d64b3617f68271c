"""What a pod should have, from its object."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from nvshare.config import CORES_ANNOTATION, FLOOR_ANNOTATION, MEMORY_ANNOTATION
from nvshare.kube.pods.desired import KEEP, MIB, NotAPod, Wanted, desired, is_finished, quantity, uid_of, without_room

UID = "3f2a9c1e-7b54-4d0a-9e61-0c5d1f7a8b22"
STATIC = "0123456789abcdef0123456789abcdef"
GIB = 1 << 30


def pod(annotations=None, containers=(), starters=(), **metadata):
    return {
        "metadata": {"uid": UID, "namespace": "default", "name": "trainer", "annotations": annotations, **metadata},
        "spec": {"containers": list(containers), "initContainers": list(starters)},
    }


def container(gpumem=None, gpu=None, **fields):
    limits = {"nvshare.com/gpumem": gpumem, "nvshare.com/gpu": gpu}
    return {"resources": {"limits": {name: value for name, value in limits.items() if value is not None}}, **fields}


def test_pod_without_anything_has_no_quota():
    assert desired(pod()) == (Wanted(UID, "default", "trainer"), ())
    assert desired(pod())[0].entry() == {
        "uid": UID, "namespace": "default", "name": "trainer", "mem": None, "cores": None,
        "core_floor": None,
    }  # fmt: skip


def test_annotations_are_read_by_the_one_parser_of_sizes():
    wanted, complaints = desired(pod({MEMORY_ANNOTATION: "4Gi", CORES_ANNOTATION: "40"}))
    assert (wanted.mem, wanted.cores, complaints) == (4 * GIB, 40, ())
    assert desired(pod({MEMORY_ANNOTATION: "4G"}))[0].mem == 4 * 10**9


@pytest.mark.parametrize("value", ["1", "30", "100"])
def test_cores_are_whole_percents(value):
    assert desired(pod({CORES_ANNOTATION: value}))[0].cores == int(value)


@pytest.mark.parametrize(
    "value", ["", "0", "101", "-1", "30%", " 30", "30.5", "1e1", "0x10", "٣٠", "1_0", "many", 30, None, ["30"], {}]
)
def test_other_cores_are_refused_with_the_allowed_form(value):
    if value is None:
        assert desired(pod({CORES_ANNOTATION: None}))[0].cores is None
        return
    wanted, (complaint,) = desired(pod({CORES_ANNOTATION: value}))
    assert wanted.cores is KEEP
    assert complaint.annotation == CORES_ANNOTATION
    assert "1 to 100" in complaint.text or "too long to be" in complaint.text


def test_request_is_the_floor_and_limit_the_cap():
    wanted, complaints = desired(pod({CORES_ANNOTATION: "60", FLOOR_ANNOTATION: "30"}))
    assert (wanted.cores, wanted.floor, complaints) == (60, 30, ())
    assert (wanted.entry()["cores"], wanted.entry()["core_floor"]) == (60, 30)
    assert wanted.uses_gpu
    # AND each goes by itself
    alone, _ = desired(pod({FLOOR_ANNOTATION: "30"}), wanted)
    assert (alone.cores, alone.floor, alone.uses_gpu) == (None, 30, True)
    assert desired(pod({CORES_ANNOTATION: "60"}), wanted)[0].floor is None


@pytest.mark.parametrize("value", ["0", "101", "30%", "20..30", "much"])
def test_request_that_makes_no_sense_leaves_the_one_before(value):
    before = Wanted(UID, "default", "trainer", cores=60, floor=30)
    wanted, (complaint,) = desired(pod({CORES_ANNOTATION: "50", FLOOR_ANNOTATION: value}), before)
    assert (wanted.cores, wanted.floor) == (50, 30)
    assert complaint.text.startswith(f"{FLOOR_ANNOTATION}: ")
    assert "from 1 to 100" in complaint.text
    unknown, _ = desired(pod({FLOOR_ANNOTATION: value}))
    assert "core_floor" not in unknown.entry()


def test_request_above_the_limit_is_ignored_and_the_complaint_names_both():
    wanted, (complaint,) = desired(pod({CORES_ANNOTATION: "40", FLOOR_ANNOTATION: "60"}))
    assert (wanted.cores, wanted.floor) == (40, None)
    assert complaint.text == f"{FLOOR_ANNOTATION}: 60 is above {CORES_ANNOTATION}, which is 40; nothing is guaranteed"
    assert complaint.annotation == FLOOR_ANNOTATION


def test_complaint_about_room_is_the_same_whoever_holds_it():
    wanted, _ = desired(pod({FLOOR_ANNOTATION: "60"}))
    first, second = (without_room(wanted, reason) for reason in ("a has 50%", "b has 70%"))
    assert first.text == f"{FLOOR_ANNOTATION}: a has 50%"
    assert (first.uid, first.annotation, first.value) == (UID, FLOOR_ANNOTATION, "60 without room")
    assert replace(first, text=second.text) == second


@pytest.mark.parametrize("value", ["", "0", "-4Gi", "4Xi", "lots", "99999Pi"])
def test_sizes_that_make_no_sense_are_refused_with_the_allowed_forms(value):
    wanted, (complaint,) = desired(pod({MEMORY_ANNOTATION: value}))
    assert wanted.mem is KEEP
    assert "4GiB" in complaint.text


def test_invalid_value_leaves_what_was_in_force_and_the_other_quota_alone():
    before = Wanted(UID, "default", "trainer", mem=GIB, cores=30)
    wanted, complaints = desired(pod({MEMORY_ANNOTATION: "much", CORES_ANNOTATION: "50"}), before)
    assert (wanted.mem, wanted.cores) == (GIB, 50)
    assert len(complaints) == 1
    assert desired(pod({MEMORY_ANNOTATION: "2Gi"}), wanted)[0].mem == 2 * GIB
    assert desired(pod(), wanted)[0].mem is None


def test_what_is_kept_is_not_in_the_message():
    wanted, _ = desired(pod({MEMORY_ANNOTATION: "much"}))
    assert "mem" not in wanted.entry()
    assert wanted.entry()["cores"] is None


def test_annotation_of_megabytes_is_cut_in_the_complaint():
    _, (complaint,) = desired(pod({MEMORY_ANNOTATION: "9" * 5_000_000}))
    assert len(complaint.text) < 300
    assert len(complaint.value) < 300
    assert "5000000 characters" in complaint.text


def test_complaint_has_no_control_characters():
    _, (complaint,) = desired(pod({CORES_ANNOTATION: "\x1b[31m\n30"}))
    assert complaint.text.isprintable()
    _, (complaint,) = desired(pod({MEMORY_ANNOTATION: "\x1b[31m\n30"}))
    assert complaint.text.isprintable()


@pytest.mark.parametrize(
    ("text", "value"),
    [("4000", 4000), ("4k", 4000), ("4Ki", 4096), ("1.5k", 1500), ("2e3", 2000), ("1500m", Fraction(3, 2)), ("0", 0)],
)
def test_quantities_are_read_as_the_api_writes_them(text, value):
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "k", "-1", "1kk", "1X", "١", "1e999", "9" * 30])
def test_what_is_no_quantity_is_none(text):
    assert quantity(text) is None


def test_gpumem_is_summed_as_kubernetes_does():
    assert desired(pod(containers=[container("1024"), container("4k")]))[0].gpumem == 5024 * MIB
    assert desired(pod(containers=[container("100")], starters=[container("300")]))[0].gpumem == 300 * MIB
    beside = container("300", restartPolicy="Always")
    assert desired(pod(containers=[container("100")], starters=[beside]))[0].gpumem == 400 * MIB
    assert desired(pod(containers=[container()]))[0].gpumem is None
    assert desired(pod(containers=[container("99999999999999")]))[0].gpumem is None


def test_who_uses_a_gpu_is_known_by_resource_or_annotation():
    assert desired(pod(containers=[container(gpu="1")]))[0].uses_gpu
    assert desired(pod({CORES_ANNOTATION: "30"}))[0].uses_gpu
    assert not desired(pod(containers=[container()]))[0].uses_gpu


def test_static_pod_is_known_by_the_uid_that_the_node_has():
    of_a_node = [{"kind": "Node", "name": "node"}]
    assert uid_of(pod({"kubernetes.io/config.mirror": STATIC}, ownerReferences=of_a_node)) == STATIC


@pytest.mark.parametrize("owners", [None, [], "Node", ["Node"], [{"kind": "ReplicaSet"}]])
def test_pod_of_somebody_else_passes_for_no_static_pod(owners):
    assert uid_of(pod({"kubernetes.io/config.mirror": STATIC}, ownerReferences=owners)) == UID


def test_mirror_annotation_never_leads_to_an_ordinary_pod():
    other = "00000000-7b54-4d0a-9e61-0c5d1f7a8b22"
    assert uid_of(pod({"kubernetes.io/config.mirror": other})) == UID
    assert desired(pod({"kubernetes.io/config.mirror": other}))[0].uid == UID


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pod_that_has_ended_for_good(phase):
    assert is_finished({**pod(), "status": {"phase": phase}})
    assert not is_finished({**pod(), "status": {"phase": "Running"}})
    assert not is_finished(pod())


@pytest.mark.parametrize(
    "thing",
    [
        {},
        {"metadata": None},
        {"metadata": []},
        pod(uid=None),
        pod(name="../../etc"),
        pod(namespace=7),
        pod(name="x" * 300),
    ],
)
def test_what_cannot_be_a_pod_is_said_to_be_none(thing):
    with pytest.raises(NotAPod):
        desired(thing)


@pytest.mark.parametrize("spec", [None, [], {"containers": 7}, {"containers": [7, None, {"resources": []}]}])
def test_odd_specs_do_no_harm(spec):
    assert desired({**pod(), "spec": spec})[0].gpumem is None
