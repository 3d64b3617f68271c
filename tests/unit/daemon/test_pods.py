"""What the watcher of pods tells the daemon, with a clock turned by hand and pods given to processes by hand."""

from __future__ import annotations

import json
import os

import pytest

from nvshare.core.awaited_facts import POD_WAIT
from nvshare.core.events import Event
from nvshare.daemon import pods
from nvshare.wire import messages as wire
from tests.unit.daemon.daemon_node import GIB, GPUS, OTHER, UID, Node, pod, told


@pytest.fixture
def node(in_memory, monkeypatch):
    return Node(in_memory, monkeypatch)


def test_quotas_reach_the_processes_of_the_pod(node):
    task, watcher = node.task(7, UID), node.connect()
    assert told(node, watcher, pods=[pod(mem=GIB, cores=30)]) == {"ok": True, "pods": 1}
    assert task.said(wire.UpdateCoreLimit)[-1].percent == 30
    assert task.said(wire.UpdateLimit)[-1].mem_limit == GIB
    # AND null takes them away, while an absent one stays
    told(node, watcher, pods=[pod(cores=None)])
    assert task.said(wire.UpdateCoreLimit)[-1].percent == 100
    assert node.groups()[f"pod:{UID}"].mem_limit == GIB
    told(node, watcher, pods=[pod(mem=None, cores=None)])
    assert node.groups()[f"pod:{UID}"].mem_limit is None


def floor_of(node, uid=UID):
    group = node.groups()[f"pod:{uid}"]
    return group.core_floor, group.core_limit


def test_floor_and_cap_of_a_pod_change_each_by_itself(node):
    task, watcher = node.task(7, UID), node.connect()
    told(node, watcher, pods=[pod(cores=60, core_floor=30)])
    assert floor_of(node) == (30, 60)
    told(node, watcher, pods=[pod(cores=80)])
    assert (floor_of(node), task.said(wire.UpdateCoreLimit)[-1].percent) == ((30, 80), 80)
    told(node, watcher, pods=[pod(cores=None)])
    assert floor_of(node) == (30, 100)
    told(node, watcher, pods=[pod(cores=20)])  # below the floor, which the watcher does not know now
    assert floor_of(node) == (0, 20)
    told(node, watcher, pods=[pod(cores=None, core_floor=None)])
    assert (floor_of(node), node.groups()[f"pod:{UID}"].core_limit_from) == ((0, 100), None)


def test_pods_without_their_floor_are_named_to_the_watcher_until_they_have_it(node):
    other, watcher = node.task(8, OTHER), node.connect()
    assert told(node, watcher, pods=[pod(OTHER, "other", core_floor=60)]) == {"ok": True, "pods": 1}
    node.task(7, UID)
    reason = told(node, watcher, pods=[pod(core_floor=50)])["lack_room"][UID]
    assert reason.startswith("50% of GPU ")
    assert "is not guaranteed to pod default/trainer yet, only 0%: pod default/other has 60%" in reason
    assert UID in told(node, watcher)["lack_room"]
    # WHEN the other one leaves
    other.connection.connection_lost(None)
    assert told(node, watcher) == {"ok": True, "pods": 2}
    assert node.groups()[f"pod:{UID}"].core_floor_in_force == {GPUS[0]: 50}


def test_values_stay_when_the_watcher_goes_away(node):
    watcher = node.connect()
    told(node, watcher, pods=[pod(mem=GIB)], whole=True)
    watcher.connection.connection_lost(None)
    assert node.groups()[f"pod:{UID}"].mem_limit == GIB


def test_whole_list_in_parts_closes_only_who_is_in_none_of_them(node):
    watcher = node.connect()
    first = [pod(f"{number:032x}", f"pod-{number}") for number in range(10)]
    told(node, watcher, pods=first, whole=True)
    assert len(node.groups()) == 10
    # WHEN a part of the next list has come THEN all are still there
    told(node, watcher, pods=first[:3], whole=True, more=True)
    assert len(node.groups()) == 10
    # AND when its last part has come only those that were in it
    told(node, watcher, pods=first[3:5], whole=True)
    assert sorted(node.groups()) == sorted(f"pod:{number:032x}" for number in range(5))
    # AND a list is whole by itself again
    told(node, watcher, pods=first[:1], whole=True)
    assert len(node.groups()) == 1


def test_list_that_breaks_off_closes_nobody(node):
    watcher = node.connect()
    everybody = [pod(f"{number:032x}", f"pod-{number}") for number in range(4)]
    told(node, watcher, pods=everybody, whole=True)
    told(node, watcher, pods=everybody[:1], whole=True, more=True)
    watcher.connection.connection_lost(None)
    assert len(node.groups()) == 4


def test_pods_that_are_gone_are_closed(node):
    watcher = node.connect()
    told(node, watcher, pods=[pod(), pod(OTHER, "other")])
    told(node, watcher, gone=[UID, "1111"])
    assert list(node.groups()) == [f"pod:{OTHER}"]


