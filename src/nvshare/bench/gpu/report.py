"""What the measurements on a real card have in common: their options, and rows that are kept as soon as they come."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nvshare.bench.machine import conditions, source_of_cards

Row = dict[str, Any]
_HIDDEN = {"test", "ok", "status_clients"}
_LOG_LINES = 80


def options(about: str | None, tests: Iterable[str]) -> argparse.ArgumentParser:
    """``--only`` and ``--json``, which all of them take."""
    known = list(tests)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", type=some_of(known), default=known, metavar="TESTS", help=f"of {', '.join(known)} (default: all)"
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    return parser


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes names, comma separated."""
    names = list(known)

    def chosen(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}: there are {', '.join(names)}")
        return text.split(",")

    return chosen


class Report:
    """Rows are printed and written when they come: a run that is cut short keeps what it found.

    ``logs``: a directory with those of schedulers, one directory each; their last lines are kept beside the rows.
    """

    def __init__(self, path: Path | None, logs: Path | None = None) -> None:
        self._path = path
        self._logs = logs
        self._facts = conditions(source_of_cards())
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.rows: list[Row] = []

    @property
    def ok(self) -> bool:
        return bool(self.rows) and all(row["ok"] for row in self.rows)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def tell(self, **facts: Any) -> None:
        """Something that belongs to all rows."""
        self._facts |= facts
        print(f"[{self.elapsed:5.0f} s] {facts}", flush=True)

    def add(self, row: Row) -> None:
        details = ", ".join(f"{key} {value}" for key, value in row.items() if key not in _HIDDEN)
        with self._lock:
            self.rows.append(row)
            print(f"[{self.elapsed:5.0f} s] {'ok  ' if row['ok'] else 'FAIL'} {row['test']}: {details}", flush=True)
            if self._path is not None:
                self._path.write_text(json.dumps({**self._facts, "rows": self.rows, **self._said()}, indent=1) + "\n")

    def take(self, test: str, rows: Callable[[], Iterable[Row]]) -> None:
        """All rows of a test. One that fails is a row too: the tests after it are worth as much."""
        try:
            for row in rows():
                self.add(row)
        except Exception as error:
            self.add({"test": test, "error": repr(error)[-3000:], "ok": False})

    def _said(self) -> dict[str, Any]:
        if self._logs is None:
            return {}
        logs = sorted(self._logs.glob("*/scheduler.log"))
        return {"logs": {log.parent.name: log.read_text().splitlines()[-_LOG_LINES:] for log in logs}}
