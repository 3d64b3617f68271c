"""What ``nvsharectl status`` shows: plain functions over a snapshot.

Tables are as wide as the terminal allows. Columns that find no room go into a further table below, whose rows begin
with the same names; nothing is cut off. What would be the same ordinary word for everybody is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from nvshare import config
from nvshare.cores import Cores

Snapshot = dict[str, Any]
_WHOLE = 100  # percent
_CHUNK = 128 << 20  # bytes; memory moves in pieces of this size, less is only room for one
_NARROWEST = 12  # columns that a name gets at least before it is broken into lines
_SLEEP = {
    "leaving": "is about to sleep: its memory leaves its GPUs",
    "ordered": "falls asleep",
    "asleep": "sleeps: it has nothing on its GPUs",
    "called": "is about to wake: room is made for its context",
    "waking": "wakes",
}
_SETTING_NAMES = {"mode": "mode", "quantum": "quantum", "anti_thrash": "anti-thrash"}


def status_view(snapshot: Snapshot) -> Group:
    """Cards, clients, and in words what is not plain from the figures."""
    header = Text(f"nvshare {snapshot['scheduler'].get('release', '')} – {describe_settings(snapshot['settings'])}")
    clients = (_client_table(snapshot), _compute_table(snapshot)) if snapshot["clients"] else (Text("no clients"),)
    leases = [_lease_table(snapshot)] if snapshot["leases"] else []
    return Group(header, _gpu_table(snapshot), *clients, *leases, *map(Text, _explanations(snapshot)))


def describe_settings(settings: dict[str, Any]) -> str:
    """Each with who says so, where that is an operator and not how the scheduler was started."""
    values = {
        "mode": settings["mode"],
        "quantum": f"{settings['quantum_s']:g} s" if settings["switch_time"] == "fixed" else "auto",
        "anti_thrash": "on" if settings["anti_thrash"] else "off",
    }
    changed = settings.get("operator", ())
    return ", ".join(
        f"{_SETTING_NAMES[name]} {value}{' (operator)' if name in changed else ''}" for name, value in values.items()
    )


@dataclass
class _Fitting:
    """A table that becomes several where the terminal is too narrow for all columns.

    Each of them begins with the columns of the first block; the columns of the other blocks stay together. Names of
    columns of numbers begin with ``>``; the cells of ``flexible`` may be broken into lines.
    """

    blocks: Sequence[Sequence[str]]
    flexible: str = ""
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = [name for block in self.blocks for name in block]

    def add(self, *cells: str) -> None:
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        for part in self._parts(options.max_width):
            yield self._table(part)

    def _parts(self, room: int) -> Iterator[list[int]]:
        """The columns of each table."""
        indices = iter(range(len(self.columns)))
        keys, *others = ([next(indices) for _ in block] for block in self.blocks)
        part = list(keys)
        for block in others:
            if part != keys and sum(self._width(index) + 1 for index in (*part, *block)) - 1 > room:
                yield part
                part = list(keys)
            part += block
        yield part

    def _width(self, index: int) -> int:
        name = self.columns[index].removeprefix(">")
        natural = max([cell_len(name), *(cell_len(row[index]) for row in self.rows)])
        return min(natural, _NARROWEST) if name == self.flexible else natural

    def _table(self, part: list[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
        for column in (self.columns[index] for index in part):
            name = column.removeprefix(">")
            justify: JustifyMethod = "left" if name == column else "right"
            table.add_column(name, justify=justify, no_wrap=name != self.flexible, overflow="fold")
        for row in self.rows:
            # Names come from outside: they are text, whatever they look like.
            table.add_row(*(Text(row[index]) for index in part))
        return table


def _gpu_table(snapshot: Snapshot) -> _Fitting:
    blocks = (["GPU"], ["UUID"], ["CARD"], [">ALLOCATED", ">OF"], [">RUN", ">WAIT"], ["POLICY"])
    table = _Fitting(blocks, flexible="CARD")
    for index, gpu in _numbered(snapshot):
        table.add(
            f"#{index}",
            gpu["uuid"][:12],
            gpu["name"],
            config.format_size(gpu["allocated"]),
            config.format_size(gpu["capacity"]),
            str(len(gpu["running"])),
            str(len(gpu["waiting"])),
            gpu["policy"],
        )
    return table


def _client_table(snapshot: Snapshot) -> _Fitting:
    """Who they are, and their memory; where that is shows only while some of it is away."""
    labels = {group["id"]: group["label"] for group in snapshot["groups"]}
    places = _places(snapshot)
    away = any(gpu["resident"] < gpu["allocated"] for client in snapshot["clients"] for gpu in client["gpus"])
    runs = any(_run(client) != "-" for client in snapshot["clients"])
    who_it_is = [">PID", "TASK", "RUN"] if runs else [">PID", "TASK"]
    where = [[">ON CARD", ">ON HOST"]] if away else []
    table = _Fitting([["CLIENT", "GPU"], who_it_is, ["STATE"], [">MEMORY"], [">LIMIT"], *where], flexible="TASK")
    for client in snapshot["clients"]:
        who = (str(client["pid"]), _task(client, labels), *((_run(client),) if runs else ()))
        limit = config.format_size(client["mem_limit"]) if client["mem_limit"] else "-"
        for gpu in client["gpus"]:
            rest = (config.format_size(gpu["resident"]), config.format_size(gpu["host"])) if away else ()
            memory = config.format_size(gpu["allocated"])
            table.add(client["id"], places[gpu["uuid"]], *who, client["state"], memory, limit, *rest)
            who = ("",) * len(who)
    return table


def _run(client: dict[str, Any]) -> str:
    """What ``--run`` takes for it: the number of its run or lease."""
    kind, _, number = client["group"].partition(":")
    return number if kind in ("run", "lease") else "-"


def _compute_table(snapshot: Snapshot) -> _Fitting:
    """Compute time: the quota, what it comes to beside the others, what was delivered, what it would use alone."""
    places = _places(snapshot)
    shown = [(client, gpu) for client in snapshot["clients"] for gpu in client["gpus"]]
    quotas = any(_quota(client, gpu) != "-" or gpu["scaled_quota"] < gpu["quota"] for client, gpu in shown)
    ranks = any(client["priority"] != "normal" for client, _ in shown)
    granted = [[">CORES", ">SCALED"]] if quotas else []
    how_it_runs = ["PRIORITY", "RUNS"] if ranks else ["RUNS"]
    figures = [[">LAST 1 s", ">10 s", ">60 s"], [">DEMAND"]]
    table = _Fitting([["CLIENT", "GPU"], [">BUSY"], *granted, *figures, how_it_runs])
    for client, gpu in shown:
        scaled = f"{gpu['scaled_quota']:.1f} %" if gpu["scaled_quota"] < gpu["quota"] else "-"
        parts = [f"{part * _WHOLE:.1f} %" for part in (*gpu["delivered"], gpu["demand"])]
        how = "freely" if gpu["mode"] == "free" else f"in {gpu['mode']}"
        cells = [
            client["id"],
            places[gpu["uuid"]],
            f"{gpu['occupied_s']:.1f} s",
            *((_quota(client, gpu), scaled) if quotas else ()),
        ]
        table.add(*cells, *parts, *((client["priority"],) if ranks else ()), how)
    return table


def _quota(client: dict[str, Any], gpu: dict[str, Any]) -> str:
    quota = Cores(client.get("core_floor", 0), gpu["quota"])
    return "-" if quota == Cores() else f"{quota} %"


def _lease_table(snapshot: Snapshot) -> _Fitting:
    places = _places(snapshot)
    blocks = (["LEASE"], [">PID"], ["LABEL"], ["GPU"], ["STATE"], [">MEMORY", ">CORES"])
    table = _Fitting(blocks, flexible="LABEL")
    for lease in snapshot["leases"]:
        table.add(
            lease["id"],
            str(lease["pid"]),
            lease["label"],
            " ".join(places[uuid] for uuid in lease["gpus"]) or "-",
            lease["state"],
            config.format_size(lease["mem"]) if lease["mem"] else "-",
            f"{Cores(lease.get('core_floor', 0), lease['cores'])} %" if lease["cores"] else "-",
        )
    return table


def _numbered(snapshot: Snapshot) -> list[tuple[int, dict[str, Any]]]:
    """The cards with their numbers, those of the driver and of nvidia-smi."""
    order = snapshot["scheduler"].get("cards") or [gpu["uuid"] for gpu in snapshot["gpus"]]
    numbers = {uuid: number for number, uuid in enumerate(order)}
    return sorted(((numbers.get(gpu["uuid"], len(order)), gpu) for gpu in snapshot["gpus"]), key=lambda pair: pair[0])


def _places(snapshot: Snapshot) -> dict[str, str]:
    return {gpu["uuid"]: f"#{number}" for number, gpu in _numbered(snapshot)}


def _task(client: dict[str, Any], labels: dict[str, str]) -> str:
    """What people call it: its pod, the name of its run, else the program's."""
    if client["pod"]:
        return f"{client['namespace']}/{client['pod']}"
    return labels.get(client["group"]) or str(client["name"])