def test_many_pods_are_carried_out_in_small_steps_with_others_in_between(node):
    watcher, task = node.connect(), node.task(7, None)
    many = [pod(f"{number:032x}", f"pod-{number}", cores=30) for number in range(100)]
    watcher.tell(op="pods", pods=many, whole=True)
    # THEN after the message came next to nothing is done, and there is no answer yet
    assert not [group for group in node.groups() if group.startswith("pod:")]
    assert not watcher.said()
    # AND others are served meanwhile
    task.send(wire.ReqLock(0))
    assert task.said(wire.LockOk)
    node.loop.advance(0.01)
    assert watcher.answer() == {"ok": True, "pods": 100}


def test_what_did_not_change_costs_no_event(node, monkeypatch):
    watcher = node.connect()
    told(node, watcher, pods=[pod(cores=30)], whole=True)
    events: list[Event] = []
    monkeypatch.setattr(node._node.daemon, "dispatch", events.append)
    told(node, watcher, pods=[pod(cores=30)], whole=True)
    assert events == []


def test_name_that_the_api_told_counts_and_a_claimed_one_leads_to_nobody(node):
    # GIVEN a task that claims the name of another pod
    node.task(7, OTHER, pod_name="trainer", pod_namespace="default")
    watcher = node.connect()
    told(node, watcher, pods=[pod(), pod(OTHER, "liar")], whole=True)
    assert [(client.namespace, client.pod) for client in node.clients()] == [("default", "liar")]
    # WHEN the operator limits the pod of that name
    watcher.tell(op="limit", target={"pod": "default/trainer"}, mem=GIB)
    # THEN it is the pod that the API calls so
    assert watcher.answer()["group"]["id"] == f"pod:{UID}"
    assert node.groups()[f"pod:{OTHER}"].mem_limit is None
    # AND when that one is gone, nobody has the name
    told(node, watcher, gone=[UID])
    watcher.tell(op="limit", target={"pod": "default/trainer"}, mem=GIB)
    assert "there is no pod default/trainer" in watcher.answer()["error"]


def test_pod_of_the_same_name_made_anew_is_found_by_it(node):
    watcher = node.connect()
    told(node, watcher, pods=[pod()], whole=True)
    told(node, watcher, pods=[pod(OTHER)], gone=[UID])
    watcher.tell(op="limit", target={"pod": "default/trainer"}, cores=30)
    assert watcher.answer()["group"]["id"] == f"pod:{OTHER}"


def test_operator_learns_that_the_annotation_is_in_force(node):
    watcher = node.connect()
    told(node, watcher, pods=[pod(mem=GIB)])
    watcher.tell(op="limit", target={"pod": "default/trainer"}, mem=2 * GIB)
    group = watcher.answer()["group"]
    assert (group["mem_limit"], group["mem_limit_from"]) == (GIB, "annotation")
    told(node, watcher, pods=[pod(mem=None)])
    assert node.groups()[f"pod:{UID}"].mem_limit == 2 * GIB


@pytest.mark.parametrize(("pid", "uid"), [(7, 0), (7, os.getuid()), (8, 54321)])
def test_task_may_not_tell_of_pods(node, pid, uid):
    node.pods[7] = UID
    task = node.connect(pid, uid)
    assert "only root" in told(node, task, pods=[pod(mem=64 * GIB)])["error"]
    assert node.groups() == {}


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"pods": {}}, "lists"),
        ({"pods": [1]}, "JSON object"),
        ({"pods": [pod(uid="x y")]}, "not the uid"),
        ({"pods": [pod(uid="a" * 1000)]}, "not the uid"),
        ({"pods": [pod(name="a/b")]}, "not the name"),
        ({"pods": [pod(namespace=None)]}, "not the namespace"),
        ({"pods": [pod(mem=0)]}, "mem is a whole number"),
        ({"pods": [pod(gpumem="1")]}, "gpumem is a whole number"),
        ({"pods": [pod(cores=101)]}, "cores is a number"),
        ({"pods": [pod(core_floor=0)]}, "core_floor is a number from 1 to 100"),
        ({"pods": [pod(core_floor=1.5)]}, "core_floor is a whole number from 1 to 100"),
        ({"gone": ["X"]}, "not the uid"),
        ({"whole": 1}, "true or false"),
        ({"nonsense": 1}, "knows no nonsense"),
    ],
)
def test_message_that_makes_no_sense_is_refused_whole(node, request_, says):
    answer = told(node, node.connect(), **request_)
    assert says in answer["error"]
    assert node.groups() == {}


def test_pods_beyond_the_bound_are_refused(node, monkeypatch):
    monkeypatch.setattr(pods, "MAX_PODS", 1)
    assert "at most 1" in told(node, node.connect(), pods=[pod(), pod(OTHER)])["error"]


