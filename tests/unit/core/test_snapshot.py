from __future__ import annotations

import json
from typing import Any

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.settings import Mode, Priority, SwitchTime
from tests.unit.core.core_scene import GIB, MIB, A, B, Scene, only, said


def test_the_snapshot_has_exactly_the_documented_fields() -> None:
    scene = Scene(Mode.SERIAL, gpus=(A, B), declared=8 * GIB)
    scene.register(1, A, group="pod:u", pod="trainer", mem_limit=GIB, core_limit="30..40", priority=Priority.HIGH)
    scene.register(2, A, B)
    scene.allocate(1, 64 * MIB)
    scene.report(1, released=16 * MIB, resident=48 * MIB)
    scene.context(1, 100 * MIB)
    scene.send(e.UsageReported(1.0, 1, A, 0.5, 77, 1024, 5, 6))
    scene.request(1)
    scene.request(2)

    status = json.loads(json.dumps(scene.scheduler.snapshot(1.0).to_dict()))

    assert status == {
        "version": 1,
        "settings": {
            "mode": "serial",
            "anti_thrash": True,
            "switch_time": "fixed",
            "quantum_s": 30.0,
            "max_runtime_s": 300.0,
            "operator": [],
        },
        "gpus": [
            {
                "uuid": A,
                "name": "T4",
                "total": 16 * GIB,
                "declared": 8 * GIB,
                "capacity": 8 * GIB,
                "allocated": 48 * MIB,
                "resident": 48 * MIB,
                "contexts": 100 * MIB,
                "running": ["0000000000000001"],
                "waiting": ["0000000000000002"],
                "policy": "turns",
                "quantum_s": 30.0,
                "reason": "serial mode: one task at a time",
                **_no_switches(),
            },
            {
                "uuid": B,
                "name": "T4",
                "total": 16 * GIB,
                "declared": 8 * GIB,
                "capacity": 8 * GIB,
                "allocated": 0,
                "resident": 0,
                "contexts": 0,
                "running": [],
                "waiting": ["0000000000000002"],
                "policy": "turns",
                "quantum_s": 30.0,
                "reason": "serial mode: one task at a time",
                **_no_switches(),
            },
        ],
        "clients": [
            {
                "id": "0000000000000001",
                "pid": 1,
                "name": "task-1",
                "pod": "trainer",
                "namespace": "default",
                "group": "pod:u",
                "priority": "high",
                "mem_limit": GIB,
                "core_limit": 40,
                "core_floor": 30,
                "state": "running",
                "gpus": [
                    {
                        "uuid": A,
                        "allocated": 48 * MIB,
                        "resident": 48 * MIB,
                        "host": 0,
                        "pinned": 0,
                        "context": 100 * MIB,
                        "occupied_s": 0.5,
                        "demand": 0.75,
                        "submissions": 77,
                        "window": 1024,
                        "swapped_out": 5,
                        "swapped_in": 6,
                        "waiting_for": None,
                        "target": 48 * MIB,
                        "moving": 0,
                        "requested": 0,
                        "mode": "memory turns",
                        "kind": "unknown",
                        "quota": 40,
                        "floor_in_force": 30,
                        "scaled_quota": 40.0,
                        "delivered": [0.5, 0.05, 0.0083],
                        "waiting_for_turn": None,
                        **_never_waited(),
                    }
                ],
                **_awake(),
            },
            {
                "id": "0000000000000002",
                "pid": 2,
                "name": "task-2",
                "pod": "",
                "namespace": "",
                "group": "process:2",
                "priority": "normal",
                "mem_limit": None,
                "core_limit": 100,
                "core_floor": 0,
                "state": "waiting",
                "gpus": [
                    {**_untouched(A), "waiting_for": "turn of 0000000000000001, at most 30 s"},
                    {**_untouched(B), "waiting_for": None},
                ],
                **_awake(),
            },
        ],
        "groups": [
            {
                "id": "pod:u",
                "label": "",
                "mem_limit": GIB,
                "mem_limit_from": "environment",
                "core_limit": 40,
                "core_floor": 30,
                "core_floor_in_force": {A: 30},
                "core_limit_from": "environment",
                "priority": "high",
                "priority_from": "environment",
                "clients": ["0000000000000001"],
                "allocated": {A: 48 * MIB},
            },
            {
                "id": "process:2",
                "label": "",
                "mem_limit": None,
                "mem_limit_from": None,
                "core_limit": 100,
                "core_floor": 0,
                "core_floor_in_force": {A: 0, B: 0},
                "core_limit_from": None,
                "priority": "normal",
                "priority_from": None,
                "clients": ["0000000000000002"],
                "allocated": {A: 0, B: 0},
            },
        ],
        "leases": [],
        "counters": {
            "grants": 1,
            "drops": 0,
            "switches": 0,
            "memory_granted": 1,
            "memory_denied": 0,
            "expelled": 0,
            "swapped_bytes": 11,
        },
    }


