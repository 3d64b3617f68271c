"""Device memory that two real processes under the preloaded library share, on a simulated node without a scheduler."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nvshare.gpu import sim
from tests.support.nodes import MakeNode
from tests.support.processes import Program, preloaded

PROGRAM = Path(__file__).with_name("ipc_program.py")
MIB = 1 << 20
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_SUPPORTED = 1, 201, 400, 801
CONTEXT, CAPABLE, START, SIZE, HANDLE_TYPES = 1, 10, 11, 12, 14
NOBODY = 65534

pytestmark = pytest.mark.simulated


class Task(Program):
    """ipc_program.py: called with a command, it answers."""

    __call__ = Program.call


Start = Callable[..., Task]


@pytest.fixture
def node(simulated: MakeNode) -> sim.SimNode:
    return simulated("1xT4", 20)


@pytest.fixture
def start(node: sim.SimNode) -> Iterator[Start]:
    with contextlib.ExitStack() as tasks:

        def begin(preload: bool = True, within: Sequence[str] = (), **variables: str) -> Task:
            environment = preloaded(node, NVSHARE_SOCK=str(node.directory / "none.sock"), **variables)
            if not preload:
                del environment["LD_PRELOAD"]
            return tasks.enter_context(contextlib.closing(Task([*within, sys.executable, PROGRAM], environment)))

        yield begin


class Opened:
    """What is in a handle: eight bytes that say whose it is, the socket's name, the secret, which memory."""

    def __init__(self, handle: str) -> None:
        self.name, self.secret, self.base, self.id = struct.unpack_from("<8x16s16sQQ", bytes.fromhex(handle))
        self.address = "\0nvshare-ipc-" + self.name.hex()

    def question(self, secret: bytes | None = None) -> bytes:
        return struct.pack("<II16sQQII", 0x6E767369, 1, secret or self.secret, self.base, self.id, 0, 0)

    def ask(self, question: bytes) -> tuple[bytes, list[int]]:
        """The answer of the process that made the handle, empty if it hangs up, and the descriptors with it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(20)
            peer.connect(self.address)
            with contextlib.suppress(BrokenPipeError):
                peer.send(question)
            try:
                answer, descriptors, _, _ = socket.recv_fds(peer, 4096, 64)
            except ConnectionResetError:
                return b"", []
            return answer, descriptors


def is_listening(handle: str) -> bool:
    return Opened(handle).address[1:] in Path("/proc/net/unix").read_text()


@pytest.mark.parametrize("size", [600, 3 * MIB, 300 * MIB + 12345], ids=["piece", "one chunk", "three chunks"])
def test_what_one_process_writes_the_other_reads(start: Start, size: int) -> None:
    # GIVEN memory of one process WHEN another opens its handle
    owner, other = start(), start()
    memory = owner("allocate", size)
    owner("fill", memory, 7)
    [opened] = other("open", owner("share", memory), size)
    # THEN every byte is there, and what either writes the other reads, to the last byte
    assert other("wrong", opened, 7) == 0
    assert other("write", opened, size - 4, "back")
    assert owner("read", memory, size - 4, 4) == "back"
    assert owner("fill", memory, 9)
    assert other("wrong", opened, 9) == 0
    # AND it is gone from the one when it is closed, and whole in the other
    assert other("close", opened) == 0
    assert other("read", opened, 0, 1) == "cuMemcpyDtoH_v2 answered 1"
    assert owner("wrong", memory, 9) == 0


def test_small_pieces_are_where_their_owner_has_them(start: Start) -> None:
    # GIVEN two pieces that share two megabytes WHEN both are opened THEN each is itself
    owner, other = start(), start()
    pieces = [owner("allocate", 1000) for _ in range(2)]
    for piece, text in zip(pieces, ("first", "other"), strict=True):
        owner("write", piece, 0, text)
    numbers = [other("open", owner("share", piece), 1000)[0] for piece in pieces]
    assert [other("read", number, 0, 5) for number in numbers] == ["first", "other"]


def test_a_handle_of_an_address_inside_is_that_of_the_whole(start: Start) -> None:
    owner = start()
    memory = owner("allocate", 5 * MIB)
    assert owner("share", memory, 3 * MIB) == owner("share", memory)


def test_opening_twice_gives_one_address_and_needs_two_closes(start: Start) -> None:
    owner, other = start(), start()
    memory = owner("allocate", 4 * MIB)
    handle = owner("share", memory)
    [first], [second] = other("open", handle, 4 * MIB), other("open", handle, 4 * MIB, "cuIpcOpenMemHandle")
    assert other("address", first) == other("address", second)
    assert other("close", first) == 0
    assert other("write", second, 0, "still") is True
    assert other("close", second) == 0
    assert other("close", second) != 0


def test_attributes_of_shared_memory(start: Start) -> None:
    owner, other = start(), start()
    memory = owner("allocate", 130 * MIB)
    assert owner("attribute", memory, CAPABLE) == 1
    assert owner("attribute", memory, HANDLE_TYPES) == 0, "as of any cuMemAlloc"
    [opened] = other("open", owner("share", memory), 130 * MIB)
    assert other("attribute", opened, START, 129 * MIB) == other("address", opened)
    assert other("attribute", opened, SIZE, 129 * MIB) == 130 * MIB
    assert other("attribute", opened, CAPABLE) == 0, "it is not its own to share"
    assert other("share", opened) == NOT_SUPPORTED, "the driver's answer"
    assert other("free", opened) == INVALID_VALUE


def test_the_owner_pays_and_nobody_else(start: Start) -> None:
    owner, other = start(NVSHARE_GPU_MEMORY_LIMIT="1Gi"), start(NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    before = other("available")
    memory = owner("allocate", 300 * MIB)
    [opened] = other("open", owner("share", memory), 300 * MIB)
    assert other("available") == before
    assert owner("available") == before - 300 * MIB
    other("close", opened)
    owner("free", memory)
    assert owner("available") == before


def test_closing_waits_for_work_that_uses_the_memory(start: Start) -> None:
    # GIVEN work under way on opened memory WHEN it is closed THEN that work neither fails nor is cut short
    owner, other = start(), start()
    memory = owner("allocate", 64 * MIB)
    [opened] = other("open", owner("share", memory), 64 * MIB)
    other("busy", opened, 200)
    assert other("close", opened) == 0
    assert other("synchronize") == 0
    assert owner("wrong", memory, 1) == 0


def test_memory_outlives_its_owner_where_it_is_open(start: Start) -> None:
    # GIVEN memory that another process has open
    owner, other = start(), start()
    memory = owner("allocate", 130 * MIB)
    owner("fill", memory, 3)
    handle = owner("share", memory)
    [opened] = other("open", handle, 130 * MIB)
    # WHEN its owner frees it THEN it cannot be opened any more, but stays where it is open
    assert owner("free", memory) == 0
    third = start()
    assert third("open", handle, 130 * MIB) == INVALID_HANDLE
    assert other("wrong", opened, 3) == 0
    # AND the same when the owner is killed; nothing of it is left behind
    assert is_listening(handle)
    owner.kill()
    assert not is_listening(handle)
    assert other("wrong", opened, 3) == 0
    assert other("fill", opened, 4)
    assert other("wrong", opened, 4) == 0
    assert other("close", opened) == 0
    assert third("open", handle, 130 * MIB) == INVALID_HANDLE
    assert "it has freed it" in "\n".join(third.end())


def test_a_killed_owner_is_said_to_have_ended(start: Start) -> None:
    owner, other = start(), start()
    handle = owner("share", owner("allocate", 4 * MIB))
    owner.kill()
    assert other("open", handle, 4 * MIB) == INVALID_HANDLE
    assert other("open", handle, 4 * MIB) == INVALID_HANDLE
    said = "\n".join(other.end())
    assert said.count("cuIpcOpenMemHandle: memory of process") == 1
    assert f"process {owner.pid} cannot be opened: it has ended, or runs in another container" in said


def test_a_process_cannot_open_its_own_handle(start: Start) -> None:
    owner = start()
    handle = owner("share", owner("allocate", 4 * MIB))
    assert owner("open", handle, 4 * MIB) == INVALID_CONTEXT


def test_other_handles_go_to_the_driver(start: Start) -> None:
    # GIVEN a process without nvshare, and a handle that nvshare did not make
    owner, other, outside = start(), start(), start(preload=False)
    memory = owner("allocate", 4 * MIB)
    handle = owner("share", memory)
    # THEN the driver's own answers come back
    assert outside("open", handle, 4 * MIB) == NOT_SUPPORTED
    assert other("open", "12" * 64, 4 * MIB) == NOT_SUPPORTED
    assert owner("close", memory) == INVALID_VALUE


def test_who_has_not_the_secret_gets_nothing(start: Start) -> None:
    # GIVEN a process that exports memory, and one that found its socket
    owner, other = start(), start()
    handle = owner("share", owner("allocate", 4 * MIB))
    known = Opened(handle)
    for secret in (bytes(16), known.secret[:-1] + bytes([known.secret[-1] ^ 1])):
        # WHEN it asks without knowing the secret, or says anything else THEN it gets no descriptor
        answer, descriptors = known.ask(known.question(secret))
        assert descriptors == []
        assert struct.unpack_from("<II", answer)[1] != 0
    for noise in (b"x", known.question() + b"x", bytes(4000)):
        assert known.ask(noise)[1] == []
    wrong = bytearray.fromhex(handle)
    wrong[39] ^= 1
    assert other("open", wrong.hex(), 4 * MIB) == INVALID_HANDLE
    # AND who knows it still gets it
    assert other("open", handle, 4 * MIB) == [0]
    _, [descriptor] = known.ask(known.question())
    os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_gets_nothing_even_with_the_handle(start: Start) -> None:
    owner, other = start(), start()
    handle = owner("share", owner("allocate", 4 * MIB))
    # GIVEN a process of another user that has the handle WHEN it asks THEN the exporter hangs up
    known = Opened(handle)
    os.seteuid(NOBODY)
    try:
        assert known.ask(known.question()) == (b"", [])
    finally:
        os.seteuid(0)
    # AND one that is under nvshare does not even ask
    other("become", NOBODY)
    assert other("open", handle, 4 * MIB) == INVALID_HANDLE
    other("become", 0)
    assert "it belongs to another user" in "\n".join(other.end())


NAMESPACE = ["unshare", "--net"]


@pytest.mark.skipif(
    subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="no network namespaces of one's own here",
)
def test_another_container_is_named_as_the_reason(start: Start) -> None:
    # GIVEN a process in a network namespace of its own, as in a container WHEN it opens a handle THEN it is told why
    owner, other = start(), start(within=NAMESPACE)
    handle = owner("share", owner("allocate", 4 * MIB))
    assert other("open", handle, 4 * MIB) == INVALID_HANDLE
    assert "it has ended, or runs in another container or network namespace" in "\n".join(other.end())


def test_memory_of_a_process_that_may_be_larger_than_the_card_is_not_shared(start: Start) -> None:
    # GIVEN unified memory, which the driver does not share WHEN it is asked for THEN a line says so, once
    owner = start(NVSHARE_ENABLE_SINGLE_OVERSUB="1")
    memory = owner("allocate", 4 * MIB)
    assert owner("attribute", memory, CAPABLE) == 0
    assert owner("share", memory) == NOT_SUPPORTED
    assert owner("share", memory) == NOT_SUPPORTED
    assert "\n".join(owner.end()).count("cuIpcGetMemHandle: this card and driver cannot share memory") == 1


def test_a_forked_child_neither_serves_nor_keeps_the_socket(start: Start) -> None:
    # GIVEN a process that exports memory, and its forked child
    owner, other = start(), start()
    handle = owner("share", owner("allocate", 4 * MIB))
    assert owner("sockets") > 0
    assert owner("fork") == 0
    # THEN the parent goes on to serve
    [opened] = other("open", handle, 4 * MIB)
    assert other("close", opened) == 0
    # AND nobody does when the parent was killed and the child lives
    owner.kill()
    assert not is_listening(handle)
    assert other("open", handle, 4 * MIB) == INVALID_HANDLE


def test_nothing_is_served_before_something_was_exported(start: Start) -> None:
    owner = start()
    owner("allocate", 4 * MIB)
    assert owner("sockets") == 0


def test_a_destroyed_context_closes_what_it_had_open(start: Start, node: sim.SimNode) -> None:
    owner, other = start(), start()
    handle = owner("share", owner("allocate", 130 * MIB))
    assert other("open", handle, 130 * MIB) == [0]
    assert other("destroy") == 0
    other.end()
    assert owner("share", 0) == handle
