"""The daemon's own rules, with a clock turned by hand."""

from __future__ import annotations

import json
import logging
import os
import threading

import pytest

from nvshare import procfs
from nvshare.core import commands, events
from nvshare.core.awaited_facts import SAMPLE_WAIT
from nvshare.core.policy.membership import Process
from nvshare.daemon import identity
from nvshare.daemon.admission import FRAME_TIMEOUT
from nvshare.daemon.connection import READS_WITHIN, ClientConnection
from nvshare.daemon.contexts import ContextMeter
from nvshare.daemon.identity import Peer
from nvshare.daemon.offences import LINES_PER_PEER, LINES_PER_USER, WINDOW, OffenceLog
from nvshare.daemon.sampling import SAMPLE_PERIOD
from nvshare.wire import messages as wire
from nvshare.wire.codec import Encoder

GPUS = tuple(f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(2))
MIB = 1 << 20
GIB = 1 << 30


def send(connection, encoder, *messages):
    for message in messages:
        connection.data_received(encoder.encode(message))


@pytest.fixture
def warnings(caplog):
    logger = logging.getLogger("nvshare")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    logger.propagate = True
    logger.removeHandler(caplog.handler)


def test_peer_that_begins_a_frame_and_stops_is_dropped(in_memory):
    # GIVEN a peer in the middle of a frame
    node = in_memory()
    connection, transport = node.connect()
    connection.data_received(Encoder().encode(wire.ReqLock(0))[:10])
    node.loop.advance(FRAME_TIMEOUT - 1)
    assert not transport.closed
    # WHEN its time is over THEN it is told and dropped
    node.loop.advance(3)
    assert transport.closed
    assert "no complete message" in transport.messages()[0].reason


def test_peer_that_connects_and_says_nothing_is_dropped(in_memory):
    node = in_memory()
    _, transport = node.connect()
    node.loop.advance(FRAME_TIMEOUT + 3)
    assert transport.closed


def test_quiet_client_stays(in_memory):
    # GIVEN a client that registered and says no more
    node = in_memory()
    connection, transport = node.connect()
    send(connection, Encoder(), wire.Register((wire.GpuEntry(GPUS[0]),)))
    # WHEN hours pass THEN it is still there
    node.loop.advance(1.0)
    node.loop.run_next_from_thread()
    node.loop.advance(7200)
    assert not transport.closed


def test_debug_log_names_the_release_of_a_clients_library(in_memory, caplog):
    caplog.set_level(logging.DEBUG, "nvshare")
    connection, _ = in_memory().connect()
    send(connection, Encoder(), wire.Register((wire.GpuEntry(GPUS[0]),), library="0.1.0"))
    assert f"process {os.getpid()} has the library of release 0.1.0" in caplog.messages


def nobody_is_operator(monkeypatch):
    monkeypatch.setattr(identity, "is_operator", lambda peer, pod, own_pod: False)


def test_connections_beyond_the_limit_are_refused(in_memory, monkeypatch):
    nobody_is_operator(monkeypatch)
    node = in_memory(max_connections=4)
    made = [node.connect() for _ in range(4)]
    # one user gets three quarters
    assert [transport.closed for _, transport in made] == [False, False, False, True]
    assert "all one user gets" in made[3][1].messages()[0].reason
    # AND a place that becomes free can be had again
    made[0][0].connection_lost(None)
    assert not node.connect()[1].closed


def test_peer_that_does_not_read_is_dropped(in_memory, warnings):
    node = in_memory()
    connection, transport = node.connect()
    encoder = Encoder()
    send(connection, encoder, wire.Register((wire.GpuEntry(GPUS[0]),)))
    transport.reads = False
    for request in range(40_000):
        send(connection, encoder, wire.MemRequest(0, request, 1 << 60))
        if transport.closed:
            break
    assert transport.closed
    assert len(transport.sent) < 2 * MIB
    assert any("does not read" in line for line in warnings())


def test_timer_of_the_core_fires_when_asked(in_memory):
    # GIVEN two clients that take turns on one card
    node = in_memory()
    encoders = [Encoder(), Encoder()]
    peers = [node.connect() for _ in encoders]
    for (connection, _), encoder in zip(peers, encoders, strict=True):
        send(connection, encoder, wire.Control(b'{"op":"set","mode":"serial","quantum":5}'))
        send(connection, encoder, wire.Register((wire.GpuEntry(GPUS[0]),)), wire.ReqLock(0))
    holder = peers[0][1]
    assert wire.DropLock not in [type(message) for message in holder.messages()]
    # WHEN the quantum is over THEN the holder is told to stop
    node.loop.advance(5.1)
    assert wire.DropLock in [type(message) for message in holder.messages()]