def _explanations(snapshot: Snapshot) -> Iterator[str]:
    for index, gpu in _numbered(snapshot):
        if gpu["policy"] == "turns":
            yield f"#{index} takes turns: {gpu['reason']}"
            yield f"#{index} turns of {gpu['quantum_s']:.3g} s: {gpu['quantum_reason']}"
            if gpu["last_switch"] is not None:
                yield f"#{index} last switch: {_switch(gpu['last_switch'])}"
        if gpu["unmanaged"]:
            yield f"#{index} is used outside nvshare too: {', '.join(map(_unmanaged, gpu['unmanaged']))}"
    for group in snapshot["groups"]:
        quotas = ", ".join(_set_by_operators(group))
        if quotas:
            yield f"{_group_name(group)} has {quotas} set by an operator"
    places = _places(snapshot)
    for group in snapshot["groups"]:
        for uuid, held in group.get("core_floor_in_force", {}).items():
            if held < group["core_floor"]:
                meant = f"instead of {group['core_floor']} % on {places[uuid]}, where other floors leave no room"
                yield f"{_group_name(group)} is guaranteed {held} % {meant}"
    for lease in snapshot["leases"]:
        if lease["reason"] is not None:
            yield f"lease {lease['id']} has ended, its place is kept: {lease['reason']}"
    for client in snapshot["clients"]:
        for gpu in client["gpus"]:
            where = f"{client['id']} on {places[gpu['uuid']]}"
            if gpu["waiting_for"] is not None:
                yield f"{where} waits for {gpu['waiting_for']}"
            if gpu["waiting_for_turn"] is not None:
                yield f"{where} waits for {gpu['waiting_for_turn']}"
            if gpu["moving"] >= _CHUNK:
                yield f"{where} moves {config.format_size(gpu['moving'])}"
        if client.get("sleep") in _SLEEP:
            yield f"{client['id']} {_SLEEP[client['sleep']]}"
    yield from _cannot_sleep(snapshot)


