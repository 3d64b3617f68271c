"""Memory of the simulated card that several processes have: descriptors that are exported, sent and imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvshare.gpu.sim import SimNode

Run = Callable[..., str]
Start = Callable[..., Any]

GIVES = """
import os, socket
d = Driver()
M = 2 << 20
prop = on_device()
prop.handle_types = 1
va, h, fd = d.reserve(M), c_uint64(), c_int(-1)
d.cuMemCreate(byref(h), M, byref(prop), 0)
d.cuMemMap(va, M, 0, h, 0)
d.cuMemSetAccess(va, M, byref(access()), 1)
d.fill(va, 0x07070707, M)
d.cuMemExportToShareableHandle(byref(fd), h, c_int(1), 0)
d.upload(va + 4, b"word")
far = socket.socket(socket.AF_UNIX)
far.connect(os.environ["MEETING"])
socket.send_fds(far, [b"x"], [fd.value])
os.close(fd.value)
print("sent", flush=True)
sys.stdin.readline()
assert d.download(va + M - 4, 4) == b"back"
assert d.download(va, 8) == b"\\x07\\x07\\x07\\x07word"
"""

TAKES = """
import os, socket
meeting = socket.socket(socket.AF_UNIX)
meeting.bind(os.environ["MEETING"])
meeting.listen()
print("listening", flush=True)
near, _ = meeting.accept()
_, [fd], _, _ = socket.recv_fds(near, 1, 1)
d = Driver()
M = 2 << 20
va, h = d.reserve(M), c_uint64()
free = d.memory()[0]
d.cuMemImportFromShareableHandle(byref(h), c_void_p(fd), c_int(1))
os.close(fd)
d.cuMemMap(va, M, 0, h, 0)
d.cuMemSetAccess(va, M, byref(access()), 1)
d.cuMemRelease(h)
assert d.memory()[0] == free, "the owner pays"
assert d.download(va, 8) == b"\\x07\\x07\\x07\\x07word"
d.upload(va + M - 4, b"back")
print("written", flush=True)
assert near.recv(1) == b"", "until the owner is gone"
assert d.download(va + M - 4, 4) == b"back"
"""


def test_exported_memory_is_the_same_memory_in_another_process(node: SimNode, start: Start, tmp_path: Path) -> None:
    # GIVEN two processes, one of which imports what the other exports
    env = {"MEETING": str(tmp_path / "meeting")}
    taker = start(node, TAKES, env)
    assert taker.line() == "listening"
    giver = start(node, GIVES, env)
    assert giver.line() == "sent"
    # WHEN either writes THEN both read it
    assert taker.line() == "written"
    giver.tell()
    giver.finish()
    # AND who imported it has it still when its owner is gone
    taker.finish()


def test_only_memory_made_for_it_is_exported_and_only_that_is_imported(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        M = 2 << 20
        h, fd = c_uint64(), c_int(-1)
        assert d.code("cuMemExportToShareableHandle", byref(fd), d.create(M), c_int(1), 0) == 1
        prop = on_device()
        prop.handle_types = 1
        d.cuMemCreate(byref(h), M, byref(prop), 0)
        assert d.code("cuMemExportToShareableHandle", byref(fd), h, c_int(8), 0) == 1
        with open("/dev/zero") as file:
            assert d.code("cuMemImportFromShareableHandle", byref(h), c_void_p(file.fileno()), c_int(1)) == 1
        assert d.code("cuMemImportFromShareableHandle", byref(h), c_void_p(9999), c_int(1)) == 1
        """,
    )
