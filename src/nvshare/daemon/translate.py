"""Wire messages to the core's events, and the core's commands to wire messages. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nvshare.core import commands, events
from nvshare.core.policy.membership import Process
from nvshare.core.settings import Cores, Priority, SliceEnd
from nvshare.core.sleep.state import Bar, Outcome
from nvshare.wire import messages as wire

_MAX_U32 = 0xFFFFFFFF
_TOLD = frozenset(reason.value for reason in wire.ReleaseReason)
REFUSALS = {
    commands.Fault.MALFORMED: wire.RefusalCode.MALFORMED,
    commands.Fault.UNKNOWN_GPU: wire.RefusalCode.UNKNOWN_GPU,
    commands.Fault.LIMIT: wire.RefusalCode.LIMIT,
}
_BARS = frozenset(reason.value for reason in wire.BarReason)
_OUTCOMES = frozenset(outcome.value for outcome in wire.SleptOutcome)
_SLICE_ENDS = {reason.value: SliceEnd(reason.value) for reason in wire.TurnReason}


class BadMessage(Exception):
    """A well-formed message whose content cannot be meant; the connection is closed with this text."""


def printable(text: str) -> str:
    """A name from outside, fit for logs and tables: what is not printable becomes a question mark."""
    return "".join(character if character.isprintable() else "?" for character in text)


def held_gpus(entries: Sequence[wire.GpuEntry]) -> tuple[events.HeldGpu, ...]:
    """The GPUs of a REGISTER or ATTACH."""
    return tuple(
        events.HeldGpu(printable(entry.uuid), entry.allocated, entry.resident, entry.grant) for entry in entries
    )


def registration(now: float, message: wire.Register, client: int, process: Process) -> events.ClientRegistered:
    """REGISTER."""
    return events.ClientRegistered(
        now,
        client,
        process,
        held_gpus(message.gpus),
        name=printable(message.name),
        pod_name=printable(message.pod_name),
        pod_namespace=printable(message.pod_namespace),
        can_swap=bool(message.flags & wire.FLAG_CAN_SWAP),
        oversize=bool(message.flags & wire.FLAG_OVERSIZE),
        asleep=bool(message.flags & wire.FLAG_ASLEEP),
        mem_limit=message.mem_limit or None,
        core_limit=_cores(message),
        priority=Priority.HIGH if message.priority else Priority.NORMAL,
    )


def _cores(message: wire.Register) -> Cores | None:
    """What the environment of a client says; what it must not say the core ignores, with a warning."""
    if not message.core_limit and not message.core_floor:
        return None
    return Cores(message.core_floor, message.core_limit or Cores().cap)


def _gpu(index: int, gpus: Sequence[str]) -> str:
    if index >= len(gpus):
        raise BadMessage(f"GPU index {index}, but {len(gpus)} attached")
    return gpus[index]


def _lock_requested(now: float, client: int, gpus: Sequence[str], message: wire.ReqLock) -> events.Event:
    return events.LockRequested(now, client, _gpu(message.gpu, gpus))


def _lock_released(now: float, client: int, gpus: Sequence[str], message: wire.LockReleased) -> events.Event:
    if message.reason not in _TOLD:
        raise BadMessage(f"LOCK_RELEASED for reason {message.reason}, allowed are 0 to {max(_TOLD)}")
    stuck = message.reason == wire.ReleaseReason.STUCK
    return events.LockReleased(now, client, _gpu(message.gpu, gpus), message.grant, stuck=stuck)


def _memory_requested(now: float, client: int, gpus: Sequence[str], message: wire.MemRequest) -> events.Event:
    gpu, stays = _gpu(message.gpu, gpus), bool(message.flags & wire.FLAG_STAYS)
    if stays and message.flags & wire.FLAG_COUNTED:
        return events.MemoryKept(now, client, gpu, message.request, message.bytes)
    return events.MemoryRequested(now, client, gpu, message.request, message.bytes, stays)


def _memory_updated(now: float, client: int, gpus: Sequence[str], message: wire.MemUpdate) -> events.Event:
    gpu = _gpu(message.gpu, gpus)
    return events.MemoryUpdated(
        now, client, gpu, message.released, message.resident, message.host, message.pinned, message.applied
    )


def _usage_reported(now: float, client: int, gpus: Sequence[str], message: wire.Usage) -> events.Event:
    return events.UsageReported(
        now,
        client,
        _gpu(message.gpu, gpus),
        occupied=message.occupied_us / 1e6,
        submissions=message.submissions,
        window=message.window,
        swapped_out=message.swapped_out,
        swapped_in=message.swapped_in,
    )


def _slice_requested(now: float, client: int, gpus: Sequence[str], message: wire.ReqTurn) -> events.Event:
    return events.SliceRequested(now, client, _gpu(message.gpu, gpus))


def _slice_over(now: float, client: int, gpus: Sequence[str], message: wire.TurnOver) -> events.Event:
    reason = _SLICE_ENDS.get(message.reason)
    if reason is None:
        raise BadMessage(f"TURN_OVER for reason {message.reason}, allowed are 0 to {max(_SLICE_ENDS)}")
    return events.SliceOver(
        now,
        client,
        _gpu(message.gpu, gpus),
        message.number,
        used=message.used_us / 1e6,
        busy=message.busy_us / 1e6,
        pending=message.pending_us / 1e6,
        reason=reason,
        wants=bool(message.wants),
    )


def _sleepable(now: float, client: int, gpus: Sequence[str], message: wire.Sleepable) -> events.Event:
    return events.SleepableSaid(now, client, _bar(message.bar), message.context)


def _slept(now: float, client: int, gpus: Sequence[str], message: wire.Slept) -> events.Event:
    if message.outcome not in _OUTCOMES:
        raise BadMessage(f"SLEPT with outcome {message.outcome}, allowed are 0 to {max(_OUTCOMES)}")
    outcome = Outcome(message.outcome)
    return events.SleepEnded(now, client, message.order, outcome, _bar(message.bar), message.error)


def _bar(number: int) -> Bar:
    """A later release may know further reasons."""
    return Bar(number) if number in _BARS else Bar.OTHER


def _wake_requested(now: float, client: int, gpus: Sequence[str], message: wire.ReqWake) -> events.Event:
    return events.WakeRequested(now, client, message.order)


def _woken(now: float, client: int, gpus: Sequence[str], message: wire.Awake) -> events.Event:
    return events.WakeEnded(now, client, message.order, message.error)


ToEvent = Callable[[float, int, Sequence[str], wire.Message], events.Event]

TO_EVENT: dict[type[wire.Message], ToEvent] = {
    wire.ReqLock: _lock_requested,  # type: ignore[dict-item]
    wire.LockReleased: _lock_released,  # type: ignore[dict-item]
    wire.MemRequest: _memory_requested,  # type: ignore[dict-item]
    wire.MemUpdate: _memory_updated,  # type: ignore[dict-item]
    wire.Usage: _usage_reported,  # type: ignore[dict-item]
    wire.ReqTurn: _slice_requested,  # type: ignore[dict-item]
    wire.TurnOver: _slice_over,  # type: ignore[dict-item]
    wire.Sleepable: _sleepable,  # type: ignore[dict-item]
    wire.Slept: _slept,  # type: ignore[dict-item]
    wire.ReqWake: _wake_requested,  # type: ignore[dict-item]
    wire.Awake: _woken,  # type: ignore[dict-item]
}
"""Messages of a registered client that become one event each; called with the time, its id and its GPUs in order."""


def _milliseconds(seconds: float) -> int:
    return max(0, min(_MAX_U32, round(seconds * 1000)))


def _microseconds(seconds: float) -> int:
    return max(0, min(_MAX_U32, round(seconds * 1e6)))


def _slice_ok(command: commands.GiveSlice, gpu: int) -> wire.Message:
    length = 0 if command.length is None else max(1, _microseconds(command.length))
    return wire.TurnOk(gpu, command.number, length, _microseconds(command.patience))


def _lock_ok(command: commands.Grant, gpu: int) -> wire.Message:
    flags = wire.FLAG_EXCLUSIVE * command.exclusive | wire.FLAG_CONTENDED * command.contended
    quantum = 0 if command.quantum is None else max(1, _milliseconds(command.quantum))
    return wire.LockOk(gpu, command.grant, flags, quantum)


_GPU_COMMANDS: dict[type[commands.Command], Callable[..., wire.Message]] = {
    commands.Grant: _lock_ok,
    commands.Drop: lambda c, gpu: wire.DropLock(gpu, c.grant, _milliseconds(c.deadline)),
    commands.SetTerms: lambda c, gpu: wire.Terms(gpu, wire.FLAG_TURNS * c.slices, _microseconds(c.in_flight)),
    commands.GiveSlice: _slice_ok,
    commands.EndSlice: lambda c, gpu: wire.EndTurn(gpu, c.number),
    commands.GrantMemory: lambda c, gpu: wire.MemAvailable(gpu, c.request),
    commands.KeepMemory: lambda c, gpu: wire.MemAvailable(gpu, c.request),
    commands.HoldMemory: lambda c, gpu: wire.WaitForMem(gpu, c.request),
    commands.DenyMemory: lambda c, gpu: wire.MemDenied(gpu, c.request, int(c.reason)),
    commands.SetResidency: lambda c, gpu: wire.Residency(gpu, c.number, c.target),
    commands.PrepareSwapOut: lambda c, gpu: wire.PrepareSwapOut(gpu, c.bytes),
    commands.SetLimit: lambda c, gpu: wire.UpdateLimit(gpu, c.mem_limit or 0, c.card),
}
_CLIENT_COMMANDS: dict[type[commands.Command], Callable[..., wire.Message]] = {
    commands.SchedOn: lambda c: wire.SchedOn(c.client),
    commands.SchedOff: lambda c: wire.SchedOff(c.client),
    commands.SetCoreLimit: lambda c: wire.UpdateCoreLimit(c.percent),
    commands.GoToSleep: lambda c: wire.Sleep(c.order, _milliseconds(c.lock), c.context),
    commands.WakeUp: lambda c: wire.Wake(c.order),
}


def to_message(command: commands.Command, gpus: Sequence[str]) -> wire.Message:
    """The message that carries out a command addressed to a client with these GPUs."""
    make = _GPU_COMMANDS.get(type(command))
    if make is not None:
        return make(command, gpus.index(command.gpu))  # type: ignore[attr-defined]
    return _CLIENT_COMMANDS[type(command)](command)
