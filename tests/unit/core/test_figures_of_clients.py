"""What the snapshot counts of each client: waits, switches, refusals and drains that took too long."""

from __future__ import annotations

from nvshare.core.compute.state import AttachmentCompute
from nvshare.core.settings import Mode
from nvshare.core.snapshot import ClientGpuView
from tests.unit.core.core_scene import GIB, Scene
from tests.unit.core.core_stage import contending


def two_in_turns() -> Scene:
    """1 has the card, 2 waits for it."""
    scene = Scene(Mode.SERIAL)
    for client in (1, 2):
        scene.register(client)
        scene.request(client)
    return scene


def figures(scene: Scene, client: int) -> ClientGpuView:
    clients = {view.id: view for view in scene.scheduler.snapshot(scene.now).clients}
    return clients[f"{client:016x}"].gpus[0]


def test_a_wait_for_a_turn_is_counted_while_it_lasts_and_after_it() -> None:
    scene = two_in_turns()
    scene.pass_time(20.0)
    assert figures(scene, 2).waited_s == {"memory": 20.0, "slice": 0.0, "quota": 0.0}
    scene.release(1)
    scene.pass_time(5.0)
    assert figures(scene, 2).waited_s["memory"] == 20.0
    assert figures(scene, 1).waited_s["memory"] == 0.0


def test_a_switch_is_counted_for_the_client_that_takes_over() -> None:
    scene = two_in_turns()
    scene.release(1)
    assert (figures(scene, 1).switches, figures(scene, 2).switches) == (0, 1)


def test_a_refused_request_is_counted() -> None:
    scene = Scene()
    scene.register(1, mem_limit=GIB)
    scene.allocate(1, 2 * GIB)
    assert figures(scene, 1).denied == 1


def test_a_drain_that_passes_its_deadline_is_counted() -> None:
    scene = two_in_turns()
    scene.pass_time(30.0)
    assert figures(scene, 1).drain_timeouts == 0
    scene.pass_time(scene.scheduler.settings.drain_deadline)
    assert figures(scene, 1).drain_timeouts == 1


def test_a_wait_for_a_slice_is_time_in_which_only_other_slices_kept_the_client_from_one() -> None:
    state = AttachmentCompute()
    state.set_ready(True, 1.0)
    state.set_ready(True, 2.0)
    assert state.waiting_ready(4.0) == 3.0
    state.set_ready(False, 5.0)
    state.set_ready(False, 6.0)
    assert state.waiting_ready(9.0) == 4.0
    state.set_ready(True, 10.0)
    assert state.waiting_ready(10.5) == 4.5


def test_waits_for_slices_and_for_a_quota_are_told_apart() -> None:
    # GIVEN three that contend for the card, of which one has spent its quota
    stage = contending(1, 2)
    stage.start(3, core_limit=10)
    for client in (1, 2, 3):
        stage.ask(client)
    stage.account(3).bucket.level = -1.0
    stage.pass_time(0.02)
    stage.over(1, 0.02)
    before = [figures(stage, client).waited_s for client in (1, 3)]
    stage.now += 0.001
    after = [figures(stage, client).waited_s for client in (1, 3)]
    # THEN one waits for a slice and the other for its quota
    grown = [{key: round(new[key] - old[key], 6) for key in new} for old, new in zip(before, after, strict=True)]
    assert grown == [{"memory": 0.0, "slice": 0.001, "quota": 0.0}, {"memory": 0.0, "slice": 0.0, "quota": 0.001}]