def test_same_process_coming_back_keeps_its_id(in_memory):
    # GIVEN a client whose old connection has not ended yet
    node = in_memory()
    first, old = node.connect()
    send(first, Encoder(), wire.Register((wire.GpuEntry(GPUS[0]),)))
    # WHEN it registers again with that id
    second, _ = node.connect()
    send(second, Encoder(), wire.Register((wire.GpuEntry(GPUS[0]),), previous_id=first.client))
    # THEN it has it, and the old connection is closed
    assert second.client == first.client
    assert old.closed
    assert len(node.core.snapshot(0).clients) == 1
    node.core.validate()


def test_run_that_is_opened_twice_by_one_process_replaces_the_first(in_memory):
    node = in_memory()
    first, old = node.connect()
    send(first, Encoder(), wire.Control(b'{"op":"run","label":"a"}'))
    second, _ = node.connect()
    send(second, Encoder(), wire.Control(b'{"op":"run","label":"b"}'))
    assert old.closed
    assert [group.label for group in node.core.snapshot(0).groups] == ["b"]
    second.connection_lost(None)
    assert node.core.snapshot(0).groups == ()


def test_who_lives_in_a_container_has_a_bound_of_its_own_and_keeps_no_operator_out(in_memory, monkeypatch):
    # GIVEN as many connections of one container's root as it gets
    with monkeypatch.context() as inside:
        nobody_is_operator(inside)
        node = in_memory(max_connections=8)
        inside.setattr(identity, "namespace_of", lambda pid: 4711)
        made = [node.connect() for _ in range(3)]
        assert [transport.closed for _, transport in made] == [False, False, True]
        assert "in one container" in made[2][1].messages()[0].reason
        # AND all others are taken by others
        for uid in range(6):
            inside.setattr(identity, "peer_of", lambda _, uid=uid: Peer(os.getpid(), 1000 + uid))
            assert not node.connect()[1].closed
        assert node.connect()[1].closed
    # THEN an operator is let in
    assert not node.connect()[1].closed


def test_operator_is_who_connected_not_who_has_its_number_now(in_memory, monkeypatch):
    node = in_memory()
    with monkeypatch.context() as before:
        nobody_is_operator(before)
        connection, transport = node.connect()
    send(connection, Encoder(), wire.Control(b'{"op":"set","mode":"serial"}'))
    assert "only root" in json.loads(transport.messages()[-1].body)["error"]


def test_process_that_has_ended_is_no_operator(in_memory, monkeypatch):
    def ended(connection, peer):
        raise ProcessLookupError

    monkeypatch.setattr(identity, "peer_pidfd", ended)
    connection, _ = in_memory().connect()
    assert not connection.origin.operator


def test_peer_that_does_not_read_is_not_listened_to(in_memory):
    node = in_memory()
    connection, transport = node.connect()
    connection.pause_writing()
    assert not transport.reading
    encoder = Encoder()
    connection.data_received(b"".join(encoder.encode(wire.Control(b'{"op":"nonsense"}')) for _ in range(2)))
    assert len(transport.messages()) == 1  # what was on its way already
    # WHEN it has read THEN it is answered
    connection.resume_writing()
    assert transport.reading
    assert len(transport.messages()) == 2
    node.loop.advance(READS_WITHIN + 0.1)
    assert not transport.closed
    # AND dropped where it never does
    connection.pause_writing()
    node.loop.advance(READS_WITHIN + 0.1)
    assert transport.closed


def test_run_inside_a_run_is_told_so_and_its_clients_belong_to_the_outer_one(in_memory, monkeypatch):
    # GIVEN the processes of an outer run, an inner run and a program, each below the one before
    outer, inner, program = 10, 20, 30
    parents = {program: inner, inner: outer, outer: 1}
    node = in_memory()
    above = identity.ancestry
    monkeypatch.setattr(identity, "ancestry", lambda pid: above(pid, lambda one: parents.get(one, 0)))
    monkeypatch.setattr(ClientConnection, "watch_process", lambda self: True)

    def process(pid, message):
        monkeypatch.setattr(identity, "peer_of", lambda _: Peer(pid, os.getuid()))
        connection, transport = node.connect()
        send(connection, Encoder(), message)
        return connection, transport

    # WHEN the inner one comes first, as it may after a restart, and the program with it
    process(inner, wire.Control(b'{"op":"run","mem":3221225472}'))
    early, early_transport = process(program, wire.Register((wire.GpuEntry(GPUS[0]),)))
    assert early.group == "run:20"
    process(outer, wire.Control(b'{"op":"run","mem":1073741824}'))
    # THEN the program is asked to register again, and belongs to the outer one then
    assert early_transport.closed
    late, _ = process(program, wire.Register((wire.GpuEntry(GPUS[0]),)))
    assert late.group == "run:10"
    assert node.core.snapshot(0).clients[0].mem_limit == GIB
    # AND another inner one is told where it is
    _, transport = process(inner, wire.Control(b'{"op":"run"}'))
    assert json.loads(transport.messages()[0].body)["inside"] == "10"


