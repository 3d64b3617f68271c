"""Frames to messages and back, without I/O: feed bytes in, take messages out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from nvshare.wire.messages import BY_TYPE, HEADER, MAGIC, MAX_REQUEST, VERSION, Message


class ProtocolError(Exception):
    """The peer sent something that is not our protocol; the connection cannot go on."""


class VersionMismatch(ProtocolError):
    """The peer speaks another version of our protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(f"protocol version {version}, this side speaks {VERSION}")
        self.version = version


@dataclass(frozen=True)
class Unknown:
    """A well-framed message of a type this version does not know: skipped, not fatal."""

    type: int
    length: int


class Encoder:
    """Turns messages into frames. One per connection and direction: frames are numbered from 1."""

    def __init__(self) -> None:
        self._sequence = 0

    def encode(self, message: Message) -> bytes:
        payload = message.pack()
        self._sequence += 1
        header = HEADER.pack(MAGIC, VERSION, message.TYPE, len(payload), self._sequence & 0xFFFFFFFF)
        return header + payload


class Decoder:
    """Turns a byte stream into messages; the bytes may come in any portions."""

    def __init__(self, limit: int = MAX_REQUEST) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._sequence = 0

    def feed(self, data: bytes) -> Iterator[Message | Unknown]:
        """Yield every message that is complete by now.

        Raises ``ProtocolError`` for a bad header, a payload over the limit, a payload that does not parse, and a frame
        whose number is not the next one (a replay or a gap).
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            magic, version, kind, length, sequence = HEADER.unpack_from(self._buffer)
            if magic != MAGIC:
                raise ProtocolError(f"bad magic {magic:#010x}")
            if version != VERSION:
                raise VersionMismatch(version)
            if length > self._limit:
                raise ProtocolError(f"payload of {length} bytes, at most {self._limit} allowed")
            expected = (self._sequence + 1) & 0xFFFFFFFF
            if sequence != expected:
                raise ProtocolError(f"frame number {sequence}, expected {expected}: replayed or lost")
            if len(self._buffer) < HEADER.size + length:
                return
            payload = bytes(self._buffer[HEADER.size : HEADER.size + length])
            del self._buffer[: HEADER.size + length]
            self._sequence = sequence
            yield _parse(kind, payload)

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)


def _parse(kind: int, payload: bytes) -> Message | Unknown:
    cls = BY_TYPE.get(kind)
    if cls is None:
        return Unknown(kind, len(payload))
    try:
        return cls.unpack(payload)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"{cls.TYPE.name} does not parse: {error}") from error
