"""The only reader of the environment and of configuration; sizes, paths of sockets, and how a log line looks.

Every setting has bounds and a default. A value outside them is never fatal: it yields one warning that names the value,
what is allowed and the default that is used instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from nvshare import cores

SYSTEM_SOCKET = Path("/var/run/nvshare/scheduler.sock")
SOCKET_NAME = "scheduler.sock"
LEASE_VARIABLE = "NVSHARE_LEASE"  # in the environment of a lease's processes: which one is meant

MEMORY_ANNOTATION = "nvshare.com/gpu-memory-limit"
CORES_ANNOTATION = "nvshare.com/gpu-core-limit"  # the cap
FLOOR_ANNOTATION = "nvshare.com/gpu-core-request"

MODES = ("auto", "serial", "concurrent")
SWITCH_TIMES = ("auto", "fixed")
PRIORITIES = ("normal", "high")
PLACEMENTS = ("spread", "pack")

SIZE_FORMS = "use 4Gi or 4GiB (2^32 bytes), 4G or 4GB (4*10^9 bytes), 512Mi, or plain bytes"
MAX_SIZE = 2**56  # the core takes no larger figure seriously

QUANTUM_BOUNDS = (1, 86400)
CORE_BOUNDS = cores.BOUNDS
VIRTUAL_DEVICES_BOUNDS = (1, 1000)
MEMORY_OVERSUB_BOUNDS = (1.0, 100.0)

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[_letter] = _UNITS[_letter + "B"] = 1000**_power
    _UNITS[_letter + "I"] = _UNITS[_letter + "IB"] = 1024**_power
_SIZE = re.compile(r"\s*(\d+)(?:\.(\d+))?\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes from ``4Gi`` = ``4GiB`` = 2^32, ``4G`` = ``4GB`` = 4*10^9, or plain bytes; else ``ValueError``."""
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[3].upper()) if match else None
    if match is None or unit is None or len(match[1]) > 20 or len(match[2] or "") > 9:
        raise ValueError(f"{text!r} is not a size: {SIZE_FORMS}")
    fraction = match[2] or ""
    size: int = int(match[1] + fraction) * unit // 10 ** len(fraction)
    if not 0 < size <= MAX_SIZE:
        raise ValueError(f"{text!r} is not a usable size, between 1 byte and 64 PiB: {SIZE_FORMS}")
    return size


