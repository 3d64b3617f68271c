"""What the scheduler is told of pods, in which messages."""

from __future__ import annotations

import json
from dataclasses import replace

from nvshare.kube.pods.apply import ENTRIES, Told
from nvshare.kube.pods.desired import KEEP, Wanted
from nvshare.wire.messages import MAX_REQUEST


def pods(count, **fields):
    return {f"{number:032x}": Wanted(f"{number:032x}", "default", f"pod-{number}", **fields) for number in range(count)}


def played(messages, known):
    """The scheduler's own rule, applied to its picture."""
    listed: set[str] = set()
    for message in messages:
        for entry in message["pods"]:
            known[entry["uid"]] = entry
        for uid in message.get("gone", ()):
            known.pop(uid, None)
        if message.get("whole"):
            listed |= {entry["uid"] for entry in message["pods"]}
            if not message["more"]:
                for uid in known.keys() - listed:
                    del known[uid]
                listed = set()
    return known


def test_new_connection_is_told_everything_and_what_is_no_more_is_closed():
    wanted = pods(500, cores=30)
    known = played(Told().next_messages(wanted), {"gone": {"uid": "gone"}})
    assert known == {uid: one.entry() for uid, one in wanted.items()}


def test_no_pods_are_a_whole_list_too():
    assert played(Told().next_messages({}), {"gone": {}}) == {}


def test_then_only_what_changed():
    told = Told()
    wanted = pods(500)
    known = played(told.next_messages(wanted), {})
    assert list(told.next_messages(wanted)) == []
    changed = {**wanted, **pods(3, cores=30)}
    del changed[f"{400:032x}"]
    (message,) = told.next_messages(changed)
    assert len(message["pods"]) == 3
    assert message["gone"] == [f"{400:032x}"]
    assert played([message], known) == {uid: one.entry() for uid, one in changed.items()}
    assert list(told.next_messages(changed)) == []


def test_storm_of_changes_is_many_messages_and_those_who_use_a_gpu_come_first():
    told = Told()
    known = played(told.next_messages(pods(500)), {})
    changed = {**pods(500, cores=30), "f" * 32: Wanted("f" * 32, "default", "busy", cores=10, uses_gpu=True)}
    messages = []
    while more := list(told.next_messages(changed)):
        messages += more
    assert messages[0]["pods"][0]["name"] == "busy"
    assert all(len(message["pods"]) <= ENTRIES for message in messages)
    assert played(messages, known) == {uid: one.entry() for uid, one in changed.items()}


def test_nobody_waits_for_ever_while_all_change_all_the_time():
    told = Told()
    count = 3 * ENTRIES
    list(told.next_messages(pods(count)))
    heard: set[str] = set()
    for cores in range(1, 10):
        (message,) = told.next_messages(pods(count, cores=cores))
        heard |= {entry["uid"] for entry in message["pods"]}
    assert len(heard) == count


def test_message_that_was_not_answered_is_not_taken_for_told():
    told = Told()
    list(told.next_messages({}))
    wanted = pods(1)
    broken = told.next_messages(wanted)
    next(broken)
    broken.close()  # type: ignore[attr-defined]
    assert len(next(told.next_messages(wanted))["pods"]) == 1


def test_every_message_fits_into_a_frame_however_long_the_names():
    wanted = {
        f"{number:064x}": Wanted(f"{number:064x}", "n" * 253, "p" * 253, 2**56, 100, 2**56) for number in range(500)
    }
    told = Told()
    messages = list(told.next_messages(wanted))
    others = {f"{number:064x}": replace(one, uid=f"{number:064x}") for number, one in enumerate(wanted.values(), 1000)}
    messages += told.next_messages(others)
    assert messages[-1]["gone"]
    for message in messages:
        assert len(json.dumps({"op": "pods", **message}).encode()) <= MAX_REQUEST


def test_what_is_kept_differs_from_none():
    told = Told()
    list(told.next_messages(pods(1, mem=None)))
    (message,) = told.next_messages(pods(1, mem=KEEP))
    assert "mem" not in message["pods"][0]
