"""Checkpoints of processes: what leaves the card and comes back, what waits, what is refused."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvshare.gpu.sim import Setup, SimNode

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
CONTEXT = 1009 * MIB
KEPT = 4 * MIB
Run = Callable[..., str]
Start = Callable[..., Any]

# A program that lives until its input ends, with a context and data that it checks at every line.
LIVES = """
import os, threading
d = Driver()
p = d.alloc(64 << 20)
d.fill(p, 0x01020304, 64 << 20)
print("there", flush=True)
for _ in sys.stdin:
    assert d.download(p, 8) == bytes([4, 3, 2, 1]) * 2
    print("right", flush=True)
"""


def used(node: SimNode, gpu: int = 0) -> int:
    return int(node.counters()[gpu]["memory_used"])


def test_a_process_leaves_its_cards_and_comes_back(node: SimNode, start: Start, run: Run) -> None:
    # GIVEN a process with 64 MiB beside its context
    program = start(node, LIVES)
    assert program.line() == "there"
    assert used(node) == CONTEXT + 64 * MIB
    # WHEN another takes it off the card THEN 4 MiB of it stay, and NVML says so
    said = run(
        node,
        f"""
        import pynvml as n
        d = Driver(context=False)
        assert d.state({program.pid}) == RUNNING
        assert d.checkpoint("Lock", {program.pid}) == 0
        assert d.state({program.pid}) == LOCKED
        assert d.checkpoint("Checkpoint", {program.pid}) == 0
        assert d.state({program.pid}) == CHECKPOINTED
        n.nvmlInit()
        card = n.nvmlDeviceGetHandleByIndex(0)
        (process,) = n.nvmlDeviceGetComputeRunningProcesses(card)
        print(process.pid, process.usedGpuMemory, n.nvmlDeviceGetMemoryInfo(card).used)
        """,
    )
    assert [int(number) for number in said.split()] == [program.pid, KEPT, KEPT]
    assert used(node) == KEPT
    (context,) = node.counters()[0]["contexts"]
    assert (context["bytes"], context["away"]) == (KEPT, CONTEXT + 64 * MIB - KEPT)
    # WHEN it is brought back THEN it has what it had
    run(node, f"Driver(context=False).come_back({program.pid})")
    assert used(node) == CONTEXT + 64 * MIB
    program.tell()
    assert program.line() == "right"


def test_a_process_takes_itself_off_all_its_cards(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        import os
        import pynvml as n
        n.nvmlInit()
        d, other = Driver(), Driver(device=1)
        d.cuCtxSetCurrent(d.context)
        p, va = d.alloc(8 << 20), d.reserve(4 << 20)
        d.map(va, 4 << 20)
        d.fill(va, 7, 4 << 20)
        d.leave(os.getpid())
        cards = [n.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
        assert [n.nvmlDeviceGetMemoryInfo(card).used >> 20 for card in cards] == [4, 4]
        d.come_back(os.getpid())
        assert d.state(os.getpid()) == RUNNING
        assert d.download(va, 8) == struct.pack("<II", 7, 7)
        """,
    )
    assert [gpu["contexts_created"] for gpu in node.counters()] == [1, 1]


def test_what_left_gives_its_room_to_others(make_node: Callable[..., SimNode], start: Start, run: Run) -> None:
    # GIVEN as many processes as a T4 holds
    node = make_node("1xT4", 100)
    programs = [start(node, LIVES) for _ in range(13)]
    assert {program.line() for program in programs} == {"there"}
    create = "print(Driver(context=False).code('cuDevicePrimaryCtxRetain', byref(c_void_p()), c_int(0)))"
    assert run(node, create) == "2\n"
    # WHEN one leaves THEN there is room for another
    run(node, f"Driver(context=False).leave({programs[0].pid})")
    assert run(node, create) == "0\n"


