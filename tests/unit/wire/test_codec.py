from __future__ import annotations

import contextlib
import itertools
import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshare.wire import messages as wire
from nvshare.wire.codec import Decoder, Encoder, ProtocolError, Unknown, VersionMismatch

GPU = wire.GpuEntry("GPU-3f2a9c1e-7b54-4d0a-9e61-0c5d1f7a8b22", 1, 2, 3)
SAMPLES = [
    wire.Register((GPU, wire.GpuEntry("GPU-b")), 1, 2, 3, 1, 1, "python", "pod", "namespace", "0.1.0"),
    wire.SchedOn(2**64 - 1),
    wire.SchedOff(7),
    wire.ReqLock(1),
    wire.LockOk(0, 9, 3, 1500),
    wire.DropLock(0, 9, 10_000),
    wire.LockReleased(0, 9, 3),
    wire.SetTq(30),
    wire.MemUpdate(0, 1, 2, 3, 4, 5),
    wire.WaitForMem(0, 1),
    wire.MemAvailable(0, 1),
    wire.PrepareSwapOut(0, 2**33),
    wire.UpdateLimit(0, 2**30, 2**34),
    wire.UpdateCoreLimit(30),
    wire.Refused(1, "why – ünïcode"),
    wire.Attach((GPU,)),
    wire.MemRequest(0, 1, 2, 1),
    wire.MemDenied(0, 1, 3),
    wire.Usage(0, 1024, 1, 2, 3, 4),
    wire.Control(b'{"op":"status"}'),
    wire.ControlReply(b"{}"),
    wire.Residency(0, 1, 2**33),
    wire.Terms(0, 1, 4000),
    wire.ReqTurn(0),
    wire.TurnOk(0, 2**40, 50_000),
    wire.EndTurn(0, 3),
    wire.TurnOver(0, 3, 1, 2**33, 2**32, 900, 1),
    wire.Share(GPU.uuid),
    wire.ShareReply(2**34, 2**33, (wire.ProcessEntry(1, 2**33), wire.ProcessEntry(2, 0))),
    wire.Sleepable(2, 2**29),
    wire.Sleep(2**40, 3000, 2**29),
    wire.Slept(2**40, 2, 0, 304),
    wire.ReqWake(2**40),
    wire.Wake(2**40),
    wire.Awake(2**40, 2),
]


def encoded(messages=SAMPLES) -> bytes:
    encoder = Encoder()
    return b"".join(encoder.encode(message) for message in messages)


def test_there_is_a_sample_of_every_message():
    assert {message.TYPE for message in SAMPLES} == set(wire.MessageType) == set(wire.BY_TYPE)


def test_names_that_users_know_have_their_values():
    known = (
        "REGISTER SCHED_ON SCHED_OFF REQ_LOCK LOCK_OK DROP_LOCK LOCK_RELEASED SET_TQ MEM_UPDATE WAIT_FOR_MEM "
        "MEM_AVAILABLE PREPARE_SWAP_OUT UPDATE_LIMIT UPDATE_CORE_LIMIT"
    )
    assert [wire.MessageType(value).name for value in range(1, 15)] == known.split()


def test_whole():
    assert list(Decoder().feed(encoded())) == SAMPLES


def test_byte_by_byte():
    decoder = Decoder()
    data = encoded()
    assert [message for index in range(len(data)) for message in decoder.feed(data[index : index + 1])] == SAMPLES
    assert decoder.pending == 0


@given(st.lists(st.integers(0, len(encoded())), max_size=40))
def test_in_any_portions(cuts):
    stream, decoder = encoded(), Decoder()
    places = [0, *sorted(cuts), len(stream)]
    portions = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    assert [message for portion in portions for message in decoder.feed(portion)] == SAMPLES


@pytest.mark.parametrize("message", [sample for sample in SAMPLES if sample.LAYOUT])
def test_trailing_bytes_of_a_later_release_are_ignored(message):
    payload = message.pack() + b"\xff" * 24
    header = wire.HEADER.pack(wire.MAGIC, wire.VERSION, message.TYPE, len(payload), 1)
    assert list(Decoder().feed(header + payload)) == [message]


