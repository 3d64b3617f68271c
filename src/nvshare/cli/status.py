"""What ``nvsharectl status`` shows: plain functions over a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from nvshare import config

Snapshot = dict[str, Any]
_WHOLE = 100  # percent
_CHUNK = 128 << 20  # bytes; memory moves in pieces of this size, less is only room for one


def status_view(snapshot: Snapshot) -> Group:
    """Cards, clients, and in words what is not plain from the figures."""
    header = Text(f"nvshare {snapshot['scheduler'].get('release', '')} – {describe_settings(snapshot['settings'])}")
    clients = (_client_table(snapshot), _compute_table(snapshot)) if snapshot["clients"] else (Text("no clients"),)
    leases = [_lease_table(snapshot)] if snapshot["leases"] else []
    return Group(header, _gpu_table(snapshot), *clients, *leases, *map(Text, _explanations(snapshot)))


def describe_settings(settings: dict[str, Any]) -> str:
    quantum = f"{settings['quantum_s']:g} s" if settings["switch_time"] == "fixed" else "auto"
    anti_thrash = "on" if settings["anti_thrash"] else "off"
    return f"mode {settings['mode']}, quantum {quantum}, anti-thrash {anti_thrash}"


def _table(*columns: str, flexible: str) -> Table:
    """A table whose columns are as wide as their content, but for one that gives way. Numbers begin with ``>``."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        name = column.removeprefix(">")
        justify: JustifyMethod = "left" if name == column else "right"
        table.add_column(name, justify=justify, no_wrap=name != flexible, overflow="ellipsis")
    return table


def _add_row(table: Table, *cells: str) -> None:
    """Names come from outside: they are text, whatever they look like."""
    table.add_row(*map(Text, cells))


def _gpu_table(snapshot: Snapshot) -> Table:
    table = _table("GPU", "UUID", "CARD", ">ALLOCATED", ">OF", ">RUN", ">WAIT", "POLICY", flexible="CARD")
    for index, gpu in _numbered(snapshot):
        _add_row(
            table,
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


def _client_table(snapshot: Snapshot) -> Table:
    """Where memory is shows only while some of it is away."""
    labels = {group["id"]: group["label"] for group in snapshot["groups"]}
    places = _places(snapshot)
    away = any(gpu["resident"] < gpu["allocated"] for client in snapshot["clients"] for gpu in client["gpus"])
    memory = (">MEMORY", ">ON CARD", ">ON HOST") if away else (">MEMORY",)
    table = _table("CLIENT", ">PID", "TASK", "GPU", "STATE", *memory, ">LIMIT", ">BUSY", flexible="TASK")
    for client in snapshot["clients"]:
        who = (client["id"], str(client["pid"]), _task(client, labels))
        limit = config.format_size(client["mem_limit"]) if client["mem_limit"] else "-"
        for gpu in client["gpus"]:
            sizes = (gpu["allocated"], gpu["resident"], gpu["host"])[: len(memory)]
            cells = (places[gpu["uuid"]], client["state"], *map(config.format_size, sizes), limit)
            _add_row(table, *who, *cells, f"{gpu['occupied_s']:.1f} s")
            who = ("", "", "")
    return table


def _compute_table(snapshot: Snapshot) -> Table:
    """Compute time: the quota, what it comes to beside the others, what was delivered, what it would use alone."""
    places = _places(snapshot)
    figures = (">CORES", ">SCALED", ">LAST 1 s", ">10 s", ">60 s", ">DEMAND")
    table = _table("CLIENT", "GPU", *figures, "PRIORITY", "RUNS", flexible="RUNS")
    for client in snapshot["clients"]:
        for gpu in client["gpus"]:
            quota = f"{gpu['quota']} %" if gpu["quota"] < _WHOLE else "-"
            scaled = f"{gpu['scaled_quota']:.1f} %" if gpu["scaled_quota"] < gpu["quota"] else "-"
            parts = [f"{part * _WHOLE:.1f} %" for part in (*gpu["delivered"], gpu["demand"])]
            how = "freely" if gpu["mode"] == "free" else f"in {gpu['mode']}"
            _add_row(table, client["id"], places[gpu["uuid"]], quota, scaled, *parts, client["priority"], how)
    return table


def _lease_table(snapshot: Snapshot) -> Table:
    places = _places(snapshot)
    table = _table("LEASE", ">PID", "LABEL", "GPU", "STATE", ">MEMORY", ">CORES", flexible="LABEL")
    for lease in snapshot["leases"]:
        _add_row(
            table,
            lease["id"],
            str(lease["pid"]),
            lease["label"],
            " ".join(places[uuid] for uuid in lease["gpus"]) or "-",
            lease["state"],
            config.format_size(lease["mem"]) if lease["mem"] else "-",
            f"{lease['cores']} %" if lease["cores"] else "-",
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
    for lease in snapshot["leases"]:
        if lease["reason"] is not None:
            yield f"lease {lease['id']} has ended, its place is kept: {lease['reason']}"
    places = _places(snapshot)
    for client in snapshot["clients"]:
        for gpu in client["gpus"]:
            where = f"{client['id']} on {places[gpu['uuid']]}"
            if gpu["waiting_for"] is not None:
                yield f"{where} waits for {gpu['waiting_for']}"
            if gpu["waiting_for_turn"] is not None:
                yield f"{where} waits for {gpu['waiting_for_turn']}"
            if gpu["moving"] >= _CHUNK:
                yield f"{where} moves {config.format_size(gpu['moving'])}"


def _unmanaged(user: dict[str, Any]) -> str:
    size = "size unknown" if user["bytes"] is None else config.format_size(user["bytes"])
    return f"{user['name']} (pid {user['pid'] or 'unknown'}, {size})"


def _switch(last: dict[str, Any]) -> str:
    moved = f"{config.format_size(last['bytes_out'])} out, {config.format_size(last['bytes_in'])} in"
    return f"{moved}, {last['seconds']:.2f} s, {last['stall_s']:.2f} s of them with nobody on the card"
