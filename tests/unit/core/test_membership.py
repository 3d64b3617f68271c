"""Which group a process belongs to, who must register again to belong there, and whom an operator means by a name."""

from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.policy.membership import Opened, Process, group_of, shared_group
from tests.unit.core.core_scene import GIB, A, Scene, only, with_cores

RUN, INNER = Process(10, (10, 1)), Process(20, (20, 10, 1))
OUTSIDE = Process(50, (50, 1))


def below(*ancestors: int, pid: int = 30, **facts: str) -> Process:
    return Process(pid, (pid, *ancestors, 1), **facts)


def holds(*leases: str, pid: int = 10, run: bool = False) -> dict[int, Opened]:
    return {pid: Opened(Process(pid, (pid,)), run, leases)}


@pytest.mark.parametrize(
    ("process", "opened", "group"),
    [
        (below(), {}, "process:30"),
        (below(10), holds(run=True), "run:10"),
        (below(20, 10), holds(run=True) | holds(pid=20, run=True), "run:10"),
        (below(10, pod="uid"), holds(run=True), "pod:uid"),
        (Process(10, (10,)), holds(run=True), "run:10"),
        (Process(), holds(run=True), "process:unknown-000000000000002a"),
        (below(10), holds("a"), "lease:a"),
        (below(10), holds("a", "b"), "lease:a"),
        (below(10, lease="b"), holds("a", "b"), "lease:b"),
        (below(10, lease="somebody else's"), holds("a", "b"), "lease:a"),
        (below(10, lease="b"), holds("a", "b", run=True), "run:10"),
        (below(20, 10, lease="b"), holds("a") | holds("b", pid=20), "lease:a"),
    ],
)
def test_a_group_is_the_pod_then_the_outermost_run_or_lease_then_the_process(
    process: Process, opened: dict[int, Opened], group: str
) -> None:
    assert group_of(process, 42, opened) == group
    assert shared_group(process, opened) == (None if group.startswith("process:") else group)


def register(scene: Scene, client: int, process: Process) -> list[c.Command]:
    return scene.send(e.ClientRegistered(scene.now, client, process, (e.HeldGpu(A),), pod_name="p", pod_namespace="n"))


def open_run(scene: Scene, process: Process, **fields: object) -> list[c.Command]:
    return scene.send(e.RunOpened(scene.now, process, **fields))  # type: ignore[arg-type]


def lease(scene: Scene, name: str, holder: Process, **fields: object) -> list[c.Command]:
    return scene.send(e.LeaseRequested(scene.now, name, holder, **with_cores(fields)))


def groups(scene: Scene) -> dict[str, list[str]]:
    return {group.id: [client[-2:] for client in group.clients] for group in scene.scheduler.snapshot(0.0).groups}


def told_to_register_again(answer: list[c.Command]) -> list[int]:
    return [command.client for command in only(answer, c.RegisterAgain)]


def test_the_last_command_of_a_registration_names_its_group() -> None:
    scene = Scene()
    answer = register(scene, 1, below())
    assert only(answer, (c.GroupAppeared, c.Registered)) == [
        c.GroupAppeared("process:30", None),
        c.Registered(1, "process:30"),
    ]


def test_a_group_appears_once() -> None:
    scene = Scene()
    assert only(open_run(scene, RUN), (c.RunGranted, c.GroupAppeared)) == [
        c.RunGranted(10, None),
        c.GroupAppeared("run:10", 10),
    ]
    assert only(register(scene, 1, below(10)), c.GroupAppeared) == []


def test_a_client_that_was_there_before_the_run_around_it_registers_again() -> None:
    scene = Scene()
    register(scene, 1, below(10))
    register(scene, 2, OUTSIDE)
    register(scene, 3, below(10, pid=31, pod="uid"))

    assert told_to_register_again(open_run(scene, RUN)) == [1]
    scene.gone(1)
    register(scene, 1, below(10))
    assert groups(scene) == {"process:50": ["02"], "pod:uid": ["03"], "run:10": ["01"]}


def test_a_run_inside_another_one_is_told_so_and_moves_nobody() -> None:
    scene = Scene()
    open_run(scene, RUN)
    register(scene, 1, below(20, 10))

    answer = open_run(scene, INNER)

    assert only(answer, c.RunGranted) == [c.RunGranted(20, "run:10")]
    assert told_to_register_again(answer) == []


def test_a_run_that_is_awaited_has_its_clients_before_it_is_back() -> None:
    scene = Scene()
    scene.send(e.RunAwaited(0.0, RUN))
    register(scene, 1, below(20, 10))

    assert told_to_register_again(open_run(scene, INNER)) == []
    assert told_to_register_again(open_run(scene, RUN, label="back")) == []
    assert groups(scene)["run:10"] == ["01"]


def test_a_run_that_is_awaited_in_vain_groups_nobody_any_more() -> None:
    scene = Scene()
    scene.send(e.RunAwaited(0.0, RUN))
    scene.send(e.RunClosed(0.0, 10))
    register(scene, 1, below(10))
    assert groups(scene) == {"process:30": ["01"]}