def _no_switches() -> dict[str, object]:
    return {
        "quantum_reason": "fixed",
        "stall_s": 0.0,
        "last_switch": None,
        "requested": 0,
        "unmanaged": [],
        "contexts_inside": False,
    }


def _awake() -> dict[str, Any]:
    return {"sleep": "awake", "cannot_sleep": "its library does not know how, or has not said yet"}


def _untouched(uuid: str) -> dict[str, object]:
    sizes = dict.fromkeys(("allocated", "resident", "host", "pinned", "context", "target", "moving", "requested"), 0)
    counts = dict.fromkeys(("submissions", "window", "swapped_out", "swapped_in"), 0)
    compute = {"mode": "memory turns", "kind": "unknown", "quota": 100, "scaled_quota": 100.0, "waiting_for_turn": None}
    compute["floor_in_force"] = 0
    used = {"uuid": uuid, "occupied_s": 0.0, "demand": 1.0, "delivered": [0.0] * 3}
    return {**used, **sizes, **counts, **compute, **_never_waited()}


def _never_waited() -> dict[str, object]:
    waited = {"memory": 0.0, "slice": 0.0, "quota": 0.0}
    return {"waited_s": waited, "switches": 0, "denied": 0, "drain_timeouts": 0}


def test_what_an_operator_changed_is_told_until_it_is_as_it_was_started() -> None:
    scene = Scene(quantum=20.0)

    def changed() -> tuple[str, ...]:
        return scene.scheduler.snapshot(scene.now).settings.operator

    scene.change(mode=Mode.SERIAL, anti_thrash=False, switch_time=SwitchTime.AUTO)
    assert changed() == ("mode", "anti_thrash", "quantum")
    scene.change(mode=Mode.AUTO, quantum=20.0)
    assert changed() == ("anti_thrash",)


def test_a_reset_of_the_settings_brings_back_what_the_scheduler_was_started_with() -> None:
    # GIVEN a quantum beyond the longest turn, which no operator could set
    scene = Scene(Mode.SERIAL, quantum=600.0, switch_time=SwitchTime.AUTO)
    started_with = scene.scheduler.settings
    scene.register(1)
    scene.change(mode=Mode.CONCURRENT, anti_thrash=False, quantum=5.0)
    # WHEN all is taken back THEN it is there again, and clients are told that there are turns
    answer = scene.send(e.SettingsReset(scene.now))
    assert scene.scheduler.settings == started_with
    assert [command.client for command in only(answer, c.SchedOn)] == [1]
    assert scene.scheduler.snapshot(scene.now).settings.operator == ()


def test_a_reset_does_not_take_turns_from_memory_that_needs_them() -> None:
    scene = Scene(declared=8 * GIB, anti_thrash=False)
    scene.change(anti_thrash=True)
    for client in (1, 2):
        scene.mover(client, 6 * GIB)
    answer = scene.send(e.SettingsReset(scene.now))
    assert scene.scheduler.settings.anti_thrash
    assert "anti-thrash stays on" in said(answer, c.Level.WARN)[0]


def test_turns_that_pass_from_client_to_client_are_counted() -> None:
    scene = Scene(Mode.SERIAL)
    scene.register(1)
    scene.register(2)
    scene.request(1)
    scene.request(2)
    scene.pass_time(30.0)
    scene.release(1)
    scene.release(2)
    scene.request(2)

    counters = scene.scheduler.snapshot(0.0).counters

    assert (counters.grants, counters.drops, counters.switches) == (3, 1, 1)


def test_why_a_card_runs_the_way_it_does_is_said_in_words() -> None:
    scene = Scene(Mode.AUTO)
    scene.register(1)
    scene.allocate(1, GIB)

    assert (scene.gpu()["policy"], scene.gpu()["reason"]) == ("free", "memory fits (1024 <= 16384 MB)")
    scene.change(mode=Mode.CONCURRENT)
    assert scene.gpu()["reason"] == "concurrent mode: all at once"
    scene.change(anti_thrash=False)
    assert scene.gpu()["reason"] == "anti-thrash is off: all run freely"


def test_a_switch_under_way_is_shown_in_bytes_and_words() -> None:
    scene = Scene(Mode.AUTO, declared=16 * GIB)
    scene.mover(1, 12 * GIB, works=True)
    scene.mover(2, 12 * GIB, works=True)
    scene.move_all()
    scene.pass_time(30.0)
    scene.release(1)
    scene.move(1, GIB)
    scene.move(2, GIB // 2)

    first, second = (view.gpus[0] for view in scene.scheduler.snapshot(scene.now).clients)

    assert (first.resident, first.host, first.target, first.moving) == (11 * GIB, GIB, 4 * GIB, 7 * GIB)
    assert (second.resident, second.target, second.moving) == (4 * GIB + GIB // 2, 5 * GIB, GIB // 2)
    assert (first.waiting_for, second.waiting_for) == (None, "7.5 GiB to arrive")
