"""Writes the Grafana dashboard of the chart: python tools/dashboard.py deploy/chart/nvshare/dashboard.json"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 24, 8  # of the page in columns, of a panel in rows
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_NODE = 'instance=~"$instance"'
_POD = f'{_NODE},namespace=~"$namespace",pod=~"$pod"'
_CARD = "{{instance}} GPU {{gpu_index}}"
_TASK = "{{namespace}}/{{pod}}{{run}}, GPU {{gpu_index}}"


@dataclass(frozen=True)
class Panel:
    """One graph; ``queries`` are expressions with their legends."""

    title: str
    unit: str  # as Grafana names it
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def _rate(metric: str, where: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


ROWS = {
    "Cluster": (
        Panel("Schedulers that answer", "short", (("sum(nvshare_up)", "up"), ("count(nvshare_up)", "all")), "stat"),
        Panel("Tasks' processes", "short", (("sum(nvshare_scheduler_clients)", "processes"),), "stat"),
        Panel(
            "Memory of all cards",
            "bytes",
            (
                ("sum(nvshare_card_memory_total_bytes)", "there is"),
                ("sum(nvshare_card_memory_allocated_bytes)", "allocated"),
                ("sum(nvshare_card_memory_resident_bytes)", "on the cards"),
            ),
        ),
        Panel(
            "Busiest namespaces, in cards",
            "short",
            (
                (
                    "topk(10, sum by (namespace) (rate(nvshare_task_gpu_seconds_total[$__rate_interval])))",
                    "{{namespace}}",
                ),
            ),
        ),
    ),
    "Node": (
        Panel("Utilisation", "percentunit", ((f"nvshare_card_utilization_ratio{{{_NODE}}}", _CARD),)),
        Panel(
            "Memory",
            "bytes",
            (
                (f"nvshare_card_memory_resident_bytes{{{_NODE}}}", f"{_CARD}: tasks"),
                (f"nvshare_card_memory_contexts_bytes{{{_NODE}}}", f"{_CARD}: contexts"),
                (f"nvshare_card_memory_unmanaged_bytes{{{_NODE}}}", f"{_CARD}: outside nvshare"),
                (f"nvshare_card_memory_total_bytes{{{_NODE}}}", f"{_CARD}: there is"),
            ),
        ),
        Panel(
            "Who runs, who waits",
            "short",
            (
                (f"nvshare_card_running_clients{{{_NODE}}}", f"{_CARD}: run"),
                (f"nvshare_card_waiting_clients{{{_NODE}}}", f"{_CARD}: wait"),
            ),
        ),
        Panel(
            "Switches a minute, and what one costs",
            "short",
            (
                (f"60 * {_rate('nvshare_task_switches_total', _NODE, 'instance, gpu_index')}", f"{_CARD}: switches"),
                (f"nvshare_card_stall_seconds{{{_NODE}}}", f"{_CARD}: seconds of stall"),
            ),
        ),
        Panel("Memory moved", "Bps", ((_rate("nvshare_task_moved_bytes_total", _NODE, "direction"), "{{direction}}"),)),
        Panel("Temperature", "celsius", ((f"nvshare_card_temperature_celsius{{{_NODE}}}", _CARD),)),
        Panel("Power", "watt", ((f"nvshare_card_power_watts{{{_NODE}}}", _CARD),)),
        Panel(
            "Scheduler: 99th percentile of how late timers fire",
            "s",
            (
                (
                    "histogram_quantile(0.99, "
                    f"{_rate('nvshare_scheduler_loop_latency_seconds_bucket', _NODE, 'instance, le')})",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Scheduler: events and offences",
            "ops",
            (
                (_rate("nvshare_scheduler_events_total", _NODE, "instance"), "{{instance}}: events"),
                (_rate("nvshare_scheduler_offences_total", _NODE, "instance"), "{{instance}}: offences"),
            ),
        ),
    ),
    "Pod or run": (
        Panel(
            "Time on the card, floor and cap",
            "percentunit",
            (
                (f"nvshare_task_delivered_ratio{{{_POD}}}", _TASK),
                (f"nvshare_task_floor_ratio{{{_POD}}} > 0", f"{_TASK}: floor"),
                (f"nvshare_task_cap_ratio{{{_POD}}} < 1", f"{_TASK}: cap"),
            ),
        ),
        Panel(
            "Memory",
            "bytes",
            (
                (f"nvshare_task_memory_resident_bytes{{{_POD}}}", f"{_TASK}: on the card"),
                (f"nvshare_task_memory_host_bytes{{{_POD}}}", f"{_TASK}: in host memory"),
                (f"nvshare_task_memory_quota_bytes{{{_POD}}}", f"{_TASK}: quota"),
            ),
        ),
        Panel(
            "Part of the time it waits, by reason",
            "percentunit",
            (
                (
                    _rate("nvshare_task_waited_seconds_total", _POD, "namespace, pod, run, gpu_index, reason"),
                    f"{_TASK}: {{{{reason}}}}",
                ),
            ),
        ),
        Panel(
            "Memory refused, drains too long, in the last hour",
            "short",
            (
                (f"increase(nvshare_task_out_of_memory_total{{{_POD}}}[1h])", f"{_TASK}: refused"),
                (f"increase(nvshare_task_drain_timeouts_total{{{_POD}}}[1h])", f"{_TASK}: late"),
            ),
        ),
    ),
}


def queries() -> Iterator[str]:
    """Every expression of the dashboard."""
    for panels in ROWS.values():
        for panel in panels:
            yield from (expression for expression, _ in panel.queries)


def dashboard() -> dict[str, Any]:
    return {
        "uid": "nvshare",
        "title": "nvshare",
        "tags": ["gpu"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, Any]]:
    def of(name: str, query: str) -> dict[str, Any]:
        everything = {"text": "All", "value": "$__all"}
        return {
            "name": name, "type": "query", "query": query, "datasource": _SOURCE, "refresh": 2, "sort": 1,
            "multi": True, "includeAll": True, "allValue": ".*", "current": everything,
        }  # fmt: skip

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        of("instance", "label_values(nvshare_up, instance)"),
        of("namespace", "label_values(nvshare_task_processes, namespace)"),
        of("pod", 'label_values(nvshare_task_processes{namespace=~"$namespace"}, pod)'),
    ]


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {"id": number, "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}}
        y += 1
        for index, panel in enumerate(panels):
            number += 1
            x = index % 2 * WIDTH // 2
            yield {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y + index // 2 * HEIGHT, "w": WIDTH // 2, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
                    for place, (expression, legend) in enumerate(panel.queries)
                ],
            }
        y += (len(panels) + 1) // 2 * HEIGHT


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
