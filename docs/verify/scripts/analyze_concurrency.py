#!/usr/bin/env python3
"""Parallel, serial or mixed? The same as ``nvshare verify concurrency``, for those who have this script in theirs.

analyze_concurrency.py LOG... [--expect parallel|serial|mixed] [--json FILE] [--html FILE] [--svg FILE]
"""

from nvshare.cli.concurrency import command

if __name__ == "__main__":
    command(prog_name="analyze_concurrency.py")
