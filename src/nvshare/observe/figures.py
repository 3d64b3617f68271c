"""The scheduler's status as samples. Pure: what is known goes in, series come out.

A figure that the status does not have, as that of an older scheduler, has no series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from nvshare.gpu.reading import Reading
from nvshare.observe import families as f

Status = Mapping[str, Any]
Task = tuple[str, str, str, str, str]  # the values of ``families.TASK``

_WINDOW = 1  # of ``delivered``: the last 10 s
_PERCENT = 100.0
_MAX_LABEL = 128  # characters


class Sample(NamedTuple):
    family: f.Family
    labels: tuple[str, ...]
    value: float
    suffix: str = ""  # of a histogram's series, whose last label is then its bound
    bound: str | None = None


def plain(text: object) -> str:
    """A label's value that no terminal, page or encoder trips over."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[:_MAX_LABEL])


def indices(status: Status) -> dict[str, str]:
    """By UUID: the card's place in the driver's order."""
    return {uuid: str(index) for index, uuid in enumerate(status.get("scheduler", {}).get("cards", ()))}


def attachments(status: Status) -> Iterator[tuple[Task, Status, Status]]:
    """Each client on each of its cards: the task that it belongs to, the client, and its figures there.

    A task is a pod, a run or a lease, else all lone processes of one name.
    """
    places = indices(status)
    labels = {group["id"]: group["label"] for group in status["groups"]}
    for client in status["clients"]:
        namespace, pod = plain(client["namespace"]), plain(client["pod"])
        run = "" if pod else plain(labels.get(client["group"]) or client["name"])
        for view in client["gpus"]:
            uuid = view["uuid"]
            yield (plain(uuid), places.get(uuid, ""), namespace, pod, run), client, view


def counted(view: Status) -> Iterator[tuple[f.Family, tuple[str, ...], float]]:
    """What a client's figures on one card count since the client began: family, further labels, value."""
    yield f.TASK_GPU_SECONDS, (), view["occupied_s"]
    yield f.TASK_MOVED, ("in",), view["swapped_in"]
    yield f.TASK_MOVED, ("out",), view["swapped_out"]
    for reason, seconds in view.get("waited_s", {}).items():
        yield f.TASK_WAITED, (reason,), seconds
    for family, name in (
        (f.TASK_SWITCHES, "switches"),
        (f.TASK_DENIED, "denied"),
        (f.TASK_TIMEOUTS, "drain_timeouts"),
    ):
        if name in view:
            yield family, (), view[name]


def of_scheduler(status: Status) -> Iterator[Sample]:
    about, counters = status["scheduler"], status["counters"]
    yield Sample(f.SCHEDULER_BUILD, (plain(about["release"]),), 1)
    yield Sample(f.CLIENTS, (), len(status["clients"]))
    states = [lease["state"] for lease in status["leases"]]
    for state in ("waiting", "held", "quarantined"):
        yield Sample(f.LEASES, (state,), states.count(state))
    for family, told, name in (
        (f.STARTED, about, "started_at"),
        (f.CONNECTIONS, about, "connections"),
        (f.POD_WATCH, about, "pod_watch"),
        (f.OFFENCES, about, "offences"),
        (f.EVENTS, about.get("loop", {}), "events"),
        (f.EXPELLED, counters, "expelled"),
        (f.GRANTS, counters, "grants"),
        (f.DROPS, counters, "drops"),
    ):
        if name in told:
            yield Sample(family, (), float(told[name]))
    if "loop" in about:
        yield from _lateness(about["loop"])


def _lateness(loop: Status) -> Iterator[Sample]:
    total = 0
    for bound, count in zip([*loop["late_bounds_s"], "+Inf"], loop["late_counts"], strict=True):
        total += count
        yield Sample(f.LATENESS, (), total, "_bucket", str(bound))
    yield Sample(f.LATENESS, (), total, "_count")
    yield Sample(f.LATENESS, (), loop["late_s"], "_sum")


def of_cards(status: Status, readings: Mapping[str, Reading]) -> Iterator[Sample]:
    """``readings``: by UUID."""
    places = indices(status)
    for card in status["gpus"]:
        labels = (plain(card["uuid"]), places.get(card["uuid"], ""))
        yield Sample(f.CARD_INFO, (*labels, plain(card["name"])), 1)
        for family, value in (
            (f.CARD_MEMORY, card["total"]),
            (f.CARD_DECLARED, card["declared"]),
            (f.CARD_CAPACITY, card["capacity"]),
            (f.CARD_ALLOCATED, card["allocated"]),
            (f.CARD_RESIDENT, card["resident"]),
            (f.CARD_CONTEXTS, card["contexts"]),
            (f.CARD_UNMANAGED, sum(user["bytes"] or 0 for user in card["unmanaged"])),
            (f.CARD_OUTSIDERS, len(card["unmanaged"])),
            (f.CARD_RUNNING, len(card["running"])),
            (f.CARD_WAITING, len(card["waiting"])),
            (f.CARD_TURNS, card["policy"] == "turns"),
            (f.CARD_QUANTUM, card["quantum_s"]),
            (f.CARD_STALL, card["stall_s"]),
            *_read(readings.get(card["uuid"])),
        ):
            if value is not None:
                yield Sample(family, labels, float(value))


def _read(reading: Reading | None) -> Iterator[tuple[f.Family, float | None]]:
    if reading is not None:
        yield f.CARD_UTILIZATION, reading.utilization
        yield f.CARD_TEMPERATURE, reading.celsius
        yield f.CARD_POWER, reading.watts


def of_tasks(status: Status) -> Iterator[Sample]:
    """What tasks have and get now: the sum over their processes, and over the groups that quotas belong to."""
    summed: dict[Task, dict[f.Family, float]] = defaultdict(lambda: defaultdict(float))
    quotas: dict[Task, dict[str, _Quota]] = defaultdict(dict)
    for task, client, view in attachments(status):
        figures = summed[task]
        figures[f.TASK_PROCESSES] += 1
        figures[f.TASK_ALLOCATED] += view["allocated"]
        figures[f.TASK_RESIDENT] += view["resident"]
        figures[f.TASK_HOST] += view["host"]
        figures[f.TASK_DELIVERED] += view["delivered"][_WINDOW]
        if "sleep" in client:
            figures[f.TASK_ASLEEP] += client["sleep"] in ("asleep", "called", "waking")
        quotas[task][client["group"]] = _Quota(view["quota"], view.get("floor_in_force"), client["mem_limit"])
    for task, figures in summed.items():
        for family, value in (*figures.items(), *_together(quotas[task].values())):
            yield Sample(family, task, value)


class _Quota(NamedTuple):
    """Of one group on one card."""

    cap: int  # percent
    floor: int | None
    memory: int | None


def _together(quotas: Collection[_Quota]) -> Iterator[tuple[f.Family, float]]:
    """Several groups of one name have a memory quota together if each of them has one."""
    yield f.TASK_CAP, min(1.0, sum(quota.cap for quota in quotas) / _PERCENT)
    floors = [quota.floor for quota in quotas if quota.floor is not None]
    if floors:
        yield f.TASK_FLOOR, sum(floors) / _PERCENT
    limits = [quota.memory for quota in quotas if quota.memory is not None]
    if len(limits) == len(quotas):
        yield f.TASK_QUOTA, sum(limits)
