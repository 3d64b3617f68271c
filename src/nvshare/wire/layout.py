"""How a message lies in bytes: fields of fixed size in a fixed order, then as many entries of one kind as it counts."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, ClassVar

_TEXT_ENCODING = "utf-8"


class Fields:
    """``LAYOUT`` names each field with its struct code, in order of bytes: ``I``, ``Q``, ``48s`` for text, and ``8x``
    for reserved bytes, which are sent as zeros, ignored when received, and have no attribute. The last ``APPENDED``
    fields may be missing, for the previous release does not send them; then they read as zeros."""

    LAYOUT: ClassVar[tuple[tuple[str, str], ...]]
    APPENDED: ClassVar[int] = 0
    STRUCT: ClassVar[struct.Struct]
    LEAST: ClassVar[int]  # the size without the appended fields
    NAMES: ClassVar[tuple[str, ...]]  # of the fields that carry a value
    TEXT: ClassVar[frozenset[str]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "LAYOUT" in cls.__dict__:
            codes = ["<", *(code for _, code in cls.LAYOUT)]
            cls.STRUCT = struct.Struct("".join(codes))
            cls.LEAST = struct.calcsize("".join(codes[: len(codes) - cls.APPENDED]))
            cls.NAMES = tuple(name for name, code in cls.LAYOUT if not code.endswith("x"))
            cls.TEXT = frozenset(name for name, code in cls.LAYOUT if code.endswith("s"))

    def pack(self) -> bytes:
        values = ((name, getattr(self, name)) for name in self.NAMES)
        return self.STRUCT.pack(
            *(value.encode(_TEXT_ENCODING) if name in self.TEXT else value for name, value in values)
        )

    @classmethod
    def read(cls, payload: bytes, offset: int = 0) -> dict[str, Any]:
        """The fields by name; ``struct.error`` or ``UnicodeDecodeError`` when they are not there."""
        data = payload[offset : offset + cls.STRUCT.size]
        if len(data) >= cls.LEAST:
            data = data.ljust(cls.STRUCT.size, b"\0")
        values = zip(cls.NAMES, cls.STRUCT.unpack(data), strict=True)
        return {
            name: value.split(b"\0", 1)[0].decode(_TEXT_ENCODING) if name in cls.TEXT else value
            for name, value in values
        }


class Message(Fields):
    """Base of all messages: the payload, without the frame header."""

    TYPE: ClassVar[enum.IntEnum]

    @classmethod
    def unpack(cls, payload: bytes) -> Message:
        """Read a payload of at least the known size; ``struct.error`` or ``UnicodeDecodeError`` when it is not one."""
        return cls(**cls.read(payload))

    @classmethod
    def kinds(cls) -> Iterator[type[Message]]:
        """Every message that has a type."""
        for kind in cls.__subclasses__():
            if "TYPE" in kind.__dict__:
                yield kind
            yield from kind.kinds()


class WithEntries(Message):
    """A message that ends with entries of one kind. ``ENTRIES``: its attribute, the field that counts them, their kind,
    how many there may be, and their name in error texts."""

    ENTRIES: ClassVar[tuple[str, str, type[Fields], range, str]]

    def pack(self) -> bytes:
        entries = getattr(self, self.ENTRIES[0])
        self._check(len(entries))
        return super().pack() + b"".join(entry.pack() for entry in entries)

    @classmethod
    def unpack(cls, payload: bytes) -> Message:
        attribute, counter, kind, _, _ = cls.ENTRIES
        fields = cls.read(payload)
        count = fields.pop(counter)
        cls._check(count)
        starts = range(cls.STRUCT.size, cls.STRUCT.size + count * kind.STRUCT.size, kind.STRUCT.size)
        fields[attribute] = tuple(kind(**kind.read(payload, start)) for start in starts)
        return cls(**fields)

    @classmethod
    def _check(cls, count: int) -> None:
        _, _, _, allowed, what = cls.ENTRIES
        if count not in allowed:
            raise ValueError(f"between {allowed.start} and {allowed.stop - 1} {what}, not {count}")