def test_page_locked_memory_of_the_host_stays_where_it_is(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        import os
        d = Driver()
        p = d.host_alloc(4 << 30)
        ctypes.memmove(p, b"here", 4)
        d.leave(os.getpid())
        assert ctypes.string_at(p, 4) == b"here"
        d.come_back(os.getpid())
        """,
    )
    assert node.counters()[0]["bytes_d2h"] == 0


@pytest.mark.parametrize(("size", "out", "back"), [(0, 0.47, 0.26), (2 << 30, 1.54, 0.69)], ids=["empty", "2 GiB"])
def test_it_takes_what_it_takes_on_a_real_card(
    make_node: Callable[..., SimNode], run: Run, size: int, out: float, back: float
) -> None:
    # GIVEN a node that is ten times as fast as life
    node = make_node("1xH200", 10)
    said = run(
        node,
        f"""
        import os
        d = Driver()
        p = d.alloc({size}) if {size} else 0
        assert d.checkpoint("Lock", os.getpid()) == 0
        for operation in ("Checkpoint", "Restore"):
            begun = time.monotonic()
            assert d.checkpoint(operation, os.getpid()) == 0
            print(10 * (time.monotonic() - begun))
        """,
    )
    # THEN neither takes less
    took = [float(line) for line in said.split()]
    assert took[0] >= 0.99 * out
    assert took[1] >= 0.99 * back


def test_a_lock_waits_for_submitted_work_and_gives_up_in_time(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        import os
        d = Driver()
        d.spin(5.0)
        # WHEN the time is too short THEN the process goes on running
        assert d.checkpoint("Lock", os.getpid(), 1000) == 600
        assert d.state(os.getpid()) == RUNNING
        assert d.code("cuCtxSetCurrent", d.context) == 0
        # WHEN it is long enough THEN all work has ended
        end = d.record()
        assert d.checkpoint("Lock", os.getpid(), 100_000) == 0
        assert d.checkpoint("Unlock", os.getpid()) == 0
        assert d.code("cuEventQuery", end) == 0
        """,
    )


def test_a_lock_waits_for_host_functions_and_for_values(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        import os
        d = Driver()
        flag, first, second, ran = d.alloc(8), d.stream(), d.stream(), []
        d.fill(flag, 0, 8)
        function = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: ran.append(data))
        d.cuStreamWaitValue32_v2(first, flag, 3, 0)
        d.cuLaunchHostFunc(first, function, None)
        assert d.checkpoint("Lock", os.getpid(), 1000) == 600
        d.cuStreamWriteValue32_v2(second, flag, 3, 0)
        assert d.checkpoint("Lock", os.getpid()) == 0
        assert ran == [None]
        """,
    )


def test_a_call_made_meanwhile_completes_afterwards(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        import os, threading
        d = Driver()
        order, calling = [], threading.Event()
        def ask():
            d.cuCtxSetCurrent(d.context)
            order.append("asked")
        def blocked(state):
            order.clear()
            thread = threading.Thread(target=ask)
            thread.start()
            assert d.state(os.getpid()) == state
            return thread
        # GIVEN a locked process WHEN a thread calls THEN it waits until that is unlocked
        assert d.checkpoint("Lock", os.getpid()) == 0
        thread = blocked(LOCKED)
        order.append("unlock")
        assert d.checkpoint("Unlock", os.getpid()) == 0
        thread.join()
        assert order == ["unlock", "asked"]
        # AND likewise when the process is off the card
        d.leave(os.getpid())
        thread = blocked(CHECKPOINTED)
        assert d.checkpoint("Restore", os.getpid()) == 0
        order.append("unlock")
        assert d.checkpoint("Unlock", os.getpid()) == 0
        thread.join()
        assert order == ["unlock", "asked"]
        """,
    )


POLLS = """
import os, threading
d = Driver()
event, polling = d.record(), threading.Event()
def poll():
    while True:
        polling.set()
        d.cuEventQuery(event)
        time.sleep(0.001)
"""


def test_a_thread_in_the_driver_is_the_end_of_a_process_that_leaves(
    make_node: Callable[..., SimNode], start: Start
) -> None:
    # GIVEN a checkpoint that takes 5 s, and a thread that polls an event every millisecond
    node = make_node("1xT4", 0.1)
    program = start(
        node,
        POLLS + "threading.Thread(target=poll, daemon=True).start()\npolling.wait()\nd.leave(os.getpid())\n",
    )
    # THEN the process dies
    assert program.process.wait(60) == -signal.SIGSEGV


