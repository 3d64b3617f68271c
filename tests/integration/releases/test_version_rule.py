"""The protocol changes only as docs/protocol.md allows, so that the previous release reads and writes it rightly."""

from __future__ import annotations

import enum
import importlib.util
import struct
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

import pytest

from nvshare.wire import enums, messages
from nvshare.wire.layout import Fields, WithEntries
from tests.integration.releases import previous

K = TypeVar("K")


@pytest.fixture(scope="module")
def earlier() -> Iterator[ModuleType]:
    """messages.py of the previous release."""
    path = previous.source() / "src" / "nvshare" / "wire" / "messages.py"
    spec = importlib.util.spec_from_file_location("earlier_messages", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def defined(protocol: ModuleType, base: type[K]) -> dict[str, type[K]]:
    """The classes of this kind that the module itself defines."""
    return {
        name: kind
        for name, kind in vars(protocol).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == protocol.__name__
    }


def layouts(protocol: ModuleType) -> dict[str, type[Fields]]:
    return {name: kind for name, kind in defined(protocol, Fields).items() if "LAYOUT" in vars(kind)}


def owners(kind: type[Fields]) -> list[str]:
    """For each byte the field that it belongs to, with its code; "" where it is reserved."""
    bytes_of = ((name, code, struct.calcsize(f"<{code}")) for name, code in kind.LAYOUT)
    return [
        "" if code.endswith("x") or name == "reserved" else f"{name} {code} {place}"
        for name, code, size in bytes_of
        for place in range(size)
    ]


def test_no_number_has_another_meaning(earlier: ModuleType) -> None:
    now = defined(enums, enum.IntEnum)
    for name, kind in defined(earlier, enum.IntEnum).items():
        for member in kind:
            assert now[name][member.name] == member, name
    for name, value in vars(earlier).items():
        if name.startswith("FLAG_"):
            assert getattr(messages, name, value) == value, name


def test_fields_stay_where_they_are_and_new_ones_take_only_reserved_or_further_bytes(earlier: ModuleType) -> None:
    now = layouts(messages)
    for name, kind in layouts(earlier).items():
        for before, after in zip(owners(kind), owners(now[name]), strict=False):
            assert after in (before, "") or not before, name


def test_what_the_previous_release_does_not_send_is_counted_as_appended(earlier: ModuleType) -> None:
    now = layouts(messages)
    entries = {kind.ENTRIES[2].__name__ for kind in defined(messages, WithEntries).values() if "TYPE" in vars(kind)}
    for name, kind in layouts(earlier).items():
        least = now[name].LEAST
        assert least == kind.STRUCT.size, f"{name}.APPENDED"
        # AND nothing is appended before entries, or to what each version reads
        if issubclass(kind, WithEntries) or name in {*entries, "Refused", "Header"}:
            assert not now[name].APPENDED, name
