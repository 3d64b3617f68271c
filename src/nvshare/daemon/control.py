"""The JSON of control requests: what may be asked, and in which form. Pure; the daemon carries it out."""

from __future__ import annotations

import contextlib
import enum
import json
import re
from dataclasses import dataclass
from typing import Any

from nvshare.config import CORE_BOUNDS, MAX_SIZE, MODES, PRIORITIES, QUANTUM_BOUNDS, SIZE_FORMS, SWITCH_TIMES
from nvshare.core import events
from nvshare.core.policy.membership import Process
from nvshare.core.settings import Cores, Mode, Priority, SwitchTime
from nvshare.daemon.translate import printable

OPERATIONS = ("status", "set", "limit", "reset", "run", "lease", "pods", "sleep", "wake")
TARGETS = ("client", "pid", "pod", "run", "lease")
_MAX_LABEL = 64
_MAX_CARDS = 1024  # named in one request
_LEASE_ID = re.compile(r"[0-9a-f]{16}")


class ControlError(Exception):
    """The request cannot be carried out; the text says what is allowed."""


Request = dict[str, Any]


def parse(body: bytes) -> Request:
    """A JSON object with a known ``op``."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise ControlError("a request is a JSON object in UTF-8") from None
    if not isinstance(request, dict) or request.get("op") not in OPERATIONS:
        raise ControlError(f'a request is a JSON object with "op", one of {", ".join(OPERATIONS)}')
    return request


def only(request: Request, *names: str) -> None:
    """``ControlError`` when a request has fields of other names."""
    unknown = sorted(set(request) - {"op", *names})
    if unknown:
        shown = printable(", ".join(unknown)[:100])
        raise ControlError(f"{request['op']} knows no {shown}; it takes {', '.join(names) or 'nothing more'}")


def _choice(request: Request, name: str, values: tuple[str, ...]) -> str | None:
    value = request.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or value not in values:
        raise ControlError(f"{name} is one of {', '.join(values)}")
    return value


def _number(request: Request, name: str, low: int, high: int, unit: str) -> float | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ControlError(f"{name} is a number from {low} to {high} ({unit})")
    return value


def memory(request: Request, name: str = "mem") -> int | None:
    """A number of bytes, or None."""
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_SIZE:
        raise ControlError(
            f"{name} is a whole number of bytes, 1 to {MAX_SIZE}, or null; on the command line {SIZE_FORMS}"
        )
    return value


def cores(request: Request) -> Cores | None:
    """A number, which is the cap, or text such as ``30..60``; or None."""
    value = request.get("cores")
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, (int, str)):
        with contextlib.suppress(ValueError):
            return Cores.of(value)
    low, high = CORE_BOUNDS
    raise ControlError(f'cores is a number from {low} to {high} (percent of one GPU), or text: "30..60" or "30.."')


def cap(request: Request) -> int | None:
    """The ``cores`` of a pod: percent of one GPU, or None."""
    return _percent(request, "cores")


def floor(request: Request) -> int | None:
    """The ``core_floor`` of a pod: percent of one GPU, or None."""
    return _percent(request, "core_floor")


def _percent(request: Request, name: str) -> int | None:
    value = _number(request, name, *CORE_BOUNDS, "percent of one GPU")
    if value is not None and value != int(value):
        raise ControlError(f"{name} is a whole number from {CORE_BOUNDS[0]} to {CORE_BOUNDS[1]} (percent of one GPU)")
    return None if value is None else int(value)


def priority(request: Request) -> Priority | None:
    """By name, or None."""
    value = _choice(request, "priority", PRIORITIES)
    return None if value is None else Priority[value.upper()]


def settings_change(now: float, request: Request) -> events.SettingsChanged:
    """``set``; whether it fits to the settings it would change, the core knows."""
    only(request, "mode", "anti_thrash", "quantum", "switch_time")
    mode = _choice(request, "mode", MODES)
    switch_time = _choice(request, "switch_time", SWITCH_TIMES)
    quantum = _number(request, "quantum", *QUANTUM_BOUNDS, "seconds")
    anti_thrash = request.get("anti_thrash")
    if anti_thrash is not None and not isinstance(anti_thrash, bool):
        raise ControlError("anti_thrash is true or false")
    if mode is None and switch_time is None and anti_thrash is None and quantum is None:
        raise ControlError("set needs one of mode, anti_thrash, quantum, switch_time")
    return events.SettingsChanged(
        now,
        mode=None if mode is None else Mode(mode),
        anti_thrash=anti_thrash,
        switch_time=None if switch_time is None else SwitchTime(switch_time),
        quantum=None if quantum is None else float(quantum),
    )


@dataclass(frozen=True)
class Target:
    """Whose quota: ``kind`` is one of ``TARGETS``."""

    kind: str
    value: str

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


def target(request: Request) -> Target:
    """The ``target`` of a ``limit``, ``reset``, ``sleep`` or ``wake`` request."""
    given = request.get("target")
    if not isinstance(given, dict) or len(given) != 1 or next(iter(given)) not in TARGETS:
        raise ControlError(f"{request['op']} needs a target: one of {', '.join(TARGETS)}")
    kind, value = next(iter(given.items()))
    if isinstance(value, bool) or not isinstance(value, (str, int)) or len(str(value)) > 400:
        raise ControlError(f"the {kind} of a target is text or a number")
    text = str(value)
    if kind == "client":
        text = text.lower().removeprefix("0x")
        if len(text) > 16 or not text or set(text) - set("0123456789abcdef"):
            raise ControlError("a client is named by up to 16 hexadecimal digits, as nvsharectl status shows")
        text = text.zfill(16)
    elif kind == "pid" and not text.isdecimal():
        raise ControlError("a pid is a whole number")
    elif kind == "pod" and not all(text.partition("/")):
        raise ControlError("a pod is named <namespace>/<name>")
    return Target(kind, printable(text))


def limits_change(now: float, group: str, request: Request) -> events.LimitsChanged:
    """``limit``: a field that is null goes back to its default, one that is absent stays."""
    only(request, "target", "mem", "cores", "priority")
    fields = {"mem": "mem_limit", "cores": "core_limit", "priority": "priority"}
    if not any(name in request for name in fields):
        raise ControlError("limit needs one of mem, cores, priority")
    return events.LimitsChanged(
        now,
        group,
        mem_limit=memory(request),
        core_limit=cores(request),
        priority=priority(request),
        clear=frozenset(field for name, field in fields.items() if name in request and request[name] is None),
    )


class Scope(enum.Enum):
    """What of that which operators set is taken back, where it is not one group's quotas."""

    SETTINGS = "settings"
    EVERYTHING = "everything"