def format_size(size: int) -> str:
    """A size for people, in binary units: ``4.0 GiB``."""
    for unit, name in ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable: how it parses (``ValueError`` when it does not), what is allowed, and its default."""

    name: str
    default: T
    allowed: str
    parse: Callable[[str], T]
    otherwise: str = ""  # the default in words, where the value does not say it


def _whole(name: str, default: int, low: int, high: int) -> Variable[int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return Variable(name, default, f"a whole number from {low} to {high}", parse)


def _number(name: str, default: float, low: float, high: float) -> Variable[float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # also refuses nan
            raise ValueError
        return value

    return Variable(name, default, f"a number from {low:g} to {high:g}", parse)


def _choice(name: str, values: tuple[str, ...]) -> Variable[str]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in values:
            raise ValueError
        return value

    return Variable(name, values[0], " or ".join(values), parse)


_ON_OFF = {"1": True, "on": True, "true": True, "yes": True, "0": False, "off": False, "false": False, "no": False}


def _switch(name: str) -> Variable[bool]:
    def parse(text: str) -> bool:
        try:
            return _ON_OFF[text.strip().lower()]
        except KeyError:
            raise ValueError from None

    return Variable(name, False, "on or off (also 1, 0, true, false, yes, no)", parse)


def _size(name: str, otherwise: str = "none") -> Variable[int | None]:
    return Variable(name, None, f"a size ({SIZE_FORMS})", parse_size, otherwise)


@dataclass(frozen=True)
class SleepAfter:
    """When tasks are put to sleep."""

    room: bool = True  # where the room of their contexts is needed
    idle: float | None = None  # seconds without work after which they are anyway; None: never

    def __str__(self) -> str:
        if not self.room:
            return "off"
        return "auto" if self.idle is None else f"{self.idle:g}s"


SLEEP_BOUNDS = (1, 7 * 86400)  # seconds
SLEEP_FORMS = "auto, off, or a time from 1s to 7d such as 90s, 10m or 2h"
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_sleep_after(text: str) -> SleepAfter:
    """``auto``, ``off``, or a time without work; else ``ValueError``."""
    given = text.strip().lower()
    if given in ("auto", "off"):
        return SleepAfter(room=given == "auto")
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd]?)", given, re.ASCII)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    low, high = SLEEP_BOUNDS
    if not low <= seconds <= high:
        raise ValueError(f"{text!r} is not allowed: {SLEEP_FORMS}")
    return SleepAfter(idle=seconds)


SCHEDULING_MODE = _choice("NVSHARE_SCHEDULING_MODE", MODES)
MAX_RUNTIME = _whole("NVSHARE_MAX_RUNTIME_SEC", 300, 10, 86400)
SWITCH_TIME_MODE = _choice("NVSHARE_SWITCH_TIME_MODE", SWITCH_TIMES)
SWITCH_TIME_FIXED = _whole("NVSHARE_SWITCH_TIME_FIXED", 30, *QUANTUM_BOUNDS)
SWITCH_TIME_MULTIPLIER = _number("NVSHARE_SWITCH_TIME_MULTIPLIER", 5, 1, 1000)
COMPUTE_WINDOW = _whole("NVSHARE_COMPUTE_WINDOW_MS", 2000, 100, 60000)
MEMORY_RESERVE = _whole("NVSHARE_MEMORY_RESERVE_PERCENT", 0, 0, 90)
_HOST_SHARE = 0.8  # of the machine's memory; the rest stays for the programs themselves
CARD_MEMORY = _size("NVSHARE_CARD_MEMORY", "the card, less its contexts")
CONTEXTS_INSIDE = _switch("NVSHARE_CONTEXTS_INSIDE")
SLEEP_AFTER = Variable("NVSHARE_SLEEP_AFTER", SleepAfter(room=False), SLEEP_FORMS, parse_sleep_after)
HOST_MEMORY = _size("NVSHARE_HOST_MEMORY", f"{_HOST_SHARE:.0%} of the machine's memory".replace("%", " %"))
GPU_MEMORY_LIMIT = _size("NVSHARE_GPU_MEMORY_LIMIT")
GPU_CORE_LIMIT = Variable(
    "NVSHARE_GPU_CORE_LIMIT", cores.Cores(), cores.ALLOWED, lambda text: cores.Cores.parse(text.strip())
)
PRIORITY = _choice("NVSHARE_PRIORITY", PRIORITIES)
SINGLE_OVERSUB = _switch("NVSHARE_ENABLE_SINGLE_OVERSUB")
REQUIRE = _switch("NVSHARE_REQUIRE")
DEBUG = _switch("NVSHARE_DEBUG")
VIRTUAL_DEVICES = _whole("NVSHARE_VIRTUAL_DEVICES", 10, *VIRTUAL_DEVICES_BOUNDS)
PLACEMENT = _choice("NVSHARE_PLACEMENT", PLACEMENTS)
MEMORY_OVERSUB_RATIO = _number("NVSHARE_GPU_MEMORY_OVERSUB_RATIO", 1.0, *MEMORY_OVERSUB_BOUNDS)


class Environment:
    """Typed values of ``NVSHARE_*`` variables. ``warnings`` collects one line per value that cannot be used."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self.warnings: list[str] = []

    def given(self, variable: Variable[T]) -> T | None:
        """The value that is set and usable, else None. An empty value counts as not set."""
        text = self._environ.get(variable.name, "")
        if not text.strip():
            return None
        try:
            return variable.parse(text)
        except ValueError:
            default = variable.otherwise or variable.default
            default = {True: "on", False: "off"}[default] if isinstance(default, bool) else default
            self.warnings.append(
                f"{variable.name}={text!r} cannot be used: allowed is {variable.allowed}; using the default, {default}"
            )
            return None

    def get(self, variable: Variable[T]) -> T:
        """The value that is set and usable, else the default."""
        value = self.given(variable)
        return variable.default if value is None else value


_SETTINGS = tuple(value for value in globals().copy().values() if isinstance(value, Variable))
_OTHER_NAMES = frozenset(
    "NVSHARE_" + name
    for name in (
        "SOCK", "DISABLE_SWAP", "IDLE_MS", "LEASE", "WORKER", "STRESS", "POD_NAME", "POD_NAMESPACE", "SIM_NODE",
        "SIM_HOST_MEMORY",
    )
)  # fmt: skip


def unusable_settings(environ: Mapping[str, str]) -> list[str]:
    """One line for every setting whose value cannot be used."""
    environment = Environment(environ)
    for variable in _SETTINGS:
        environment.given(variable)
    return environment.warnings