def test_who_takes_a_process_with_a_thread_in_the_driver_off_the_card_is_told(
    make_node: Callable[..., SimNode], start: Start, run: Run
) -> None:
    node = make_node("1xT4", 0.1)
    program = start(
        node, POLLS + "print('there', flush=True)\nthreading.Thread(target=poll).start()\nsys.stdin.readline()\n"
    )
    assert program.line() == "there"
    said = run(
        node,
        f"""
        d = Driver(context=False)
        print(d.checkpoint("Lock", {program.pid}), d.checkpoint("Checkpoint", {program.pid}))
        """,
    )
    assert said == "0 304\n"
    assert program.process.wait(60) == -signal.SIGSEGV
    assert used(node) == 0


def test_a_restore_without_room_fails_and_so_does_every_later_one(node: SimNode, start: Start, run: Run) -> None:
    # GIVEN a process off the card, and another that fills it
    program = start(node, LIVES)
    assert program.line() == "there"
    run(node, f"Driver(context=False).leave({program.pid})")
    filler = start(node, "d = Driver(); d.alloc(d.memory()[0] - (64 << 20)); print('full', flush=True); input()")
    assert filler.line() == "full"
    # WHEN it is to come back THEN it cannot, now or when there is room; nor can it be unlocked
    again = f"""
        d, pid = Driver(context=False), {program.pid}
        print(d.checkpoint("Restore", pid), d.checkpoint("Unlock", pid), d.state(pid) == CHECKPOINTED)
        """
    assert run(node, again) == "2 401 True\n"
    filler.kill()
    assert run(node, again) == "304 401 True\n"
    assert used(node) == KEPT


def test_a_process_comes_back_to_all_its_cards_or_to_none(node: SimNode, start: Start, run: Run) -> None:
    # GIVEN a process of two cards, one of which is full meanwhile
    both = LIVES.replace("d = Driver()", "d = Driver(device=1); d = Driver()")
    program = start(node, both)
    assert program.line() == "there"
    run(node, f"Driver(context=False).leave({program.pid})")
    filler = start(
        node, "d = Driver(device=1); d.alloc(d.memory()[0] - (64 << 20)); print('full', flush=True); input()"
    )
    assert filler.line() == "full"
    # WHEN it is to come back THEN it takes nothing of the other one
    assert run(node, f"print(Driver(context=False).checkpoint('Restore', {program.pid}))") == "2\n"
    assert used(node, 0) == KEPT


def test_managed_and_shared_memory_do_not_leave(node: SimNode, run: Run) -> None:
    # GIVEN memory that no checkpoint takes WHEN a process leaves with it THEN it is refused, and of no more use
    refused = """
        import os
        d = Driver()
        %s
        assert d.checkpoint("Lock", os.getpid()) == 0
        assert d.checkpoint("Checkpoint", os.getpid()) == 801
        assert d.state(os.getpid()) == FAILED
        assert d.checkpoint("Unlock", os.getpid()) == 304
        assert d.code("cuCtxSynchronize") == 304
        """
    export = """prop, h, fd = on_device(), c_uint64(), c_int(-1)
        prop.handle_types = 1
        d.cuMemCreate(byref(h), 2 << 20, byref(prop), 0)
        d.cuMemExportToShareableHandle(byref(fd), h, c_int(1), 0)"""
    run(node, refused % "d.managed(4 << 20)")
    run(node, refused % export)
    # WHEN it is freed first THEN the process can leave
    run(node, "import os\nd = Driver(); d.cuMemFree_v2(d.managed(4 << 20)); d.leave(os.getpid())")
    run(node, f"import os\nd = Driver(); {export}; d.cuMemRelease(h); d.leave(os.getpid())".replace("\n        ", "; "))