def test_process_of_a_pod_that_is_not_told_of_yet_waits_for_its_quota(node):
    watcher = node.connect()
    told(node, watcher, pods=[], whole=True)
    # WHEN a process of a pod is faster than the API
    task = node.task(7, UID, wire.MemRequest(0, 1, 2 * GIB))
    assert not task.said(wire.SchedOn)
    # THEN it is taken in with its quota
    told(node, watcher, pods=[pod(mem=GIB)])
    assert task.said(wire.UpdateLimit)[0].mem_limit == GIB
    node.loop.advance(1.0)
    assert task.said(wire.MemDenied)
    assert not task.said(wire.MemAvailable)


def test_process_of_a_pod_that_is_never_told_of_waits_for_a_bounded_time(node):
    told(node, node.connect(), pods=[], whole=True)
    task = node.task(7, UID)
    node.loop.advance(POD_WAIT * 0.9)
    assert not task.said(wire.SchedOn)
    node.loop.advance(POD_WAIT * 0.2)
    assert len(task.said(wire.SchedOn)) == 1
    # AND being told later changes nothing of that
    told(node, node.connect(), pods=[pod(mem=GIB)])
    assert len(task.said(wire.SchedOn)) == 1
    assert task.said(wire.UpdateLimit)[-1].mem_limit == GIB


def test_process_that_ends_while_it_waits_is_forgotten(node):
    watcher = node.connect()
    told(node, watcher, pods=[], whole=True)
    task = node.task(7, UID)
    task.connection.connection_lost(None)
    told(node, watcher, pods=[pod()])
    node.loop.advance(2.0)
    assert node.clients() == ()


@pytest.mark.parametrize("watcher", ["none", "began"])
def test_nobody_waits_where_no_watcher_has_told_of_all_pods(node, watcher):
    if watcher == "began":
        told(node, node.connect(), pods=[], whole=True, more=True)
    assert node.task(7, UID).said(wire.SchedOn)


def test_process_waits_for_a_watcher_that_will_come_back(node):
    one = node.connect()
    told(node, one, pods=[], whole=True)
    one.connection.connection_lost(None)
    task = node.task(7, UID)
    assert not task.said(wire.SchedOn)
    told(node, node.connect(), pods=[pod(mem=GIB)], whole=True)
    assert task.said(wire.UpdateLimit)[0].mem_limit == GIB


def test_process_outside_of_pods_waits_for_nobody(node):
    told(node, node.connect(), pods=[], whole=True)
    assert node.task(7, None).said(wire.SchedOn)


def test_restarted_scheduler_knows_at_once_what_was_told_before(in_memory, monkeypatch, tmp_path):
    file = tmp_path / "scheduler.pods"
    first = Node(in_memory, monkeypatch, pods_file=file)
    told(
        first,
        first.connect(),
        pods=[pod(mem=GIB, cores=30, core_floor=20, gpumem=2 * GIB), pod(OTHER, "other")],
        whole=True,
    )
    first.close()
    # WHEN another begins THEN a task that comes back has its quota from the beginning
    second = Node(in_memory, monkeypatch, pods_file=file)
    assert second.task(7, UID).said(wire.UpdateLimit)[0].mem_limit == GIB
    # AND what is not known then stays, and who is gone is forgotten
    told(second, second.connect(), pods=[pod(cores=None)], whole=True)
    (group,) = second.groups().values()
    assert (group.mem_limit, group.core_limit, group.core_floor) == (GIB, 100, 20)


def test_file_of_a_release_without_floors_is_taken(in_memory, monkeypatch, tmp_path):
    file = tmp_path / "scheduler.pods"
    old = {"uid": UID, "namespace": "default", "name": "trainer", "gpumem": None, "mem": GIB, "cores": 30}
    header = {"nvshare": "pods", "version": 1, "entries": 1}
    file.write_text(f"{json.dumps(header)}\n{json.dumps(old)}\n")
    file.chmod(0o600)
    assert floor_of(Node(in_memory, monkeypatch, pods_file=file)) == (0, 30)


def test_what_was_told_is_kept_while_it_runs_too(in_memory, monkeypatch, tmp_path):
    file = tmp_path / "scheduler.pods"
    node = Node(in_memory, monkeypatch, pods_file=file)
    watcher = node.connect()
    told(node, watcher, pods=[pod(mem=GIB)], whole=True)
    node.loop.advance(pods.SAVE_PERIOD)
    for _ in ("a look at the cards", "the file"):
        node.loop.run_next_from_thread()
    header, entry = map(json.loads, file.read_text().splitlines())
    assert (header["nvshare"], entry["mem"]) == ("pods", GIB)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["rubbish", "[1]", '{"uid": "../x"}', "\0"])
def test_file_that_makes_no_sense_is_passed_over(in_memory, monkeypatch, tmp_path, text):
    (tmp_path / "scheduler.pods").write_text(text)
    assert Node(in_memory, monkeypatch, pods_file=tmp_path / "scheduler.pods").groups() == {}
