from __future__ import annotations

import pytest

from nvshare.core import commands, events
from nvshare.core.policy.membership import Process
from nvshare.core.settings import MAX_GPUS, Cores, DenyReason, Priority, SliceEnd
from nvshare.daemon import translate
from nvshare.wire import messages as wire

A, B = "GPU-a", "GPU-b"

MESSAGES = [
    (wire.ReqLock(1), events.LockRequested(1.5, 42, B)),
    (wire.LockReleased(0, 9, 0), events.LockReleased(1.5, 42, A, 9, stuck=False)),
    (wire.LockReleased(0, 9, 3), events.LockReleased(1.5, 42, A, 9, stuck=True)),
    (wire.MemRequest(0, 3, 100), events.MemoryRequested(1.5, 42, A, 3, 100)),
    (wire.MemRequest(0, 3, 100, wire.FLAG_STAYS), events.MemoryRequested(1.5, 42, A, 3, 100, True)),
    (wire.MemRequest(0, 3, 100, wire.FLAG_STAYS | wire.FLAG_COUNTED), events.MemoryKept(1.5, 42, A, 3, 100)),
    (wire.MemUpdate(1, 1, 2, 3, 4, 5), events.MemoryUpdated(1.5, 42, B, 1, 2, 3, 4, 5)),
    (wire.Usage(0, 64, 1_500_000, 10, 11, 12), events.UsageReported(1.5, 42, A, 1.5, 10, 64, 11, 12)),
]


@pytest.mark.parametrize(("message", "event"), MESSAGES)
def test_each_message_of_a_client_is_one_event(message, event):
    assert translate.TO_EVENT[type(message)](1.5, 42, [A, B], message) == event


@pytest.mark.parametrize("message", [message for message, _ in MESSAGES])
def test_gpu_beyond_those_attached_is_a_bad_message(message):
    with pytest.raises(translate.BadMessage, match="but 0 attached"):
        translate.TO_EVENT[type(message)](1.5, 42, [], message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (commands.SchedOn(42), wire.SchedOn(42)),
        (commands.SchedOff(42), wire.SchedOff(42)),
        (commands.Grant(42, B, 9), wire.LockOk(1, 9, 0, 0)),
        (commands.Grant(42, A, 9, True, True, 2.5), wire.LockOk(0, 9, 3, 2500)),
        (commands.Grant(42, A, 9, quantum=0.0001), wire.LockOk(0, 9, 0, 1)),
        (commands.Grant(42, A, 9, quantum=1e12), wire.LockOk(0, 9, 0, 2**32 - 1)),
        (commands.Drop(42, B, 9, 10.0), wire.DropLock(1, 9, 10_000)),
        (commands.GrantMemory(42, A, 1, 5), wire.MemAvailable(0, 1)),
        (commands.HoldMemory(42, A, 1, 5), wire.WaitForMem(0, 1)),
        (commands.DenyMemory(42, A, 1, 5, 4, DenyReason.CARD), wire.MemDenied(0, 1, 2)),
        (commands.SetResidency(42, B, 7, 5), wire.Residency(1, 7, 5)),
        (commands.SetLimit(42, B, None, 8), wire.UpdateLimit(1, 0, 8)),
        (commands.SetLimit(42, B, 6, 8), wire.UpdateLimit(1, 6, 8)),
        (commands.SetCoreLimit(42, 30), wire.UpdateCoreLimit(30)),
    ],
)
def test_each_command_to_a_client_is_one_message(command, message):
    assert translate.to_message(command, [A, B]) == message
    message.pack()


PROCESS = Process(1, (1,))


def register(*gpus, **fields):
    message = wire.Register(gpus or (wire.GpuEntry(A),), **fields)
    return translate.registration(0.0, message, 1, PROCESS)


def test_registration_is_what_the_message_says_and_which_process_the_kernel_names():
    event = register(wire.GpuEntry(A, 3, 2, 1), wire.GpuEntry(B), pod_name="p", pod_namespace="n")
    assert (event.client, event.process) == (1, PROCESS)
    assert event.gpus == (events.HeldGpu(A, 3, 2, 1), events.HeldGpu(B))
    assert (event.pod_name, event.pod_namespace) == ("p", "n")


def test_registration_takes_limits_as_start_values():
    event = register(mem_limit=5, core_limit=30, priority=1, flags=wire.FLAG_CAN_SWAP)
    assert (event.mem_limit, event.core_limit, event.priority, event.can_swap) == (5, Cores(0, 30), Priority.HIGH, True)
    # AND a floor comes in the flags
    flags = 20 << wire.FLOOR_SHIFT | wire.FLAG_OVERSIZE
    event = register(core_limit=30, flags=flags)
    assert (event.core_limit, event.can_swap, event.oversize) == (Cores(20, 30), False, True)
    assert register(flags=flags).core_limit == Cores(20, 100)
    event = register()
    assert (event.mem_limit, event.core_limit, event.priority, event.can_swap) == (None, None, Priority.NORMAL, False)


def test_names_from_outside_cannot_forge_log_lines():
    event = register(wire.GpuEntry("GPU\nx"), name="x\n[NVSHARE][INFO]: y\x1b[2J")
    assert event.name == "x?[NVSHARE][INFO]: y?[2J"
    assert event.gpus[0].gpu == "GPU?x"


def test_each_fault_has_the_refusal_code_of_its_name():
    assert {fault.name: code.name for fault, code in translate.REFUSALS.items()} == {
        fault.name: fault.name for fault in commands.Fault
    }


def test_core_and_wire_bound_the_gpus_of_one_client_alike():
    assert MAX_GPUS == wire.MAX_GPUS


def test_compute_turns_go_both_ways_in_microseconds() -> None:
    gpus = ["GPU-a", "GPU-b"]
    over = wire.TurnOver(1, 7, wire.TurnReason.IDLE, 50_000, 40_000, 300, 1)
    assert translate.TO_EVENT[wire.TurnOver](3.0, 5, gpus, over) == events.SliceOver(
        3.0, 5, "GPU-b", 7, used=0.05, busy=0.04, pending=0.0003, reason=SliceEnd.IDLE, wants=True
    )
    assert translate.TO_EVENT[wire.ReqTurn](3.0, 5, gpus, wire.ReqTurn(0)) == events.SliceRequested(3.0, 5, "GPU-a")
    with pytest.raises(translate.BadMessage, match="reason 9, allowed are 0 to 3"):
        translate.TO_EVENT[wire.TurnOver](3.0, 5, gpus, wire.TurnOver(0, 1, 9))
    sent = [
        commands.SetTerms(5, "GPU-b", True, 0.004),
        commands.GiveSlice(5, "GPU-b", 7, 0.05),
        commands.GiveSlice(5, "GPU-b", 7, None),
        commands.EndSlice(5, "GPU-b", 7),
    ]
    assert [translate.to_message(command, gpus) for command in sent] == [
        wire.Terms(1, wire.FLAG_TURNS, 4000),
        wire.TurnOk(1, 7, 50_000, 1000),
        wire.TurnOk(1, 7, 0, 1000),
        wire.EndTurn(1, 7),
    ]


def test_reasons_have_one_number_in_the_core_and_on_the_wire() -> None:
    assert [(one.name, one.value) for one in DenyReason] == [(one.name, one.value) for one in wire.DenyReason]
    assert [one.value for one in SliceEnd] == [one.value for one in wire.TurnReason]
