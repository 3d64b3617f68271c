"""What ``nvsharectl status`` draws, from a snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from nvshare.cli import ctl
from nvshare.cli.status import status_view
from nvshare.client.connection import NoScheduler, SchedulerError

GIB = 1 << 30
UUIDS = ("GPU-dc895bd6-43d7-a984-b1ee-870332194bd1", "GPU-0a1b2c3d-43d7-a984-b1ee-870332194bd1")
COMPUTE = {"quota": 80, "scaled_quota": 66.67, "delivered": [0.671, 0.655, 0.5], "demand": 1.0,
           "mode": "compute turns", "waiting_for_turn": "its quota of 80 %"}  # fmt: skip
SNAPSHOT: dict[str, Any] = {
    "version": 1,
    "scheduler": {"release": "0.1.0"},
    "settings": {"mode": "auto", "anti_thrash": True, "switch_time": "auto", "quantum_s": 30.0, "max_runtime_s": 300.0},
    "gpus": [
        {"uuid": uuid, "name": "NVIDIA A100-SXM4-80GB", "allocated": 12 * GIB, "capacity": 15 * GIB, "policy": "turns",
         "reason": "memory does not fit (18432 > 15360 MB)", "quantum_s": 12.5, "quantum_reason": "2 % for switches",
         "last_switch": {"bytes_out": 3 * GIB, "bytes_in": 2 * GIB, "seconds": 0.75, "stall_s": 0.25},
         "running": ["a12c4b64b99e09dc"], "waiting": ["0123456789abcdef"],
         "unmanaged": []}
        for uuid in UUIDS
    ],
    "clients": [
        {"id": "a12c4b64b99e09dc", "pid": 4194303, "name": "python3.11-debug", "pod": "", "namespace": "",
         "group": "run:4711", "mem_limit": 4 * GIB, "state": "running", "priority": "high",
         "gpus": [{"uuid": uuid, "allocated": 4 * GIB, "resident": 4 * GIB, "host": 0, "moving": 0,
                   "occupied_s": 12345.6, "waiting_for": None, **COMPUTE} for uuid in UUIDS]},
        {"id": "0123456789abcdef", "pid": 12, "name": "add", "pod": "nvshare-small-1", "namespace": "default",
         "group": "pod:x", "mem_limit": None, "state": "waiting", "priority": "normal",
         "gpus": [{"uuid": UUIDS[0], "allocated": 0, "resident": 0, "host": 0, "moving": 0, "occupied_s": 0.0,
                   "waiting_for": "turn of a12c4b64b99e09dc, at most 9 s", **COMPUTE, "quota": 100, "mode": "free",
                   "waiting_for_turn": None}]},
    ],
    "leases": [],
    "groups": [{"id": "run:4711", "label": "trial-7"}, {"id": "pod:x", "label": ""}],
}  # fmt: skip


def draw(snapshot, width):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(status_view(snapshot))
    return capture.get()


WIDTHS = [80, 100, 160]
LEASE = {"id": "00aa11bb22cc33dd", "pid": 4194302, "label": "sweep-of-learning-rates-7", "gpus": list(UUIDS),
         "mem": GIB, "cores": 25, "state": "quarantined", "reason": "process 7 has not left the GPU"}  # fmt: skip
AWAY = {"allocated": 16 * GIB, "resident": 900 << 20, "host": 14 * GIB, "moving": GIB}


def crowded():
    """All that status can show, at once: a lease, memory turns, quotas, an operator, and long names."""
    clients = [
        {**client, "group": group, "state": state, "mem_limit": 4 * GIB,
         "gpus": [{**gpu, **AWAY, "mode": "memory turns"} for gpu in client["gpus"]]}
        for client, group, state in zip(
            SNAPSHOT["clients"], ("run:4194301", f"lease:{LEASE['id']}"), ("draining", "waiting"), strict=True)
    ]  # fmt: skip
    groups = [
        {"id": "run:4194301", "label": "a-trial-whose-name-is-longer-than-most-terminals-like-it", "mem_limit": 4 * GIB,
         "mem_limit_from": "operator", "core_limit": 80, "core_limit_from": "operator", "priority": "high",
         "priority_from": "operator"},
        {"id": f"lease:{LEASE['id']}", "label": LEASE["label"], "mem_limit": GIB, "mem_limit_from": "run"},
    ]  # fmt: skip
    settings = {**SNAPSHOT["settings"], "mode": "concurrent", "operator": ["mode", "anti_thrash"]}
    return {**SNAPSHOT, "clients": clients, "groups": groups, "leases": [LEASE], "settings": settings}


@pytest.mark.parametrize("snapshot", [SNAPSHOT, crowded()], ids=["ordinary", "crowded"])
@pytest.mark.parametrize("width", WIDTHS)
def test_status_fits_the_terminal(width, snapshot):
    assert max(len(line) for line in draw(snapshot, width).splitlines()) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_lost_in_a_narrow_terminal(width):
    # GIVEN all words of a terminal that has room for everything
    wide, narrow = draw(crowded(), 1000), draw(crowded(), width)
    broken = set(wide.split()) - set(narrow.split())
    # THEN they are all there, and names that are longer than their column go on in the next line
    assert broken <= {LEASE["label"], crowded()["groups"][0]["label"], "default/nvshare-small-1"}
    assert all(end in narrow for end in ("-7 ", "-like-it ", "small-1 "))


def test_columns_that_find_no_room_are_below_with_the_same_names_before_them():
    lines = draw(crowded(), 80).splitlines()
    below = next(index for index, line in enumerate(lines) if "ON HOST" in line)
    assert " ".join(lines[below].split()) == "CLIENT GPU LIMIT ON CARD ON HOST"
    assert " ".join(lines[below + 1].split()) == "a12c4b64b99e09dc #0 4.0 GiB 900.0 MiB 14.0 GiB"


def test_columns_that_say_the_ordinary_of_everybody_are_left_out():
    plain = [{**client, "group": "process:1", "priority": "normal",
              "gpus": [{**gpu, "quota": 100, "scaled_quota": 100.0} for gpu in client["gpus"]]}
             for client in SNAPSHOT["clients"]]  # fmt: skip
    text = draw({**SNAPSHOT, "clients": plain}, 80)
    assert sum(line.startswith("CLIENT") for line in text.splitlines()) == 2
    for column in (" RUN ", "CORES", "SCALED", "PRIORITY", "ON CARD"):
        assert column not in text.partition("CLIENT")[2]


def test_status_names_runs_and_leases_as_they_can_be_named_to_nvsharectl():
    lines = [line.split() for line in draw(crowded(), 160).splitlines() if line.startswith("CLIENT")]
    rows = [line.split() for line in draw(crowded(), 160).splitlines() if line.startswith("0123456789abcdef")]
    assert "RUN" in lines[0]
    assert LEASE["id"] in rows[0]


def test_status_tells_what_an_operator_set():
    text = " ".join(draw(crowded(), 80).split())
    assert "mode concurrent (operator), quantum auto, anti-thrash on (operator)" in text
    assert "run 4194301 (a-trial-whose-name" in text
    assert "has memory 4.0 GiB, cores 80 %, priority high set by an operator" in text
    assert text.count("set by an operator") == 1


def test_status_tells_floors_and_where_they_are_not_in_force():
    guaranteed = {**SNAPSHOT["clients"][0], "core_floor": 30}
    clients = [{**guaranteed, "gpus": [{**gpu, "quota": 60} for gpu in guaranteed["gpus"]]}, SNAPSHOT["clients"][1]]
    floors = {"core_limit": 60, "core_floor": 30, "core_floor_in_force": {UUIDS[0]: 30, UUIDS[1]: 10}}
    groups = [{**SNAPSHOT["groups"][0], **floors, "core_limit_from": "operator"}, SNAPSHOT["groups"][1]]
    leases = [{**LEASE, "cores": 100, "core_floor": 25}]
    text = " ".join(draw({**SNAPSHOT, "clients": clients, "groups": groups, "leases": leases}, 200).split())
    for expected in (
        "30..60 %",
        "25.. %",
        "run 4711 (trial-7) has cores 30..60 % set by an operator",
        "run 4711 (trial-7) is guaranteed 10 % instead of 30 % on #1, where other floors leave no room",
    ):
        assert expected in text
    assert text.count("is guaranteed") == 1


def test_status_names_who_runs_who_waits_and_what_they_hold():
    text = draw(SNAPSHOT, 120)
    for expected in ("a12c4b64b99e09dc", "4194303", "trial-7", "running", "4.0 GiB", "12345.6 s"):
        assert expected in text
    for expected in (
        "default/nvshare-small-1",
        "waiting",
        "GPU-dc895bd6",
        "NVIDIA A100-SXM4-80GB",
        "turns",
        "mode auto",
    ):
        assert expected in text


def test_status_tells_quotas_what_they_come_to_and_what_was_delivered():
    lines = [" ".join(line.split()) for line in draw(SNAPSHOT, 120).splitlines() if "compute turns" in line]
    assert lines[0] == "a12c4b64b99e09dc #0 12345.6 s 80 % 66.7 % 67.1 % 65.5 % 50.0 % 100.0 % high in compute turns"
    assert "a12c4b64b99e09dc on #0 waits for its quota of 80 %" in draw(SNAPSHOT, 120)


def test_status_explains_turns_and_waiting():
    text = draw(SNAPSHOT, 120)
    assert "#0 takes turns: memory does not fit (18432 > 15360 MB)" in text
    assert "#0 turns of 12.5 s: 2 % for switches" in text
    assert "#1 last switch: 3.0 GiB out, 2.0 GiB in, 0.75 s, 0.25 s of them with nobody on the card" in text
    assert "0123456789abcdef on #0 waits for turn of a12c4b64b99e09dc, at most 9 s" in text
    assert "ON HOST" not in text


def test_status_shows_where_memory_is_while_some_of_it_is_away():
    place = {**SNAPSHOT["clients"][1]["gpus"][0], "allocated": 6 * GIB, "resident": GIB, "host": 5 * GIB, "moving": GIB}
    text = draw({**SNAPSHOT, "clients": [{**SNAPSHOT["clients"][1], "gpus": [place]}]}, 120)
    for expected in ("ON CARD", "ON HOST", "6.0 GiB", "5.0 GiB", "0123456789abcdef on #0 moves 1.0 GiB"):
        assert expected in text


@pytest.mark.parametrize("name", ["[/]", "[bold]x[/bold]", "[red]", ":smile:"])
def test_names_from_outside_are_shown_as_they_are(name):
    client = {**SNAPSHOT["clients"][0], "name": name}
    pod = {**SNAPSHOT["clients"][1], "pod": name}
    gpus = [{**gpu, "name": name} for gpu in SNAPSHOT["gpus"]]
    groups = [{"id": "run:4711", "label": name}]
    text = draw({**SNAPSHOT, "gpus": gpus, "clients": [client, pod], "groups": groups}, 160)
    assert text.count(name) == 4


def test_watch_goes_on_whatever_answers(monkeypatch):
    # GIVEN a scheduler whose socket is taken by something else after the second look
    looks = iter(
        [SNAPSHOT, SNAPSHOT, SchedulerError("not an nvshare scheduler"), NoScheduler("gone"), KeyboardInterrupt()]
    )

    class Looks:
        def __init__(self, _): ...
        def __enter__(self):
            return self

        def __exit__(self, *_): ...
        def status(self):
            look = next(looks)
            if isinstance(look, BaseException):
                raise look
            return look

    monkeypatch.setattr(ctl, "Connection", Looks)
    monkeypatch.setattr(ctl, "_PERIOD", 0)
    # WHEN it is watched THEN until Ctrl-C
    result = CliRunner().invoke(ctl.main, ["status", "--watch"])
    assert result.exit_code == 130, result.output
    assert next(looks, None) is None


def test_node_without_clients_says_so():
    assert "no clients" in draw({**SNAPSHOT, "clients": []}, 80)


def test_processes_outside_nvshare_are_named_with_what_they_have():
    users = [{"pid": 4711, "name": "blender", "bytes": 3 * GIB}, {"pid": 0, "name": "[red]x", "bytes": None}]
    gpus = [{**SNAPSHOT["gpus"][0], "unmanaged": users}, SNAPSHOT["gpus"][1]]
    text = " ".join(draw({**SNAPSHOT, "gpus": gpus}, 120).split())
    outside = "blender (pid 4711, 3.0 GiB), [red]x (pid unknown, size unknown)"
    assert f"#0 is used outside nvshare too: {outside}" in text
    assert "#1 is used outside" not in text


def test_leases_are_shown_with_why_a_place_is_kept():
    lease = {"id": "00aa11bb22cc33dd", "pid": 7, "label": "trial", "gpus": [UUIDS[1]], "mem": GIB, "cores": 25}
    held, kept = {**lease, "state": "held", "reason": None}, {**lease, "state": "quarantined", "reason": "7 is there"}
    text = draw({**SNAPSHOT, "leases": [held, kept]}, 120)
    for expected in ("LEASE", "00aa11bb22cc33dd", "trial", "#1", "held", "quarantined", "1.0 GiB", "25 %"):
        assert expected in text
    assert "lease 00aa11bb22cc33dd has ended, its place is kept: 7 is there" in text
    assert "LEASE" not in draw(SNAPSHOT, 120)


def test_cards_are_numbered_as_the_driver_does():
    text = draw({**SNAPSHOT, "scheduler": {**SNAPSHOT["scheduler"], "cards": [UUIDS[1], UUIDS[0]]}}, 120)
    lines = [line.split() for line in text.splitlines() if line.startswith("#")]
    assert [line[:2] for line in lines[:2]] == [["#0", UUIDS[1][:12]], ["#1", UUIDS[0][:12]]]