@pytest.mark.parametrize("message", [sample for sample in SAMPLES if sample.LAYOUT])
def test_payload_that_is_too_short_does_not_parse(message):
    payload = message.pack()[:-1]
    header = wire.HEADER.pack(wire.MAGIC, wire.VERSION, message.TYPE, len(payload), 1)
    with pytest.raises(ProtocolError, match=f"{message.TYPE.name} does not parse"):
        list(Decoder().feed(header + payload))


@pytest.mark.parametrize("message", [sample for sample in SAMPLES if sample.LAYOUT])
def test_reserved_bytes_are_sent_as_zeros_and_ignored(message):
    payload, offset = bytearray(message.pack()), 0
    for name, code in message.LAYOUT:
        size = struct.calcsize("<" + code)
        if name not in message.NAMES:
            assert not any(payload[offset : offset + size])
            payload[offset : offset + size] = b"\xff" * size
        offset += size
    assert type(message).unpack(bytes(payload)) == message


@dataclass(frozen=True)
class Grown(wire.Message):
    old: int
    new: int = 0

    LAYOUT = (("old", "I"), ("new", "I"))
    APPENDED = 1


def test_field_that_the_previous_release_does_not_send_reads_as_zero():
    assert Grown.unpack(Grown(5, 6).pack()) == Grown(5, 6)
    assert Grown.unpack(Grown(5, 6).pack()[:4]) == Grown(5, 0)
    with pytest.raises(struct.error):
        Grown.unpack(Grown(5, 6).pack()[:3])


def test_incomplete_frame_is_pending():
    decoder = Decoder()
    assert list(decoder.feed(encoded()[:20])) == []
    assert decoder.pending == 20


def test_unknown_message_is_handed_on_as_such():
    header = wire.HEADER.pack(wire.MAGIC, wire.VERSION, 4242, 3, 1)
    assert list(Decoder().feed(header + b"abc")) == [Unknown(4242, 3)]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ((0x41414141, wire.VERSION, 1, 0, 1), "bad magic"),
        ((wire.MAGIC, wire.VERSION, 1, wire.MAX_REQUEST + 1, 1), "at most"),
        ((wire.MAGIC, wire.VERSION, 1, 0, 2), "expected 1: replayed or lost"),
        ((wire.MAGIC, wire.VERSION, 1, 0, 0), "expected 1: replayed or lost"),
    ],
)
def test_bad_header_is_refused_before_its_payload(header, text):
    with pytest.raises(ProtocolError, match=text):
        list(Decoder().feed(wire.HEADER.pack(*header)))


def test_other_version_is_told_apart():
    with pytest.raises(VersionMismatch) as caught:
        list(Decoder().feed(wire.HEADER.pack(wire.MAGIC, 9, 1, 0, 1)))
    assert caught.value.version == 9


def test_what_came_before_the_fault_is_still_handed_on():
    received: list[object] = []
    with pytest.raises(ProtocolError):
        received.extend(Decoder().feed(encoded(SAMPLES[1:3]) + b"rubbish that is long enough"))
    assert received == SAMPLES[1:3]


@pytest.mark.parametrize("count", [0, wire.MAX_GPUS + 1])
def test_number_of_gpus_has_bounds_both_ways(count):
    gpus = (wire.GpuEntry("GPU-a"),) * count
    with pytest.raises(ValueError, match="between 1 and 16"):
        wire.Attach(gpus).pack()


@given(st.binary(max_size=400))
def test_no_stream_of_bytes_does_more_than_raise_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        list(Decoder().feed(data))


@given(st.integers(0, 30), st.binary(max_size=600))
def test_no_payload_does_more_than_raise_a_protocol_error(kind, payload):
    header = wire.HEADER.pack(wire.MAGIC, wire.VERSION, kind, len(payload), 1)
    with contextlib.suppress(ProtocolError):
        list(Decoder().feed(header + payload))
