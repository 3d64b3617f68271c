"""What waits for facts: registrations for their pod, first requests for memory for a sample of the cards."""

from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.awaited_facts import MAX_REQUESTS, POD_WAIT, SAMPLE_WAIT
from nvshare.core.policy.membership import Process
from tests.unit.core.core_scene import GIB, MIB, A, B, Scene, only, said, to_clients

POD = e.Pod("uid", "default", "trainer", mem=GIB)


class TestRegistration:
    @pytest.fixture
    def scene(self) -> Scene:
        scene = Scene()
        scene.send(e.PodsListed(0.0))
        return scene

    def register(self, scene: Scene, client: int = 1, pod: str | None = "uid") -> list[c.Command]:
        process = Process(client, (client,), pod)
        return scene.send(e.ClientRegistered(scene.now, client, process, (e.HeldGpu(A),)))

    def test_waits_for_a_pod_that_is_not_known(self, scene: Scene) -> None:
        assert self.register(scene) == [c.AwaitPod(1), c.WakeAt(POD_WAIT)]
        assert scene.scheduler.snapshot(0.0).clients == ()

    def test_goes_on_with_the_quota_of_the_pod_as_soon_as_that_is_told(self, scene: Scene) -> None:
        self.register(scene)
        scene.pass_time(POD_WAIT / 2)
        answer = scene.send(e.PodSeen(scene.now, POD))
        assert [type(command) for command in answer if isinstance(command, (c.SchedOn, c.Registered))] == [
            c.SchedOn,
            c.Registered,
        ]
        assert only(answer, c.SetLimit)[0].mem_limit == GIB
        assert scene.wake is None

    def test_goes_on_without_it_at_the_deadline(self, scene: Scene) -> None:
        self.register(scene)
        answer = scene.pass_time(POD_WAIT)
        assert only(answer, c.Registered) == [c.Registered(1, "pod:uid")]
        assert only(answer, c.SetLimit)[0].mem_limit is None
        # AND a pod that is told too late has its quota from then on
        assert only(scene.send(e.PodSeen(scene.now, POD)), c.SetLimit)[0].mem_limit == GIB

    def test_of_a_client_that_is_gone_meanwhile_is_forgotten(self, scene: Scene) -> None:
        self.register(scene)
        assert said(scene.gone(1)) == []
        assert only(scene.send(e.PodSeen(scene.now, POD)), c.Registered) == []
        assert only(scene.pass_time(2 * POD_WAIT), c.Registered) == []

    def test_twice_ends_both(self, scene: Scene) -> None:
        self.register(scene)
        assert [refusal.client for refusal in only(self.register(scene), c.Refuse)] == [1]
        assert only(scene.pass_time(2 * POD_WAIT), c.Registered) == []

    def test_that_is_impossible_is_refused_at_once(self, scene: Scene) -> None:
        event = e.ClientRegistered(0.0, 1, Process(1, (1,), "uid"), (e.HeldGpu("GPU-x"),))
        assert [type(command) for command in scene.send(event)] == [c.Refuse]

    def test_of_another_pod_waits_on(self, scene: Scene) -> None:
        self.register(scene, 1)
        self.register(scene, 2, "other")
        assert [one.client for one in only(scene.send(e.PodSeen(0.0, POD)), c.Registered)] == [1]
        assert [one.client for one in only(scene.pass_time(POD_WAIT), c.Registered)] == [2]

    def test_outside_of_pods_waits_for_nothing(self, scene: Scene) -> None:
        assert only(self.register(scene, pod=None), c.Registered)

    def test_waits_for_nothing_where_no_watch_has_told_of_all_pods(self) -> None:
        scene = Scene()
        scene.send(e.PodSeen(0.0, POD))
        assert only(self.register(scene, pod="other"), c.Registered)

    def test_waits_again_when_its_pod_is_gone_from_the_list(self, scene: Scene) -> None:
        scene.send(e.PodSeen(0.0, POD))
        scene.send(e.PodGone(0.0, "uid"))
        assert only(self.register(scene), c.AwaitPod)