def _cannot_sleep(snapshot: Snapshot) -> Iterator[str]:
    """Tasks that keep their context while others sleep."""
    if any(client.get("sleep", "awake") != "awake" for client in snapshot["clients"]):
        for client in snapshot["clients"]:
            if client.get("cannot_sleep") is not None:
                yield f"{client['id']} cannot sleep: {client['cannot_sleep']}"


def _set_by_operators(group: dict[str, Any]) -> Iterator[str]:
    if group.get("mem_limit_from") == "operator":
        yield f"memory {config.format_size(group['mem_limit'])}"
    if group.get("core_limit_from") == "operator":
        yield f"cores {Cores(group.get('core_floor', 0), group['core_limit'])} %"
    if group.get("priority_from") == "operator":
        yield f"priority {group['priority']}"


def _group_name(group: dict[str, Any]) -> str:
    """With what ``nvsharectl set`` and ``reset`` take for it."""
    kind, _, number = group["id"].partition(":")
    if kind == "pod":
        return f"pod {group['label'] or number}"
    return f"{kind} {number} ({group['label']})" if group["label"] else f"{kind} {number}"


def _unmanaged(user: dict[str, Any]) -> str:
    size = "size unknown" if user["bytes"] is None else config.format_size(user["bytes"])
    return f"{user['name']} (pid {user['pid'] or 'unknown'}, {size})"


def _switch(last: dict[str, Any]) -> str:
    moved = f"{config.format_size(last['bytes_out'])} out, {config.format_size(last['bytes_in'])} in"
    return f"{moved}, {last['seconds']:.2f} s, {last['stall_s']:.2f} s of them with nobody on the card"
