"""What operators set and a restart of the scheduler must not undo, as lines of a file. Pure; ``operators.py`` keeps it.

A pod is known again by its uid. A run, a lease and a process outside of both are known by a process, of which the
kernel says when it was started: a number that another process got later is nobody's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from nvshare.config import MODES, QUANTUM_BOUNDS
from nvshare.core.events import LimitsChanged, SettingsChanged
from nvshare.core.limits import FIELDS
from nvshare.core.settings import Cores, Mode, Priority, SwitchTime
from nvshare.daemon import control

Value = str | bool | float | None

SETTINGS = ("mode", "anti_thrash", "quantum")
_GROUP = re.compile(r"pod:[0-9a-f-]{1,64}|lease:[0-9a-f]{16}|(?:run|process):([1-9][0-9]{0,9})")
_BOOT = re.compile(r"[0-9a-f-]{0,64}")
MIB = 1 << 20


@dataclass(frozen=True)
class Owner:
    """The process that a group is known by."""

    pid: int
    started: int  # ticks since the machine was started
    boot: str  # which start that was


@dataclass(frozen=True)
class Quotas:
    """What an operator set for a group; None: nothing."""

    mem: int | None = None
    cores: Cores | None = None
    priority: Priority | None = None

    @property
    def empty(self) -> bool:
        return self == Quotas()

    def after(self, change: LimitsChanged) -> Quotas:
        cleared = replace(
            self,
            mem=None if "mem_limit" in change.clear else self.mem,
            cores=None if "core_limit" in change.clear else self.cores,
            priority=None if "priority" in change.clear else self.priority,
        )
        return replace(
            cleared,
            mem=cleared.mem if change.mem_limit is None else change.mem_limit,
            cores=cleared.cores if change.core_limit is None else change.core_limit,
            priority=cleared.priority if change.priority is None else change.priority,
        )

    def change(self, now: float, group: str) -> LimitsChanged:
        """What brings a group to these, and to nothing else that an operator set."""
        given = {"mem_limit": self.mem, "core_limit": self.cores, "priority": self.priority}
        clear = FIELDS.intersection(name for name, value in given.items() if value is None)
        return LimitsChanged(now, group, self.mem, self.cores, self.priority, clear, kept=True)

    def __str__(self) -> str:
        mem = [] if self.mem is None else [f"memory {self.mem // MIB} MB"]
        cores = [] if self.cores is None else [f"cores {self.cores}%"]
        priority = [] if self.priority is None else [f"priority {self.priority.name.lower()}"]
        return ", ".join(mem + cores + priority)


@dataclass(frozen=True)
class KeptGroup:
    group: str
    owner: Owner | None  # None: a pod
    quotas: Quotas


@dataclass(frozen=True)
class KeptSetting:
    """``instead_of`` is what the scheduler had been started with: where it is started with something else, that is
    newer than the operator's change, and counts."""

    name: str
    value: Value
    instead_of: Value

    def change(self, now: float) -> SettingsChanged:
        if self.name == "mode":
            return SettingsChanged(now, mode=Mode(self.value))
        if self.name == "anti_thrash":
            return SettingsChanged(now, anti_thrash=bool(self.value))
        if self.value is None:
            return SettingsChanged(now, switch_time=SwitchTime.AUTO)
        return SettingsChanged(now, quantum=float(self.value))


Entry = KeptGroup | KeptSetting


def words(name: str, value: Value) -> str:
    """A setting for the log."""
    if name == "quantum":
        return "quantum auto" if value is None else f"quantum {value:g} s"
    if name == "anti_thrash":
        return f"anti-thrash {'on' if value else 'off'}"
    return f"{name} {value}"


def line(entry: Entry) -> str:
    """Of the file."""
    if isinstance(entry, KeptSetting):
        said: dict[str, Any] = {"setting": entry.name, "value": entry.value, "instead_of": entry.instead_of}
    else:
        quotas = entry.quotas
        said = {
            "group": entry.group,
            "process": None if entry.owner is None else vars(entry.owner),
            "mem": quotas.mem,
            "cores": None if quotas.cores is None else quotas.cores.plain,
            "priority": None if quotas.priority is None else quotas.priority.name.lower(),
        }
    return json.dumps(said) + "\n"


def read(said: Any) -> Entry:
    """An entry from what a line says; ``ValueError`` or ``ControlError`` when that makes no sense."""
    if not isinstance(said, dict):
        raise ValueError("a line that is not an object")
    if set(said) == {"setting", "value", "instead_of"} and said["setting"] in SETTINGS:
        return KeptSetting(
            said["setting"], _value(said["setting"], said["value"]), _value(said["setting"], said["instead_of"])
        )
    if set(said) != {"group", "process", "mem", "cores", "priority"}:
        raise ValueError("a line that is neither a setting nor a group")
    group = said["group"]
    known = _GROUP.fullmatch(group) if isinstance(group, str) else None
    if known is None:
        raise ValueError(f"{group!r:.80} is not a group")
    owner = None if said["process"] is None else _owner(said["process"])
    if (owner is None) is not group.startswith("pod:") or (owner and known[1] and int(known[1]) != owner.pid):
        raise ValueError(f"{group} with a process that is not its own")
    quotas = Quotas(control.memory(said), control.cores(said), control.priority(said))
    return KeptGroup(group, owner, quotas)


def _owner(said: Any) -> Owner:
    if not isinstance(said, dict) or set(said) != {"pid", "started", "boot"}:
        raise ValueError("a process that is none")
    pid, started, boot = said["pid"], said["started"], said["boot"]
    numbers = all(isinstance(number, int) and not isinstance(number, bool) and number > 0 for number in (pid, started))
    if not numbers or not isinstance(boot, str) or not _BOOT.fullmatch(boot):
        raise ValueError("a process that is none")
    return Owner(pid, started, boot)


def _value(name: str, value: Any) -> Value:
    low, high = QUANTUM_BOUNDS
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    allowed = {
        "mode": value in MODES if isinstance(value, str) else False,
        "anti_thrash": isinstance(value, bool),
        "quantum": value is None or (number and low <= value <= high),
    }
    if not allowed[name]:
        raise ValueError(f"{value!r:.80} is not a {name}")
    return float(value) if number else value
