"""Rows as text: the report that users of such tests know, and the table of all rows. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from nvshare.lab.mission import Row
from nvshare.lab.outcome import TaskResult

RULE = "=" * 90
_SHORT = 100.0  # durations below this many seconds keep a digit after the point


def seconds_text(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds >= _SHORT else f"{seconds:.1f}s"


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
    lines = [f"Test {row.test}: {row.title} ({row.source})", task_report(row.details)]
    return "\n".join([*lines, *row.messages])


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("test", lambda row: str(row.test)),
    ("what", lambda row: row.title),
    ("tasks", lambda row: str(row.tasks)),
    ("mode", lambda row: row.mode),
    ("duration", lambda row: seconds_text(row.duration_s)),
    ("baseline", lambda row: seconds_text(row.baseline_s)),
    ("ratio", lambda row: f"{row.ratio:.3f}"),
    ("model", lambda row: f"{row.model_ratio:.3f}" if row.model_ratio else "-"),
    ("swapped", lambda row: f"{row.swapped_bytes} B"),
    ("switches", lambda row: str(row.switches)),
    ("source", lambda row: row.source),
)


def summary_table(rows: Sequence[Row]) -> str:
    """All rows in one plain table, with the model's ratios where there are any to compare with."""
    compared = any(row.model_ratio for row in rows)
    columns = [column for column in _COLUMNS if compared or column[0] != "model"]
    lines = [[heading for heading, _ in columns], *([cell(row) for _, cell in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)
