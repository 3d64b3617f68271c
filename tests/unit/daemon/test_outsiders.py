"""Who on a card counts as a process outside nvshare, and who does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nvshare.core.events import Unmanaged, UnmanagedSeen
from nvshare.daemon.outsiders import DOUBT, UNSEEN, Look, Outsiders, look_at

MIB = 1 << 20
GPU = "GPU-a"
CLIENT, STRANGER, CHILD, OTHER = 10, 20, 30, 40
PLAIN = Look("blender", False, (STRANGER, 1))
OURS = Look("python", True, (STRANGER, 1))
GONE = Look("", False, ())


def sample(outsiders, now, processes, looks, clients=(CLIENT,)):
    taken = {(GPU, pid): size for pid, size in processes.items()}
    return list(outsiders.seen(now, taken, looks, clients))


@pytest.fixture
def outsiders():
    return Outsiders()


def test_clients_are_none(outsiders):
    assert sample(outsiders, 0.0, {CLIENT: 100 * MIB}, {}) == []


def test_a_process_without_the_library_is_one_at_once_and_until_it_goes(outsiders):
    processes = {CLIENT: 100 * MIB, STRANGER: 200 * MIB}
    seen = UnmanagedSeen(0.0, GPU, (Unmanaged(STRANGER, "blender", 200 * MIB),))
    assert sample(outsiders, 0.0, processes, {STRANGER: PLAIN}) == [seen]
    assert sample(outsiders, 1.0, processes, {STRANGER: PLAIN}) == []
    assert sample(outsiders, 2.0, {CLIENT: 100 * MIB}, {}) == [UnmanagedSeen(2.0, GPU, ())]


def test_a_change_worth_a_word_is_told(outsiders):
    sample(outsiders, 0.0, {STRANGER: 200 * MIB}, {STRANGER: PLAIN})
    assert sample(outsiders, 1.0, {STRANGER: 200 * MIB + 1}, {STRANGER: PLAIN}) == []
    assert len(sample(outsiders, 2.0, {STRANGER: 300 * MIB}, {STRANGER: PLAIN})) == 1
    assert len(sample(outsiders, 3.0, {STRANGER: None}, {STRANGER: PLAIN})) == 1


def test_a_process_on_its_way_to_us_is_given_time(outsiders):
    # GIVEN a process with the library in it that is no client (yet, or any more)
    processes = {CLIENT: 100 * MIB, STRANGER: 200 * MIB}
    assert sample(outsiders, 0.0, processes, {STRANGER: OURS}) == []
    # WHEN it registers THEN it never was one
    assert sample(outsiders, DOUBT + 1, processes, {STRANGER: OURS}, (CLIENT, STRANGER)) == []
    # AND when it goes on without us, it becomes one
    assert sample(outsiders, DOUBT + 2, processes, {STRANGER: OURS}) == []
    assert len(sample(outsiders, 2 * DOUBT + 2, processes, {STRANGER: OURS})) == 1


def test_what_a_dead_client_leaves_behind_is_not_taken_for_a_strangers(outsiders):
    processes = {CLIENT: 100 * MIB, STRANGER: 200 * MIB}
    assert sample(outsiders, 0.0, processes, {STRANGER: GONE}) == []
    assert sample(outsiders, 1.0, {CLIENT: 100 * MIB}, {}) == []


def test_a_client_that_left_while_the_sample_was_taken_is_looked_at_in_the_next_one(outsiders):
    assert sample(outsiders, 0.0, {STRANGER: 200 * MIB}, {}, ()) == []


def test_a_fork_child_of_a_client_is_none_but_a_program_it_starts_without_us_is(outsiders):
    child, program = Look("python", True, (CHILD, CLIENT, 1)), Look("static", False, (OTHER, CLIENT, 1))
    processes = {CLIENT: MIB, CHILD: 200 * MIB, OTHER: 300 * MIB}
    sample(outsiders, 0.0, processes, {CHILD: child, OTHER: program})
    sample(outsiders, DOUBT + 1, processes, {CHILD: child, OTHER: program})
    (seen,) = sample(outsiders, DOUBT + 2, {CLIENT: MIB, OTHER: 400 * MIB}, {OTHER: program})
    assert seen.users == (Unmanaged(OTHER, "static", 400 * MIB),)


@pytest.mark.parametrize(
    ("processes", "clients", "counts"),
    [
        ({CLIENT: MIB, STRANGER: 200 * MIB}, {CLIENT}, True),  # numbers are ours: it really cannot be seen
        ({CLIENT: MIB, 0: 200 * MIB}, {CLIENT}, True),
        ({STRANGER: 200 * MIB}, set(), True),
        ({STRANGER: 200 * MIB}, {CLIENT}, False),  # may well be the client, by another number
        ({CLIENT: MIB, 0: 200 * MIB}, {CLIENT, 0}, False),  # may be the client whose number we do not know
    ],
)
def test_numbers_of_another_namespace_count_only_where_no_client_can_be_meant(outsiders, processes, clients, counts):
    looks = {pid: GONE for pid in processes if pid != CLIENT}
    assert sample(outsiders, 0.0, processes, looks, clients) == []
    seen = sample(outsiders, DOUBT + 1, processes, looks, clients)
    assert [user.name for event in seen for user in event.users] == ([UNSEEN] if counts else [])


def test_a_look_at_a_process_tells_its_name_and_its_ancestors():
    look = look_at(os.getpid())
    assert look.name
    assert not look.preloaded
    assert look.ancestors[:2] == (os.getpid(), os.getppid())


def test_a_process_that_has_ended_is_seen_as_such():
    ended = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert look_at(ended.pid).name == ""
    ended.wait()
    assert look_at(ended.pid).name == ""
    assert look_at(0).name == ""
