"""The C header that is checked in, against what messages.py says now."""

from __future__ import annotations

from pathlib import Path

from nvshare.wire import c_header

HEADER = Path(__file__).resolve().parents[3] / "native" / "include" / "nvshare_protocol.h"


def test_header_is_what_the_messages_say() -> None:
    assert HEADER.read_text() == c_header.header(), "run: make generate"
