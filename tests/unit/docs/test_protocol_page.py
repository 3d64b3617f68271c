"""docs/protocol.md names what messages.py defines."""

from __future__ import annotations

import re
from pathlib import Path

from nvshare.wire.messages import VERSION, MessageType

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text()


def test_table_has_every_message_with_its_number() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| \S+→", PAGE, re.MULTILINE)
    assert [(int(value), name) for value, name in rows] == [(kind.value, kind.name) for kind in MessageType]


def test_frame_names_the_version() -> None:
    assert f"| version, now {VERSION} |" in PAGE