def test_a_run_that_ends_keeps_the_clients_that_it_has_and_gets_no_more() -> None:
    scene = Scene()
    open_run(scene, RUN)
    register(scene, 1, below(10))
    scene.send(e.RunClosed(0.0, 10))
    register(scene, 2, below(10, pid=31))
    assert groups(scene) == {"run:10": ["01"], "process:31": ["02"]}


def test_a_process_that_closes_its_run_still_has_its_leases() -> None:
    scene = Scene()
    lease(scene, "a", RUN)
    open_run(scene, RUN)
    scene.send(e.RunClosed(0.0, 10))
    register(scene, 1, below(10))
    assert groups(scene)["lease:a"] == ["01"]


def test_clients_of_a_lease_that_comes_back_register_again() -> None:
    scene = Scene()
    lease(scene, "a", RUN)
    register(scene, 1, below(10, lease="b"))
    answer = lease(scene, "b", RUN)
    assert told_to_register_again(answer) == [1]
    assert only(answer, c.LeaseGranted) == [c.LeaseGranted("b", (A,), "lease:b", None)]


def test_a_lease_that_ended_belongs_to_nobody() -> None:
    scene = Scene()
    lease(scene, "a", RUN)
    lease(scene, "b", RUN)
    scene.send(e.LeaseReleased(0.0, "a", "process 30 has not left the GPU"))
    register(scene, 1, below(10, lease="a"))
    scene.send(e.LeaseReleased(0.0, "b"))
    register(scene, 2, below(10, pid=31, lease="b"))
    assert groups(scene) == {"lease:b": ["01"], "process:31": ["02"]}


@pytest.mark.parametrize(
    ("holder", "inside"),
    [(OUTSIDE, None), (below(10), "run:10"), (below(10, pod="uid"), "pod:uid"), (RUN, "run:10")],
)
def test_a_lease_is_told_whose_quotas_count_instead(holder: Process, inside: str | None) -> None:
    scene = Scene()
    open_run(scene, RUN)
    (granted,) = only(lease(scene, "a", holder), c.LeaseGranted)
    assert granted.inside == inside


def test_the_environment_decides_only_below_a_process_that_holds_leases() -> None:
    scene = Scene()
    open_run(scene, Process(40, (40,)))
    lease(scene, "a", RUN)
    asks = scene.scheduler.depends_on_environment
    assert (asks(below(10)), asks(below(40)), asks(OUTSIDE)) == (True, False, False)


def test_a_process_is_told_what_the_task_around_it_has() -> None:
    scene = Scene()
    open_run(scene, RUN, mem_limit=GIB)
    register(scene, 1, below(10))
    register(scene, 2, OUTSIDE)
    shares = [scene.scheduler.share(one, A) for one in (below(10, pid=31), below(50, pid=51), below(pid=60))]
    assert [share and tuple(share.allocated) for share in shares] == [(1,), (2,), None]


def named(scene: Scene, kind: str, name: str) -> tuple[str, ...]:
    return scene.scheduler.named(kind, name)


def test_operators_name_a_group_by_any_client_of_it() -> None:
    scene = Scene()
    register(scene, 0xAB, below())
    assert named(scene, "client", f"{0xAB:016x}") == named(scene, "pid", "30") == ("process:30",)
    assert named(scene, "client", f"{0xAC:016x}") == named(scene, "pid", "31") == ()


def test_operators_name_a_run_by_its_number_or_label_and_mean_the_outermost() -> None:
    scene = Scene()
    open_run(scene, RUN, label="trial")
    open_run(scene, INNER, label="inner")
    for name in ("10", "20", "trial", "inner"):
        assert named(scene, "run", name) == ("run:10",)
    assert named(scene, "run", "30") == named(scene, "run", "nobody") == ()


def test_a_label_that_several_runs_and_leases_have_means_all_of_them() -> None:
    scene = Scene()
    open_run(scene, RUN, label="twin")
    lease(scene, "a", OUTSIDE, label="twin")
    assert named(scene, "run", "twin") == ("run:10", "lease:a")
    assert named(scene, "run", "a") == named(scene, "lease", "a") == ("lease:a",)


def test_a_lease_that_waits_or_ended_has_no_quotas_to_change() -> None:
    scene = Scene()
    lease(scene, "a", RUN, cores=100)
    lease(scene, "b", OUTSIDE, cores=100)
    assert named(scene, "lease", "b") == ()
    scene.send(e.LeaseReleased(0.0, "a", "process 30 has not left the GPU"))
    assert named(scene, "lease", "a") == ()


def test_a_claimed_pod_name_counts_until_the_api_has_told_the_true_one() -> None:
    scene = Scene()
    register(scene, 1, below(pod="uid"))
    assert named(scene, "pod", "n/p") == ("pod:uid",)
    scene.send(e.PodSeen(0.0, e.Pod("uid", "default", "trainer")))
    assert (named(scene, "pod", "n/p"), named(scene, "pod", "default/trainer")) == ((), ("pod:uid",))
    scene.send(e.PodGone(0.0, "uid"))
    assert (named(scene, "pod", "n/p"), named(scene, "pod", "default/trainer")) == (("pod:uid",), ())


def test_a_claimed_pod_name_counts_only_inside_a_pod() -> None:
    scene = Scene()
    register(scene, 1, below())
    assert named(scene, "pod", "n/p") == ()
    assert scene.scheduler.snapshot(0.0).clients[0].pod == ""