def unknown_settings(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like settings of ours and are none. Those that Kubernetes makes of services do not count."""
    known = _OTHER_NAMES.union(variable.name for variable in _SETTINGS)
    named = (name for name in sorted(environ) if name.startswith("NVSHARE_") and name not in known)
    return [name for name in named if not re.search(r"_(SERVICE|PORT)(_|$)", name)]


@dataclass(frozen=True)
class SchedulerConfig:
    """What a scheduler starts with. ``defaulted`` names the fields nobody set, for the log."""

    mode: str = SCHEDULING_MODE.default
    max_runtime: int = MAX_RUNTIME.default
    switch_time: str = SWITCH_TIME_MODE.default
    quantum: int = SWITCH_TIME_FIXED.default
    multiplier: float = SWITCH_TIME_MULTIPLIER.default
    compute_window: float = COMPUTE_WINDOW.default / 1000
    reserve_percent: int = MEMORY_RESERVE.default
    card_memory: int | None = None
    contexts_inside: bool = False
    sleep_after: SleepAfter = SLEEP_AFTER.default
    host_memory: int | None = None
    debug: bool = False
    defaulted: frozenset[str] = frozenset({"mode", "max_runtime"})


def scheduler_config(
    environment: Environment,
    *,
    mode: str | None = None,
    quantum: int | None = None,
    card_memory: int | None = None,
    contexts_inside: bool = False,
    sleep_after: SleepAfter | None = None,
    debug: bool = False,
) -> SchedulerConfig:
    """The environment's settings, each replaced by the command line's where that is given."""
    set_mode = mode or environment.given(SCHEDULING_MODE)
    set_runtime = environment.given(MAX_RUNTIME)
    defaulted = {name for name, value in (("mode", set_mode), ("max_runtime", set_runtime)) if value is None}
    return SchedulerConfig(
        mode=set_mode or SCHEDULING_MODE.default,
        max_runtime=set_runtime or MAX_RUNTIME.default,
        switch_time="fixed" if quantum is not None else environment.get(SWITCH_TIME_MODE),
        quantum=quantum if quantum is not None else environment.get(SWITCH_TIME_FIXED),
        multiplier=environment.get(SWITCH_TIME_MULTIPLIER),
        compute_window=environment.get(COMPUTE_WINDOW) / 1000,
        reserve_percent=environment.get(MEMORY_RESERVE),
        card_memory=card_memory if card_memory is not None else environment.get(CARD_MEMORY),
        contexts_inside=contexts_inside or environment.get(CONTEXTS_INSIDE),
        sleep_after=sleep_after or environment.get(SLEEP_AFTER),
        host_memory=environment.get(HOST_MEMORY),
        debug=debug or environment.get(DEBUG),
        defaulted=frozenset(defaulted),
    )


@dataclass(frozen=True)
class PluginConfig:
    """What a device plugin starts with."""

    devices_per_gpu: int = VIRTUAL_DEVICES.default
    placement: str = PLACEMENT.default
    ratio: float = MEMORY_OVERSUB_RATIO.default
    card_memory: int | None = None
    debug: bool = False


def plugin_config(
    environment: Environment,
    *,
    devices_per_gpu: int | None = None,
    placement: str | None = None,
    ratio: float | None = None,
    card_memory: int | None = None,
    debug: bool = False,
) -> PluginConfig:
    """The environment's settings, each replaced by the command line's where that is given."""
    return PluginConfig(
        devices_per_gpu=environment.get(VIRTUAL_DEVICES) if devices_per_gpu is None else devices_per_gpu,
        placement=environment.get(PLACEMENT) if placement is None else placement,
        ratio=environment.get(MEMORY_OVERSUB_RATIO) if ratio is None else ratio,
        card_memory=environment.get(CARD_MEMORY) if card_memory is None else card_memory,
        debug=debug or environment.get(DEBUG),
    )


def host_memory_budget(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of host memory that swapped-out device memory may take, unless somebody sets it; None: not known."""
    try:
        match = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(int(match[1]) * 1024 * _HOST_SHARE) if match else None


def runtime_directory(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Where a user's own sockets and nodes live: ``$XDG_RUNTIME_DIR/nvshare``, else ``/tmp/nvshare-<uid>``."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_RUNTIME_DIR", "")
    if base:
        return Path(base) / "nvshare"
    # Anybody may make a directory there first: own_runtime_directory makes sure that it is ours.
    return Path(f"/tmp/nvshare-{os.getuid() if uid is None else uid}")  # noqa: S108


class RuntimeUnusable(Exception):
    """The runtime directory cannot be used, or not be trusted; the text says what to do."""

    def __init__(self, directory: Path, problem: str) -> None:
        super().__init__(f"{directory} {problem}; set XDG_RUNTIME_DIR to a directory of your own")


@contextlib.contextmanager
def within_runtime(directory: Path) -> Iterator[None]:
    """What the system refuses inside of the runtime directory is one line for the user."""
    try:
        yield
    except OSError as error:
        raise RuntimeUnusable(directory, f"cannot be used ({error.strerror})") from error


def own_runtime_directory() -> Path:
    """The runtime directory, made when missing; ``RuntimeUnusable`` unless it is ours and closed to others.

    Nothing may be opened, written or connected to in there before: who made it first could have put links there, or a
    socket of their own.
    """
    directory = runtime_directory()
    with within_runtime(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_own(directory)
    return directory


def _require_own(directory: Path) -> None:
    with within_runtime(directory):
        above, own = directory.parent.stat(), directory.lstat()
    if not stat.S_ISDIR(own.st_mode):
        raise RuntimeUnusable(directory, "is not a directory")
    if own.st_uid != os.getuid():
        raise RuntimeUnusable(directory, "belongs to another user")
    if own.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RuntimeUnusable(directory, "can be written by others (or close it: chmod go-w)")
    trusted = above.st_uid in (0, os.getuid()) and not above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not trusted and not above.st_mode & stat.S_ISVTX:  # in a sticky directory each keeps what is his
        raise RuntimeUnusable(directory, "could be replaced by others, who may write to the directory above it")


def user_socket(environ: Mapping[str, str] | None = None) -> Path:
    """The socket of a per-user scheduler; ``RuntimeUnusable`` when another user could have put it there."""
    directory = runtime_directory(environ)
    if os.path.lexists(directory):
        _require_own(directory)
    return directory / SOCKET_NAME


def find_socket(environ: Mapping[str, str] | None = None, system: Path = SYSTEM_SOCKET) -> Path:
    """The socket a program of this user talks to: ``NVSHARE_SOCK``, else the system's if there, else the user's own."""
    environ = os.environ if environ is None else environ
    chosen = environ.get("NVSHARE_SOCK", "")
    if chosen:
        return Path(chosen)
    # One that we may not even look at is not there for us, as for the library.
    return system if os.path.exists(system) else user_socket(environ)


def scheduler_socket(user: bool, environ: Mapping[str, str] | None = None) -> Path:
    """Where a scheduler listens unless told: ``NVSHARE_SOCK``, else the user's own, else the system's."""
    chosen = (os.environ if environ is None else environ).get("NVSHARE_SOCK", "")
    if chosen:
        return Path(chosen)
    return user_socket(environ) if user else SYSTEM_SOCKET


@dataclass(frozen=True)
class ClusterPlace:
    """What a pod is told of its cluster; None and empty outside of one."""

    node: str
    service: tuple[str, int] | None  # where the API server is
    kubeconfig: Path | None


def cluster_place(environ: Mapping[str, str] | None = None) -> ClusterPlace:
    """From ``NODE_NAME``, ``KUBERNETES_SERVICE_HOST`` and ``_PORT``, and ``KUBECONFIG`` (one file)."""
    environ = os.environ if environ is None else environ
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    kubeconfig = environ.get("KUBECONFIG", "")
    return ClusterPlace(
        environ.get("NODE_NAME", ""),
        (host, int(port)) if host and port.isdecimal() else None,
        Path(kubeconfig) if kubeconfig else None,
    )


def child_environment(changes: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process we start: ours with some variables replaced."""
    return {**(os.environ if environ is None else environ), **changes}


def preload_with(library: Path, environ: Mapping[str, str] | None = None) -> str:
    """``LD_PRELOAD`` with our library after what is there already."""
    environ = os.environ if environ is None else environ
    present = [entry for entry in re.split(r"[: ]+", environ.get("LD_PRELOAD", "")) if entry]
    return ":".join(present if str(library) in present else [*present, str(library)])


_LEVEL_NAMES = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARN",
    logging.ERROR: "FATAL",
    logging.CRITICAL: "FATAL",
}


class LogFormatter(logging.Formatter):
    """``[NVSHARE][INFO]: text``, the form people grep for."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"[NVSHARE][{_LEVEL_NAMES.get(record.levelno, 'INFO')}]: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure_logging(debug: bool = False) -> logging.Logger:
    """Send the ``nvshare`` logger to standard error in our format; returns it."""
    logger = logging.getLogger("nvshare")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False
    return logger
