"""How a message lies in bytes: fields of fixed size in a fixed order, and entries of a kind repeated behind them."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, ClassVar

_TEXT_ENCODING = "utf-8"


class Fields:
    """``LAYOUT`` names the struct code of each field, in order."""

    LAYOUT: ClassVar[tuple[tuple[str, str], ...]]
    STRUCT: ClassVar[struct.Struct]
    TEXT: ClassVar[frozenset[str]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "LAYOUT" in cls.__dict__:
            cls.STRUCT = struct.Struct("<" + "".join(code for _, code in cls.LAYOUT))
            cls.TEXT = frozenset(name for name, code in cls.LAYOUT if code.endswith("s"))

    def pack(self) -> bytes:
        values: list[Any] = []
        for name, _ in self.LAYOUT:
            value = getattr(self, name)
            values.append(value.encode(_TEXT_ENCODING) if name in self.TEXT else value)
        return self.STRUCT.pack(*values)

    @classmethod
    def read(cls, payload: bytes, offset: int = 0) -> dict[str, Any]:
        """The fields by name; ``struct.error`` or ``UnicodeDecodeError`` when they are not there."""
        values = cls.STRUCT.unpack_from(payload, offset)
        return {
            name: value.split(b"\0", 1)[0].decode(_TEXT_ENCODING) if name in cls.TEXT else value
            for (name, _), value in zip(cls.LAYOUT, values, strict=True)
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
    """A message that ends with so many entries of one kind. ``ENTRIES``: its attribute, the field that counts them,
    their kind, how many there may be, and what people call them."""

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
