"""Rows as text: the report of a run's tasks, and tables of all rows. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from nvshare.bench.columns import columns, gib, percent, seconds_text
from nvshare.bench.eviction import EvictionRow
from nvshare.bench.linkspeed import rate
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import TaskResult
from nvshare.bench.swap import SwapRow
from nvshare.report.tables import aligned, as_row, text_table

RULE = "=" * 90


def _who_line(name: str, client: str, gpu: str) -> str:
    return f"{name:<30} | {client:<18} | {gpu}"


def _how_line(name: str, status: str, duration: str, speed: str, window: str) -> str:
    return f"{name:<30} | {status:<8} | {duration:<12} | {speed:<12} | {window}"


def task_report(tasks: Sequence[TaskResult]) -> str:
    """Who ran where, how each did, and the totals."""
    lines = [_who_line("Pod Name", "Client ID", "GPU UUID")]
    lines += [_who_line(task.name, task.client or "-", task.gpu) for task in tasks]
    lines += [RULE, _how_line("Pod Name", "Status", "Duration", "Avg Speed", "KernelWin")]
    for task in tasks:
        window = "-" if task.window is None else str(task.window)
        duration, speed = seconds_text(task.loop_seconds), f"{task.its:.2f} it/s"
        lines.append(_how_line(task.name, task.status, duration, speed, window))
    return "\n".join([*lines, RULE, *_totals(tasks)])


def _totals(tasks: Sequence[TaskResult]) -> list[str]:
    passed = [task for task in tasks if task.status == "PASS"]
    stopped = [task for task in tasks if task.status == task.expected != "PASS"]
    failed = len(tasks) - len(passed) - len(stopped)
    counts = f"Total: {len(tasks)}, Pass: {len(passed)}, Fail: {failed}"
    lines = [f"{counts}, Stopped as intended: {len(stopped)}" if stopped else counts]
    if passed:
        durations = [task.loop_seconds for task in passed]
        speeds = [task.its for task in passed]
        lines.append(
            f"Duration: Min={seconds_text(min(durations))}, Max={seconds_text(max(durations))}, "
            f"Avg={fmean(durations):.1f}s"
        )
        lines.append(f"Speed   : Min={min(speeds):.2f}, Max={max(speeds):.2f}, Avg={fmean(speeds):.2f} (it/s)")
    return lines


def row_report(row: Row) -> str:
    """One test: its title and the report of its tasks."""
    lines = [f"Test {row.name}: {row.title} ({row.source})", task_report(row.details)]
    return "\n".join([*lines, *row.messages])


def summary_table(rows: Sequence[Row]) -> str:
    """All rows in one plain table."""
    return text_table(Row, rows)


def eviction_table(rows: Sequence[EvictionRow]) -> str:
    """Bytes that switches moved, against what they may move."""
    return "\n".join([text_table(EvictionRow, rows), *(text for row in rows for text in row.messages)])


def swap_report(row: SwapRow) -> str:
    """The link, the switches, and where their time went."""
    link = row.link
    lines = [
        f"Link ({row.source}): to the card {rate(link.h2d)}, from it {rate(link.d2h)}; "
        f"both at once {rate(link.duplex_h2d)} and {rate(link.duplex_d2h)}",
        f"{row.title}: {row.switches} switches, {gib(row.out_per_switch)} out and {gib(row.in_per_switch)} in each",
        f"A switch keeps the card from working for {row.stall_s:.3f} s; the link alone needs {row.copy_s:.3f} s: "
        f"{percent(row.of_limit)} of the limit",
    ]
    written = as_row(row)
    parts = aligned(
        [
            [str(column.title), column.written(name, written) or "-", column.says]
            for name, column in columns(SwapRow).items()
            if column.says
        ]
    )
    return "\n".join([*lines, parts, *row.messages])
