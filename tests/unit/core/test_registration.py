from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.compute.policy.constants import IN_FLIGHT_BUSY
from nvshare.core.settings import MAX_GPUS, SIZE_MAX, Mode
from tests.unit.core.core_scene import GIB, MIB, A, B, Scene, granted, only, said, to_clients


def test_a_client_is_answered_with_sched_on_then_its_limits() -> None:
    scene = Scene(gpus=(A, B), declared=8 * GIB)

    answer = scene.register(7, B, A, mem_limit=4 * GIB, core_limit=30)

    assert to_clients(answer) == [
        c.SchedOn(7),
        c.SetLimit(7, B, 4 * GIB, 8 * GIB),
        c.SetLimit(7, A, 4 * GIB, 8 * GIB),
        c.SetCoreLimit(7, 30),
        *(c.SetTerms(7, gpu, True, 2 * IN_FLIGHT_BUSY) for gpu in (A, B)),
    ]


def test_the_log_names_client_gpu_and_pod() -> None:
    scene = Scene()

    answer = scene.register(0xA12C4B64B99E09DC, group="pod:one", pod="nvshare-small-1")

    assert said(answer) == [
        "Registered client a12c4b64b99e09dc on GPU GPU-a with Pod name = nvshare-small-1, Pod namespace = default"
    ]
    assert said(scene.gone(0xA12C4B64B99E09DC)) == ["Removing client a12c4b64b99e09dc"]


def test_with_anti_thrash_off_a_client_is_told_to_run_freely() -> None:
    scene = Scene(anti_thrash=False)

    assert to_clients(scene.register(1))[0] == c.SchedOff(1)
    assert scene.state(1) == "free"
    assert to_clients(scene.request(1)) == []


def test_registering_twice_expels_the_client_and_frees_what_it_had() -> None:
    scene = Scene(Mode.SERIAL)
    scene.register(1)
    scene.register(2)
    scene.request(1)
    scene.request(2)

    answer = scene.register(1)

    assert [expel.client for expel in only(answer, c.Expel)] == [1]
    assert granted(answer) == [(2, A)]


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ((e.HeldGpu("GPU-x"),), "GPU 'GPU-x' is not one of this scheduler's (GPU-a)"),
        ((e.HeldGpu(A), e.HeldGpu(A)), "twice"),
        ((e.HeldGpu(A, allocated=SIZE_MAX + 1),), "cannot be"),
        ((e.HeldGpu(A, allocated=1, resident=2),), "cannot be"),
        ((e.HeldGpu(A, grant=1 << 63),), "never given"),
    ],
)
def test_an_impossible_registration_is_refused_with_its_reason(gpus: tuple[e.HeldGpu, ...], why: str) -> None:
    scene = Scene()

    answer = scene.register(1, *gpus)

    assert why in only(answer, c.Refuse)[0].reason
    assert scene.scheduler.snapshot(0.0).clients == ()
    assert scene.scheduler.snapshot(0.0).groups == ()


def test_a_client_that_comes_back_keeps_memory_and_grant() -> None:
    scene = Scene(Mode.SERIAL)

    answer = scene.register(1, e.HeldGpu(A, 3 * GIB, 2 * GIB, grant=57))
    scene.register(2)

    assert only(answer, c.Grant) == [c.Grant(1, A, 57, exclusive=True, quantum=30.0)]
    assert scene.gpu()["allocated"] == 3 * GIB
    assert scene.gpu()["resident"] == 2 * GIB
    assert scene.state(1) == "running"
    scene.request(2)
    assert only(scene.release(1), c.Grant)[0].grant > 57


def test_adopted_memory_may_exceed_the_card_and_then_only_new_requests_are_refused() -> None:
    scene = Scene(declared=4 * GIB)
    scene.register(1, e.HeldGpu(A, 3 * GIB, 3 * GIB))
    scene.register(2, e.HeldGpu(A, 3 * GIB, 3 * GIB))

    assert isinstance(scene.allocate(1, MIB), c.DenyMemory)
    scene.report(2, released=3 * GIB)
    assert isinstance(scene.allocate(1, MIB), c.GrantMemory)


def test_adopted_memory_beyond_the_card_does_not_start_turns_while_it_is_all_on_the_card() -> None:
    scene = Scene(declared=4 * GIB)
    scene.register(1, e.HeldGpu(A, 3 * GIB, 3 * GIB, grant=4))
    scene.register(2, e.HeldGpu(A, 3 * GIB, 3 * GIB, grant=9))

    assert granted(scene.request(1)) == [(1, A)]
    assert granted(scene.request(2)) == [(2, A)]
    assert scene.gpu()["policy"] == "free"


def test_a_claimed_grant_number_that_is_taken_is_replaced() -> None:
    scene = Scene()
    scene.register(1, e.HeldGpu(A, grant=5))

    answer = scene.register(2, e.HeldGpu(A, grant=5))

    assert [grant.grant for grant in only(answer, c.Grant)] == [6]


def test_surplus_holders_that_come_back_in_serial_mode_are_dropped() -> None:
    scene = Scene(Mode.SERIAL)
    scene.register(1, e.HeldGpu(A, grant=1))

    answer = scene.register(2, e.HeldGpu(A, grant=2))

    assert only(answer, c.Drop) == [c.Drop(2, A, 2, 10.0)]
    assert scene.gpu()["running"] == ["0000000000000001"]


def test_events_of_unknown_clients_and_gpus_are_ignored_with_a_line() -> None:
    scene = Scene()
    scene.register(1)

    for event in (
        e.LockRequested(0.0, 9, A),
        e.LockReleased(0.0, 9, A, 1),
        e.MemoryRequested(0.0, 9, A, 1, 1),
        e.MemoryUpdated(0.0, 9, A, 0, 0),
        e.UsageReported(0.0, 9, A, 0.0, 0, 0),
        e.ContextMeasured(0.0, 9, A, 1),
        e.UnmanagedSeen(0.0, "GPU-unknown", (e.Unmanaged(1, "x", 1),)),
        e.ClientGone(0.0, 9),
        e.LockRequested(0.0, 1, B),
        e.LimitsChanged(0.0, "pod:none", mem_limit=GIB),
        e.PodGone(0.0, "none"),
    ):
        answer = scene.send(event)
        assert to_clients(answer) == []
        assert len(said(answer)) == 1


@pytest.mark.parametrize(
    ("gpu", "why", "fault"),
    [
        (B, "attached twice", c.Fault.MALFORMED),
        ("GPU-x", "not one of this scheduler's", c.Fault.UNKNOWN_GPU),
    ],
)
def test_a_gpu_that_cannot_be_attached_ends_the_client(gpu: str, why: str, fault: c.Fault) -> None:
    scene = Scene(gpus=(A, B))
    scene.register(1, A)
    assert to_clients(scene.attach(1, B)) == [c.SetLimit(1, B, None, 16 * GIB)]

    (expel,) = only(scene.attach(1, gpu), c.Expel)

    assert (why in expel.reason, expel.fault) == (True, fault)
    assert scene.scheduler.snapshot(0.0).clients == ()


def test_a_client_has_a_bounded_number_of_gpus() -> None:
    gpus = tuple(f"GPU-{number:02}" for number in range(MAX_GPUS + 1))
    scene = Scene(gpus=gpus)
    scene.register(1, *gpus[:-1])

    (expel,) = only(scene.attach(1, gpus[-1]), c.Expel)

    assert "at most 16" in expel.reason


def test_an_impossible_registration_is_not_logged_here_because_a_stranger_could_fill_the_log() -> None:
    assert said(Scene().register(1, "GPU-x")) == []