def reset(request: Request) -> Target | Scope:
    """``reset``."""
    only(request, "target", "scope")
    if ("target" in request) is ("scope" in request):
        raise ControlError(f"reset needs a target, or a scope: {' or '.join(scope.value for scope in Scope)}")
    if "target" in request:
        return target(request)
    try:
        return Scope(request["scope"])
    except ValueError:
        raise ControlError(f"the scope of reset is {' or '.join(scope.value for scope in Scope)}") from None


def run_opened(now: float, process: Process, request: Request) -> events.RunOpened:
    """``run``."""
    only(request, "label", "mem", "cores", "priority")
    return events.RunOpened(
        now,
        process,
        label=_label(request),
        mem_limit=memory(request),
        core_limit=cores(request),
        priority=priority(request),
    )


def _label(request: Request) -> str:
    label = request.get("label") or ""
    if not isinstance(label, str):
        raise ControlError("label is text")
    return printable(label[:_MAX_LABEL])


def _cards(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_CARDS:
        raise ControlError(f"{name} is a list of 1 to {_MAX_CARDS} GPUs")
    if not all(isinstance(uuid, str) and len(uuid) <= 100 for uuid in value):
        raise ControlError(f"{name} names GPUs by UUID")
    return tuple(map(printable, value))


def lease_again(request: Request) -> tuple[str, tuple[str, ...]] | None:
    """The id and the cards of a lease that was held under an earlier scheduler."""
    again = request.get("again")
    if again is None:
        return None
    if not isinstance(again, dict) or set(again) != {"id", "gpus"} or not isinstance(again["id"], str):
        raise ControlError('again is {"id", "gpus"} of a lease that was held before')
    if not _LEASE_ID.fullmatch(again["id"]):
        raise ControlError("the id of a lease has 16 hexadecimal digits")
    return again["id"], _cards(again["gpus"], "gpus")


def lease_requested(now: float, lease: str, holder: Process, request: Request) -> events.LeaseRequested:
    """``lease``; whether there is room for it, the core knows."""
    only(request, "label", "mem", "cores", "gpus", "among", "again")
    count = request.get("gpus", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_CARDS:
        raise ControlError(f"gpus is how many GPUs: a whole number from 1 to {_MAX_CARDS}")
    among = request.get("among")
    again = lease_again(request)
    return events.LeaseRequested(
        now,
        lease,
        holder,
        label=_label(request),
        mem=memory(request),
        cores=cores(request),
        count=count,
        among=None if among is None else _cards(among, "among"),
        held=() if again is None else again[1],
    )


def reply(**fields: Any) -> bytes:
    """A successful answer."""
    return json.dumps({"ok": True, **fields}, separators=(",", ":")).encode()


def status_reply(status: dict[str, Any]) -> bytes:
    """The answer to ``status``, entry by entry: the encoder keeps all other threads waiting while it is at work."""
    parts = []
    for name, value in status.items():
        if isinstance(value, list):
            text = "[" + ",".join(json.dumps(entry, separators=(",", ":")) for entry in value) + "]"
        else:
            text = json.dumps(value, separators=(",", ":"))
        parts.append(f"{json.dumps(name)}:{text}")
    return ('{"ok":true,"status":{' + ",".join(parts) + "}}").encode()


def refusal(error: ControlError) -> bytes:
    """An answer that says what is allowed."""
    return json.dumps({"ok": False, "error": str(error)}).encode()
