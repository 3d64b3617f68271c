"""Whatever one client does, it alone bears it: it is told and dropped, and the others never notice."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest

from nvshare.client.connection import Connection
from nvshare.wire import messages as wire
from nvshare.wire.codec import Encoder

GIB = 1 << 30
NO_GPU = "GPU-00000000-0000-0000-0000-00000000dead"


def frame(kind: int, payload: bytes, sequence: int = 1, magic: int = wire.MAGIC, version: int = wire.VERSION) -> bytes:
    return wire.HEADER.pack(magic, version, kind, len(payload), sequence) + payload


def register(gpu: str) -> bytes:
    return wire.Register((wire.GpuEntry(gpu),)).pack()


BEFORE_REGISTER = {
    "wrong magic": (lambda gpu: frame(1, b"", magic=0x41414141), "magic"),
    "oversized": (lambda gpu: wire.HEADER.pack(wire.MAGIC, wire.VERSION, 1, wire.MAX_REQUEST + 1, 1), "at most"),
    "truncated payload": (lambda gpu: frame(wire.MessageType.REGISTER, b"short"), "REGISTER does not parse"),
    "frame number skipped": (lambda gpu: frame(wire.MessageType.REGISTER, register(gpu), sequence=7), "expected 1"),
    "message before REGISTER": (lambda gpu: frame(4, wire.ReqLock(0).pack()), "REQ_LOCK before REGISTER"),
    "message of the scheduler": (lambda gpu: frame(5, wire.LockOk(0, 1).pack()), "LOCK_OK is sent by the scheduler"),
    "unknown GPU": (lambda gpu: frame(wire.MessageType.REGISTER, register(NO_GPU)), "not one of this scheduler's"),
    "too many GPUs": (
        lambda gpu: frame(wire.MessageType.REGISTER, wire.Register.STRUCT.pack(0, 0, 0, 0, 0, 999, *[b""] * 4)),
        "between 1 and 16",
    ),
    "text that is no text": (
        lambda gpu: frame(wire.MessageType.REGISTER, register(gpu)[:32] + b"\xff" * 8 + register(gpu)[40:]),
        "does not parse",
    ),
}  # fmt: skip


@pytest.mark.parametrize("offence", BEFORE_REGISTER)
def test_stranger_that_breaks_the_protocol_is_told_and_dropped(scheduler, connect, offence):
    # GIVEN a good client
    good = connect(scheduler)
    good.register(scheduler.gpus[0])
    # WHEN another sends something that cannot be
    make, reason = BEFORE_REGISTER[offence]
    bad = connect(scheduler)
    bad.send_bytes(make(scheduler.gpus[0]))
    # THEN it hears why and is hung up on, with a line in the log
    assert reason in bad.expect(wire.Refused).reason
    assert bad.ended()
    assert reason in scheduler.log()
    # AND the good one is served
    assert good.take_turn().grant


AFTER_REGISTER = {
    "registers twice": (lambda gpu: wire.Register((wire.GpuEntry(gpu),)), "REGISTER twice"),
    "index out of range": (lambda gpu: wire.ReqLock(5), "GPU index 5, but 1 attached"),
    "attaches a GPU twice": (lambda gpu: wire.Attach((wire.GpuEntry(gpu),)), "attached twice"),
    "releases memory it never had": (lambda gpu: wire.MemUpdate(0, released=GIB, resident=0), "released"),
    "is resident beyond what it has": (lambda gpu: wire.MemUpdate(0, released=0, resident=2**64 - 1), "resident"),
    "unknown release reason": (lambda gpu: wire.LockReleased(0, 1, reason=99), "reason 99"),
}


@pytest.mark.parametrize("offence", AFTER_REGISTER)
def test_client_that_says_what_cannot_be_is_told_and_dropped(scheduler, connect, offence):
    # GIVEN two clients
    good, bad = connect(scheduler), connect(scheduler)
    good.register(scheduler.gpus[0])
    bad.register(scheduler.gpus[0])
    # WHEN one says what cannot be
    make, reason = AFTER_REGISTER[offence]
    bad.send(make(scheduler.gpus[0]))
    # THEN it hears why, is hung up on and owns nothing any more
    assert reason in bad.expect(wire.Refused).reason
    assert bad.ended()
    assert [client["id"] for client in scheduler.status()["clients"]] == [f"{good.id:016x}"]
    assert good.take_turn().grant


def test_release_of_a_grant_never_held_is_ignored(scheduler, connect):
    client = connect(scheduler)
    client.register(scheduler.gpus[0])
    # WHEN it releases what it never had
    client.send(wire.LockReleased(0, grant=12345))
    # THEN it still is a client
    assert client.take_turn().grant


def test_request_larger_than_any_card_is_denied_not_punished(scheduler, connect):
    client = connect(scheduler)
    client.register(scheduler.gpus[0])
    assert isinstance(client.request_memory(2**64 - 1), wire.MemDenied)
    assert isinstance(client.request_memory(GIB), wire.MemAvailable)


def test_unknown_message_is_skipped(scheduler, connect):
    # GIVEN a client of a later minor release that knows a further message
    client = connect(scheduler)
    client.send_bytes(frame(4242, b"whatever"))
    client.encoder.encode(wire.ReqLock(0))  # its frame number is used up
    # THEN what follows is understood
    assert client.register(scheduler.gpus[0])


def test_replayed_frame_ends_the_connection(scheduler, connect):
    client = connect(scheduler)
    client.register(scheduler.gpus[0])
    request = client.encoder.encode(wire.ReqLock(0))
    client.send_bytes(request + request)
    assert "replayed" in client.expect(wire.Refused).reason
    assert client.ended()


def test_other_version_is_refused_with_both_named(scheduler, connect):
    client = connect(scheduler)
    client.send_bytes(frame(wire.MessageType.REGISTER, register(scheduler.gpus[0]), version=9))
    refused = client.expect(wire.Refused)
    assert refused.code == wire.RefusalCode.VERSION
    assert f"version {wire.VERSION}" in refused.reason
    assert "version 9" in refused.reason
    assert client.ended()


def test_client_that_never_reads_is_dropped_and_the_others_go_on(scheduler, connect):
    # GIVEN a client that asks and asks and reads nothing
    deaf, good = connect(scheduler), connect(scheduler)
    deaf.register(scheduler.gpus[0])
    good.register(scheduler.gpus[1])
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    requests = b"".join(deaf.encoder.encode(wire.MemRequest(0, number, 2**63)) for number in range(60_000))
    # WHEN its unread answers pass the limit
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        deaf.send_bytes(requests)
    # THEN it is dropped, and the other is served
    assert good.take_turn().grant
    scheduler.wait_until(lambda status: [client["id"] for client in status["clients"]] == [f"{good.id:016x}"])
    assert "does not read" in scheduler.log()


def test_many_status_requests_at_once_are_all_answered_in_order(scheduler):
    # GIVEN one connection that asks fifty times before it reads
    encoder = Encoder()
    with Connection(scheduler.socket) as connection:
        # WHEN the answers are read THEN there are as many, one after the other
        raw = socket.socket(fileno=socket.dup(connection.fileno()))
        raw.setblocking(True)
        raw.sendall(b"".join(encoder.encode(wire.Control(b'{"op":"status"}')) for _ in range(50)))
        answers, data = 0, b""
        while answers < 50:
            data += raw.recv(1 << 16)
            while len(data) >= wire.HEADER.size:
                length = struct.unpack_from("<I", data, 8)[0]
                if len(data) < wire.HEADER.size + length:
                    break
                data = data[wire.HEADER.size + length :]
                answers += 1
        raw.close()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"op":"fly"}', b"[" * 60_000, b"\xff\xfe", b'{"op":["status"]}', b'{"op":"set"}',
     b'{"op":"set","mode":"fast"}', b'{"op":"set","quantum":NaN}', b'{"op":"set","quantum":1e999}',
     b'{"op":"set","anti_thrash":1}', b'{"op":"limit"}', b'{"op":"limit","target":{"pid":1},"mem":-5}',
     b'{"op":"run","mem":true}', b'{"op":"run","label":7}', b'{"op":"status","x":' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_bad_control_request_gets_an_answer_that_says_what_is_allowed(scheduler, connect, body):
    client = connect(scheduler)
    client.send(wire.Control(body))
    answer = client.expect(wire.ControlReply).body
    assert b'"ok": false' in answer
    # AND the connection is still good
    client.send(wire.Control(b'{"op":"status"}'))
    assert b'"ok":true' in client.expect(wire.ControlReply).body


def test_stream_of_rubbish_does_not_keep_grants_from_a_good_client(scheduler, connect):
    # GIVEN a good client
    good = connect(scheduler)
    good.register(scheduler.gpus[0])
    chance = random.Random(7)
    valid = [register(scheduler.gpus[0]), wire.ReqLock(0).pack(), wire.Usage(0, 1, 2, 3).pack()]
    for round_number in range(150):
        # WHEN strangers send rubbish, whole or half
        bad = connect(scheduler)
        payload = bytearray(chance.choice(valid))
        payload[chance.randrange(len(payload))] ^= chance.randrange(1, 256)
        rubbish = chance.randbytes(chance.randrange(200))
        kind = chance.choice([1, 4, 7, 9, 16, 17, 19, 4242])
        bad.send_bytes(rubbish if round_number % 3 else frame(kind, bytes(payload)))
        # THEN the good one has every turn it asks for
        grant = good.take_turn()
        good.send(wire.LockReleased(0, grant.grant, wire.ReleaseReason.IDLE))
        bad.close()
    scheduler.wait_until(lambda status: [client["id"] for client in status["clients"]] == [f"{good.id:016x}"])