def test_a_process_learns_what_the_run_around_it_has(in_memory, monkeypatch):
    # GIVEN a run of two programs, one of which started a tool, beside a lone program that started one too
    run, first, second, tool, lone, its_tool = 10, 20, 30, 40, 50, 60
    parents = {run: 1, first: run, second: run, tool: second, lone: 1, its_tool: lone}
    node = in_memory()
    above = identity.ancestry
    monkeypatch.setattr(identity, "ancestry", lambda pid: above(pid, lambda one: parents.get(one, 0)))
    monkeypatch.setattr(identity, "pid_seen_by", lambda viewer, pid: pid)
    monkeypatch.setattr(ClientConnection, "watch_process", lambda self: True)

    def process(pid, *messages):
        monkeypatch.setattr(identity, "peer_of", lambda _: Peer(pid, os.getuid()))
        connection, transport = node.connect()
        send(connection, Encoder(), *messages)
        return transport.messages()[-1]

    def client(pid, allocated):
        process(pid, wire.Register((wire.GpuEntry(GPUS[0], allocated, allocated),)))

    process(run, wire.Control(b'{"op":"run","mem":3221225472}'))
    client(first, GIB)
    client(second, GIB // 2)
    client(lone, 5 * MIB)
    # WHEN processes ask THEN each is told of its own, and of nobody else
    members = (wire.ProcessEntry(first, GIB), wire.ProcessEntry(second, GIB // 2))
    of_run = wire.ShareReply(3 * GIB, 3 * GIB // 2, members)
    assert process(tool, wire.Share(GPUS[0])) == of_run
    assert process(first, wire.Share(GPUS[0])) == of_run
    assert process(run, wire.Share(GPUS[1])) == wire.ShareReply(3 * GIB)
    of_lone = wire.ShareReply(16 * GIB, 5 * MIB, (wire.ProcessEntry(lone, 5 * MIB),))
    assert process(its_tool, wire.Share(GPUS[0])) == of_lone
    # AND one that belongs to nobody is told so
    assert process(70, wire.Share(GPUS[0])) == wire.ShareReply()
    assert process(first, wire.Share("GPU-unknown")) == wire.ShareReply()


def test_registration_that_cannot_be_is_refused_with_its_code_and_one_budgeted_line(in_memory, warnings):
    node = in_memory()
    for _ in range(2 * LINES_PER_PEER):
        connection, transport = node.connect()
        send(connection, Encoder(), wire.Register((wire.GpuEntry("GPU-x"),)))
        (refused,) = transport.messages()
        assert refused.code == wire.RefusalCode.UNKNOWN_GPU
        assert transport.closed
    assert len(warnings()) == LINES_PER_PEER
    me = f"process {os.getpid()} (uid {os.getuid()})"
    assert warnings()[0] == f"{me}: refused: GPU 'GPU-x' is not one of this scheduler's ({', '.join(GPUS)})"


def test_first_request_for_memory_is_answered_when_the_cards_were_sampled(in_memory):
    node = in_memory()
    connection, transport = node.connect()
    node.daemon.source.taken = {(GPUS[0], os.getpid()): GIB}
    send(connection, Encoder(), wire.Register((wire.GpuEntry(GPUS[0]),)), wire.MemRequest(0, 1, 16 * GIB))
    assert not answers(transport)
    node.loop.run_next_from_thread()
    assert [type(answer) for answer in answers(transport)] == [wire.MemDenied]


def test_driver_that_never_answers_delays_each_client_once_and_a_little(in_memory, monkeypatch):
    # GIVEN an NVML that hangs
    node, driver = in_memory(), threading.Event()
    asked = []
    monkeypatch.setattr(node.daemon.source, "process_memory", lambda: (asked.append(1), driver.wait(10), {})[-1])
    for _ in range(2):
        connection, transport = node.connect()
        encoder = Encoder()
        send(connection, encoder, wire.Register((wire.GpuEntry(GPUS[0]),)), wire.MemRequest(0, 1, GIB))
        assert not answers(transport)
        node.loop.advance(SAMPLE_WAIT)
        send(connection, encoder, wire.MemRequest(0, 2, GIB))
        assert [type(answer) for answer in answers(transport)] == [wire.MemAvailable] * 2
    # THEN one thread waits for it
    driver.set()
    node.loop.run_next_from_thread()
    assert len(asked) == 1


def answers(transport):
    return [message for message in transport.messages() if isinstance(message, (wire.MemAvailable, wire.MemDenied))]


def test_environment_of_a_process_is_read_only_below_a_holder_of_leases(in_memory, monkeypatch):
    # GIVEN a program below a process that holds two leases, and one elsewhere
    holder, member, stranger = 10, 20, 30
    parents = {holder: 1, member: holder, stranger: 1}
    node, above, read = in_memory(), identity.ancestry, []
    monkeypatch.setattr(identity, "ancestry", lambda pid: above(pid, lambda one: parents.get(one, 0)))
    monkeypatch.setattr(ClientConnection, "watch_process", lambda self: True)

    def process(pid, message):
        monkeypatch.setattr(identity, "peer_of", lambda _: Peer(pid, os.getuid()))
        connection, transport = node.connect()
        send(connection, Encoder(), message)
        return connection, transport

    leases = [
        json.loads(process(holder, wire.Control(b'{"op":"lease"}'))[1].messages()[0].body)["lease"] for _ in range(2)
    ]
    monkeypatch.setattr(procfs, "variable", lambda pid, name: (read.append(pid), leases[1])[-1])
    # WHEN both register THEN the one is asked which lease it means, and the other is not
    groups = [process(pid, wire.Register((wire.GpuEntry(GPUS[0]),)))[0].group for pid in (member, stranger)]
    assert groups == [f"lease:{leases[1]}", f"process:{stranger}"]
    assert read == [member]


def test_flood_of_offences_is_logged_a_few_times(warnings):
    log = OffenceLog()
    for _ in range(100):
        log.report(Peer(1, 1000), "refused: rubbish", now=0.0)
    assert len(warnings()) == LINES_PER_PEER
    assert warnings()[0] == "process 1 (uid 1000): refused: rubbish"
    assert "further ones are not logged" in warnings()[-1]
    # many processes of one user share a budget too
    for pid in range(100):
        log.report(Peer(pid, 1000), "refused: rubbish", now=1.0)
    assert len(warnings()) == LINES_PER_USER
    # and later there is a new one
    log.report(Peer(1, 1000), "refused: rubbish", now=WINDOW + 2)
    assert len(warnings()) == LINES_PER_USER + 1


class TestContexts:
    def setup_method(self):
        self.meter = ContextMeter()
        held = events.HeldGpu("A", allocated=100 * MIB, resident=100 * MIB)
        self.meter.watch_event(events.ClientRegistered(0.0, 1, Process(7, (7,)), (held,)))

    def measure(self, used, before=None):
        before = self.meter.recorded() if before is None else before
        return [event.bytes for event in self.meter.measured(1.0, before, {("A", 7): used}, lambda client: 7)]

    def test_is_what_the_process_takes_beyond_what_it_allocated(self):
        assert self.measure(600 * MIB) == [500 * MIB]

    def test_is_not_reported_again_until_it_changes(self):
        assert self.measure(600 * MIB) == [500 * MIB]
        assert self.measure(600 * MIB + 1000) == []

    def test_memory_granted_but_not_yet_allocated_does_not_shrink_it(self):
        assert self.measure(600 * MIB) == [500 * MIB]
        self.meter.watch_command(commands.GrantMemory(1, "A", 1, 300 * MIB))
        assert self.measure(600 * MIB) == []

    def test_memory_freed_while_the_sample_was_taken_does_not_swell_it(self):
        before = self.meter.recorded()
        self.meter.watch_event(events.MemoryUpdated(0.5, 1, "A", released=100 * MIB, resident=0))
        assert self.measure(600 * MIB, before) == [500 * MIB]

    def test_is_not_measured_while_memory_is_on_the_host(self):
        self.meter.watch_event(events.MemoryUpdated(0.5, 1, "A", released=0, resident=40 * MIB, host=60 * MIB))
        assert self.measure(540 * MIB) == []
        self.meter.watch_event(events.MemoryUpdated(0.6, 1, "A", released=0, resident=100 * MIB))
        assert self.measure(600 * MIB) == [500 * MIB]

    def test_ends_with_the_client(self):
        self.meter.watch_event(events.ClientGone(0.5, 1))
        assert self.measure(600 * MIB) == []

    def test_reaches_the_core_from_a_sample(self, in_memory):
        node = in_memory()
        connection, _ = node.connect()
        node.daemon.source.taken = {(GPUS[0], os.getpid()): 500 * MIB}
        send(connection, Encoder(), wire.Register((wire.GpuEntry(GPUS[0]),)))
        node.loop.advance(SAMPLE_PERIOD)
        node.loop.run_next_from_thread()
        assert node.core.snapshot(0).gpus[0].contexts == 500 * MIB
