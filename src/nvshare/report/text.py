"""Rows as text: the report that users of such tests know, and the table of all rows. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from nvshare.bench.eviction import GIB, EvictionRow
from nvshare.bench.mission import Row
from nvshare.bench.outcome import TaskResult
from nvshare.bench.swap import SwapRow

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
    lines = [f"Test {row.name}: {row.title} ({row.source})", task_report(row.details)]
    return "\n".join([*lines, *row.messages])


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("test", lambda row: row.name),
    ("what", lambda row: row.title),
    ("tasks", lambda row: str(row.tasks)),
    ("mode", lambda row: row.mode),
    ("duration", lambda row: seconds_text(row.duration_s)),
    ("baseline", lambda row: seconds_text(row.baseline_s)),
    ("ratio", lambda row: f"{row.ratio:.3f}"),
    ("model", lambda row: f"{row.model_ratio:.3f}" if row.model_ratio else "-"),
    ("swapped", lambda row: f"{row.swapped_bytes} B"),
    ("switches", lambda row: str(row.switches)),
    ("survivor", lambda row: survivor_text(row) or "-"),
    ("source", lambda row: row.source),
)


def survivor_text(row: Row) -> str:
    """``0.95s (link 0.94s)``; empty where nobody went."""
    if not row.has_survivor:
        return ""
    limit = "" if row.survivor_limit_s is None else f" (link {row.survivor_limit_s:.2f}s)"
    return f"{'never' if row.survivor_s is None else f'{row.survivor_s:.2f}s'}{limit}"


def summary_table(rows: Sequence[Row]) -> str:
    """All rows in one plain table, with the model's ratios and survivors where there are any."""
    present = {"model": any(row.model_ratio for row in rows), "survivor": any(map(survivor_text, rows))}
    columns = [column for column in _COLUMNS if present.get(column[0], True)]
    return table([[heading for heading, _ in columns], *([cell(row) for _, cell in columns] for row in rows)])


def table(lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def eviction_table(rows: Sequence[EvictionRow]) -> str:
    """What switches moved, against what they may move."""
    headings = ["case", "switches", "out/switch", "in/switch", "largest", "at most", "", "source"]
    lines = [
        [
            row.case,
            str(row.switches),
            _gib(row.out_per_switch),
            _gib(row.in_per_switch),
            "-" if row.largest is None else _gib(row.largest),
            _gib(row.bound),
            "ok" if row.passed else "FAIL",
            row.source,
        ]
        for row in rows
    ]
    return "\n".join([table([headings, *lines]), *(text for row in rows for text in row.messages)])


def swap_report(row: SwapRow) -> str:
    """The link, the switches, and where their time went."""

    def rate(value: float) -> str:
        return f"{value / 1e9:.1f} GB/s"

    link = row.link
    lines = [
        f"Link ({row.source}): to the card {rate(link.h2d)}, from it {rate(link.d2h)}; "
        f"both at once {rate(link.duplex_h2d)} and {rate(link.duplex_d2h)}",
        f"{row.title}: {row.switches} switches, {_gib(row.out_per_switch)} out and {_gib(row.in_per_switch)} in each",
        f"A switch keeps the card from working for {row.stall_s:.3f} s; the link alone needs {row.copy_s:.3f} s: "
        f"{100 * row.of_limit:.0f} % of the limit",
    ]
    parts = [
        ("drain", row.drain_s, "the leaving task finishes what it submitted; the card works"),
        ("copy", row.copy_s, "at the speed of the link, both ways at once"),
        ("map", row.map_s, "addresses given and taken away; most of it while something is copied"),
        ("wait", row.wait_s, "messages, waking up, uneven ends"),
    ]
    shares = table([[name, "-" if value is None else f"{value:.4f} s", what] for name, value, what in parts])
    return "\n".join([*lines, shares, *row.messages])
