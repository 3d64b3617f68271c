#!/usr/bin/env python3
"""Parallel, serial or mixed? The same as ``nvshare verify concurrency``, for those who have this script in theirs.

analyze_concurrency.py LOG... [--expect parallel|serial|mixed] [--json FILE] [--html FILE] [--svg FILE]

In a checkout it uses the nvshare beside it, elsewhere the one that is installed. Needs click and nvidia-ml-py.
"""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "../../../src"
PACKAGES = {"pynvml": "nvidia-ml-py"}  # those that are not called as their modules
USAGE = 2


def main() -> None:
    if (SOURCE / "nvshare").is_dir():
        sys.path.insert(0, str(SOURCE.resolve()))
    try:
        from nvshare.cli.concurrency import command
    except ModuleNotFoundError as error:
        package = PACKAGES.get(error.name or "", error.name)
        print(
            f"[NVSHARE][FATAL]: {package} is missing: pip install {package}, or in a checkout of nvshare run make "
            f".venv/.ready, then .venv/bin/python {sys.argv[0]}",
            file=sys.stderr,
        )
        sys.exit(USAGE)
    command(prog_name="analyze_concurrency.py")


if __name__ == "__main__":
    main()