def test_operations_have_their_order_and_their_arguments(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        import os
        d, pid = Driver(), os.getpid()
        ILLEGAL = 401
        assert [d.checkpoint(each, pid) for each in ("Checkpoint", "Restore", "Unlock")] == [ILLEGAL] * 3
        assert d.checkpoint("Lock", pid) == 0
        assert [d.checkpoint(each, pid) for each in ("Lock", "Restore")] == [ILLEGAL] * 2
        assert d.checkpoint("Checkpoint", pid) == 0
        assert [d.checkpoint(each, pid) for each in ("Lock", "Checkpoint", "Unlock")] == [ILLEGAL] * 3
        assert d.checkpoint("Restore", pid) == 0
        assert [d.checkpoint(each, pid) for each in ("Restore", "Lock")] == [ILLEGAL] * 2
        assert d.code("cuCheckpointProcessUnlock", c_int(pid), None) == 0
        wrong = (ctypes.c_ubyte * 64)(*[0] * 60, 1, 0, 0, 0)
        for each in ("Lock", "Checkpoint", "Restore", "Unlock"):
            assert d.code(f"cuCheckpointProcess{each}", c_int(pid), wrong) == 1, each
        tid = c_int()
        d.cuCheckpointProcessGetRestoreThreadId(c_int(pid), byref(tid))
        assert os.path.exists(f"/proc/{pid}/task/{tid.value}")
        # A process that is not there, and one without CUDA
        assert d.checkpoint("Lock", 1 << 30) == 1
        assert d.checkpoint("Lock", os.getppid()) == 3
        assert Driver(init=False).code("cuCheckpointProcessGetState", c_int(pid), None) == 1
        """,
    )
    run(node, "import os\nassert Driver(init=False).checkpoint('Lock', os.getpid()) == 3")


def test_each_step_may_be_another_process(node: SimNode, start: Start, run: Run) -> None:
    # GIVEN steps whose authors are gone THEN the next one goes on from there
    program = start(node, LIVES)
    assert program.line() == "there"
    for operation in ("Lock", "Checkpoint", "Restore", "Unlock"):
        author = start(
            node,
            f"""
            d = Driver(context=False)
            print(d.checkpoint("{operation}", {program.pid}), flush=True)
            sys.stdin.readline()
            """,
        )
        assert author.line() == "0"
        author.kill()
    program.tell()
    assert program.line() == "right"


def test_a_killed_process_leaves_nothing_behind(node: SimNode, start: Start, run: Run) -> None:
    program = start(node, LIVES)
    assert program.line() == "there"
    run(node, f"Driver(context=False).leave({program.pid})")
    program.kill()
    assert used(node) == 0
    assert run(node, f"print(Driver(context=False).checkpoint('Restore', {program.pid}))") == "1\n"
    assert run(node, "print(Driver().memory())") == f"{(14913 * MIB - CONTEXT, 14913 * MIB)}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_process_may_be_taken_by_its_user_and_by_root(node: SimNode, start: Start, run: Run) -> None:
    # GIVEN a process of user 1000, and one of root
    become = "import os; os.setuid(%d); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"  # 4: it may be looked at
    theirs = start(node, LIVES.replace('print("there"', (become % 1000).rstrip() + '; print("there"'))
    ours = start(node, LIVES)
    assert [theirs.line(), ours.line()] == ["there", "there"]

    def lock_and_unlock(user: int, pid: int) -> str:
        both = f'print(d.checkpoint("Lock", {pid}), d.checkpoint("Unlock", {pid}))'
        return run(node, f"d = Driver(context=False)\n{become % user if user else ''}{both}")

    # THEN that user and root may, others may not
    assert lock_and_unlock(1000, theirs.pid) == "0 0\n"
    assert lock_and_unlock(0, theirs.pid) == "0 0\n"
    assert lock_and_unlock(1001, theirs.pid) == "304 304\n"
    assert lock_and_unlock(1000, ours.pid) == "304 304\n"


@pytest.mark.parametrize(
    ("faults", "results", "state"),
    [
        ("lock=600", "600 401 401 401", "RUNNING"),
        ("checkpoint=999", "0 999 401 0", "RUNNING"),
        ("checkpoint=break", "0 999 304 304", "FAILED"),
        ("restore=2", "0 0 2 401", "CHECKPOINTED"),
        ("unlock@2=999", "0 0 0 0", "RUNNING"),
        ("unlock@1=304,restore@3=999", "0 0 0 304", "LOCKED"),
    ],
)
def test_failures_can_be_planted(node: SimNode, run: Run, faults: str, results: str, state: str) -> None:
    run(
        node,
        f"""
        import os
        d = Driver()
        results = [d.checkpoint(each, os.getpid()) for each in ("Lock", "Checkpoint", "Restore", "Unlock")]
        assert results == [{",".join(results.split())}], results
        assert d.state(os.getpid()) == {state}
        """,
        {"NVSHARE_SIM_FAULTS": faults},
    )


@pytest.mark.parametrize("last", ["lock", "checkpoint", "restore", "unlock"])
def test_a_kill_can_be_planted_after_any_step(node: SimNode, start: Start, last: str) -> None:
    source = 'import os\nd = Driver()\nd.leave(os.getpid())\nd.come_back(os.getpid())\nprint("alive", flush=True)\n'
    program = start(node, source, {"NVSHARE_SIM_FAULTS": f"{last}=kill"})
    assert program.process.wait(60) == -signal.SIGKILL
    assert used(node) == 0


def test_a_failure_that_makes_no_sense_is_refused(node: SimNode, start: Start) -> None:
    program = start(node, "print(Driver(init=False).code('cuInit', 0))", {"NVSHARE_SIM_FAULTS": "lock=600,sleep=1"})
    assert program.line() == "1"
    assert "operations are lock, checkpoint, restore and unlock" in program.heard("NVSHARE_SIM_FAULTS").text


def test_no_call_does_anything_in_a_process_whose_checkpoint_broke(node: SimNode, run: Run) -> None:
    # GIVEN every function of the simulated driver, and something that is no handle of any kind
    text = (ROOT / "native/include/surface.def").read_text()
    found = re.findall(r"^NVS_SIMULATED(?:_PT)?\((\w+), +(_pt\wz|_ptds)?", text, re.M)
    names = sorted({name + suffix for name, suffix in found} | {name for name, _ in found})
    assert len(names) > 250
    said = run(
        node,
        f"""
        import os
        d, nothing = Driver(), ctypes.create_string_buffer(4096)
        d.leave(os.getpid())
        assert d.checkpoint("Restore", os.getpid()) == 999
        for name in {names!r}:
            if getattr(d.library, name)(*[c_void_p(ctypes.addressof(nothing) + 1024)] * 11) == 0:
                print(name)
        """,
        {"NVSHARE_SIM_FAULTS": "restore=break"},
    )
    # THEN only those succeed that ask the driver for nothing
    assert said.split() == ["cuCtxGetCurrent", "cuDriverGetVersion", "cuThreadExchangeStreamCaptureMode"]


def test_an_older_driver_has_no_such_calls(make_node: Callable[..., SimNode], run: Run) -> None:
    # GIVEN a node whose driver is that of CUDA 12.4
    node = make_node(setup=Setup(older_driver=1))
    run(
        node,
        """
        import pynvml as n
        d = Driver()
        name, version = c_char_p(b"cuCheckpointProcessLock"), c_int()
        d.cuDriverGetVersion(byref(version))
        n.nvmlInit()
        assert version.value == n.nvmlSystemGetCudaDriverVersion() == 12040
        # THEN they are found in neither way, and all else is
        assert not hasattr(d.library, "cuCheckpointProcessLock")
        assert d.code("cuGetProcAddress_v2", name, byref(c_void_p()), c_int(13000), 0, byref(c_int())) == 500
        assert d.code("cuGetProcAddress_v2", c_char_p(b"cuInit"), byref(c_void_p()), c_int(13000), 0, None) == 0
        """,
    )
    run(
        make_node(),
        """
        d, found = Driver(), c_void_p()
        d.cuGetProcAddress_v2(c_char_p(b"cuCheckpointProcessLock"), byref(found), c_int(12080), 0, None)
        assert found.value == ctypes.cast(d.library.cuCheckpointProcessLock, c_void_p).value
        """,
    )