class TestFirstRequest:
    @pytest.fixture
    def scene(self) -> Scene:
        scene = Scene(gpus=(A, B), samples=False)
        for client in (1, 2):
            scene.register(client, A, B)
        return scene

    def ask(self, scene: Scene, client: int, request: int, gpu: str = A, size: int = MIB) -> list[c.Command]:
        return scene.send(e.MemoryRequested(scene.now, client, gpu, request, size))

    def sampled(self, scene: Scene, number: int) -> list[c.Command]:
        return scene.send(e.CardsSampled(scene.now, number))

    def granted(self, answer: list[c.Command]) -> list[tuple[int, int]]:
        return [(grant.client, grant.request) for grant in only(answer, c.GrantMemory)]

    def test_orders_a_sample_and_waits_for_it(self, scene: Scene) -> None:
        assert self.ask(scene, 1, 1) == [c.SampleCards(1), c.WakeAt(SAMPLE_WAIT)]
        assert self.ask(scene, 1, 2) == []
        assert self.granted(self.sampled(scene, 1)) == [(1, 1), (1, 2)]
        assert scene.wake is None
        # AND the next one waits for nothing
        assert self.granted(self.ask(scene, 1, 3)) == [(1, 3)]

    def test_counts_what_the_sample_showed(self, scene: Scene) -> None:
        self.ask(scene, 1, 1, size=15 * GIB)
        scene.outsiders(2 * GIB)
        assert [type(one) for one in to_clients(self.sampled(scene, 1))] == [c.DenyMemory]

    def test_is_answered_at_its_deadline_where_the_sample_never_comes(self, scene: Scene) -> None:
        self.ask(scene, 1, 1)
        scene.pass_time(SAMPLE_WAIT / 2)
        self.ask(scene, 2, 1)
        assert self.granted(scene.pass_time(SAMPLE_WAIT / 2)) == [(1, 1)]
        assert self.granted(scene.pass_time(SAMPLE_WAIT / 2)) == [(2, 1)]
        assert to_clients(self.sampled(scene, 2)) == []

    def test_that_came_while_a_sample_was_taken_waits_for_the_next_one(self, scene: Scene) -> None:
        self.ask(scene, 1, 1)
        self.ask(scene, 2, 1)
        answer = self.sampled(scene, 1)
        assert self.granted(answer) == [(1, 1)]
        assert only(answer, c.SampleCards) == [c.SampleCards(2)]
        assert self.granted(self.sampled(scene, 2)) == [(2, 1)]

    def test_of_each_card_waits_by_itself(self, scene: Scene) -> None:
        self.ask(scene, 1, 1)
        self.sampled(scene, 1)
        assert only(self.ask(scene, 1, 2, gpu=B), c.SampleCards) == [c.SampleCards(2)]

    def test_of_a_client_that_is_gone_meanwhile_is_forgotten(self, scene: Scene) -> None:
        self.ask(scene, 1, 1)
        scene.gone(1)
        assert to_clients(self.sampled(scene, 1)) == []
        assert to_clients(scene.pass_time(2 * SAMPLE_WAIT)) == []

    def test_of_a_client_that_comes_back_with_memory_waits_for_nothing(self, scene: Scene) -> None:
        scene.register(3, e.HeldGpu(A, GIB, GIB))
        assert self.granted(self.ask(scene, 3, 1)) == [(3, 1)]

    def test_does_not_let_a_flood_gather_behind_it(self, scene: Scene) -> None:
        answers = [self.ask(scene, 1, number) for number in range(MAX_REQUESTS + 1)]
        assert not any(map(self.granted, answers[:-1]))
        assert self.granted(answers[-1]) == [(1, number) for number in range(MAX_REQUESTS + 1)]
        # AND the sample, which comes later, finds nobody who waits
        assert to_clients(self.sampled(scene, 1)) == []
