"""The scheduler that programs of this user talk to: which one, whose, and whether it answers."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvshare import config
from nvshare.client.connection import Connection, NoScheduler, OtherVersion, SchedulerError
from nvshare.daemon.exclusive import holder_of, user_name
from nvshare.daemon.outsiders import UNSEEN, look_at
from nvshare.doctor.facts import Holder, NvmlView, SchedulerFacts, SocketFile
from nvshare.procfs import is_stopped

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


def look(
    environ: Mapping[str, str], cards: Iterable[str], seconds: float, system: Path = config.SYSTEM_SOCKET
) -> tuple[SchedulerFacts, dict[str, Any]]:
    """The scheduler, and its status (empty where it tells none within so many seconds). ``cards`` are those that the
    driver lists."""
    try:
        path = config.find_socket(environ, system)
    except config.RuntimeUnusable as error:
        return SchedulerFacts(str(config.runtime_directory(environ)), "user", "unusable", str(error)), {}
    facts = SchedulerFacts(str(path), _chosen_by(environ, path, system), "absent", file=_socket_file(path))
    status: dict[str, Any] = {}
    pid = 0
    try:
        with Connection(path, seconds) as connection:
            pid = connection.listener
            status = connection.status()
    except OtherVersion as error:
        facts = replace(facts, answer="other version", detail=str(error))
    except NoScheduler as error:
        facts = replace(facts, answer=_why(error, facts.file), detail=str(error.__cause__ or error))
        facts = replace(facts, pid=pid, stopped=is_stopped(pid))
    except SchedulerError as error:
        facts = replace(facts, answer="foreign", detail=str(error))
    else:
        facts = _answering(facts, status)
    if facts.answer == "silent":
        return facts, status  # it may well be the one that has the cards, and would not say so either
    holders = {card: holder_of(card) for card in cards if card not in facts.cards}
    return replace(facts, elsewhere={card: holder for card, holder in holders.items() if holder}), status


def _chosen_by(environ: Mapping[str, str], path: Path, system: Path) -> str:
    if str(path.parent) == environ.get("NVSHARE_SIM_NODE"):
        return "simulated node"
    if environ.get("NVSHARE_SOCK"):
        return "NVSHARE_SOCK"
    return "system" if path == system else "user"


def _answering(facts: SchedulerFacts, status: dict[str, Any]) -> SchedulerFacts:
    about = status.get("scheduler", {})
    return replace(
        facts,
        answer="answers",
        release=str(about.get("release", "")),
        pid=int(about.get("pid", 0)),
        owner=user_name(int(about["uid"])) if "uid" in about else "",
        cards=tuple(about.get("cards", ())),
        clients=len(status.get("clients", ())),
        kept={lease["id"]: lease["reason"] for lease in status.get("leases", ()) if lease.get("reason")},
        accounted={gpu["uuid"]: _accounted(gpu) for gpu in status.get("gpus", ())},
    )


def _accounted(gpu: dict[str, Any]) -> int:
    """A scheduler of another release may tell less."""
    outside = sum(user["bytes"] or 0 for user in gpu.get("unmanaged", ()))
    return int(gpu.get("resident", 0) + gpu.get("contexts", 0) + outside)


def _why(error: NoScheduler, file: SocketFile | None) -> str:
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number in _NOT_THERE:
        return "absent"
    if number in _FORBIDDEN:
        return "denied"
    if number == errno.ECONNREFUSED:
        return "dead" if file is None or file.is_socket else "foreign"
    return "silent" if file is not None else "unusable"


def _socket_file(path: Path) -> SocketFile | None:
    """None where it is not there, or may not be looked at."""
    try:
        found, above = path.lstat(), path.parent.stat()
    except OSError:
        return None
    shared = bool(above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) and not above.st_mode & stat.S_ISVTX
    return SocketFile(
        is_socket=stat.S_ISSOCK(found.st_mode),
        owner=user_name(found.st_uid),
        owned_by_us_or_root=found.st_uid in (0, os.getuid()),
        mode=stat.S_IMODE(found.st_mode),
        directory_open=shared or above.st_uid not in (0, os.getuid()),
    )


def holders(status: dict[str, Any], nvml: NvmlView) -> tuple[Holder, ...]:
    """Who is on the cards and no client, or a client that was stopped: by the scheduler, which sees them from the host;
    without one, by NVML."""
    graphics = {process.pid for device in nvml.devices for process in device.processes if process.graphics}
    found = [*_unmanaged(status), *_stopped(status)] if status else _listed(nvml)
    return tuple(replace(holder, graphics=holder.pid in graphics) for holder in found)


def _unmanaged(status: dict[str, Any]) -> Iterator[Holder]:
    for gpu in status.get("gpus", ()):
        for user in gpu.get("unmanaged", ()):
            name = "" if user["name"] == UNSEEN else user["name"]
            yield Holder(gpu["uuid"], user["pid"], name, user["bytes"])


def _stopped(status: dict[str, Any]) -> Iterator[Holder]:
    for client in status.get("clients", ()):
        if is_stopped(client["pid"]):
            for gpu in client["gpus"]:
                yield Holder(gpu["uuid"], client["pid"], client["name"], gpu["resident"], stopped=True)


def _listed(nvml: NvmlView) -> Iterator[Holder]:
    for device in nvml.devices:
        for process in device.processes:
            seen = look_at(process.pid)
            yield Holder(device.uuid, process.pid, seen.name, process.bytes, seen.preloaded)
