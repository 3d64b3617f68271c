"""On a real NVIDIA GPU: compute quotas, turns and changes against native runs (``nvshare bench compute --real``).

    python benchmarks/gpu/compute.py [--only quotas,pairs,free,idle,change] [--seconds 8] [--json FILE]

Needs PyTorch. Builds the native part and starts a scheduler of its own; nothing of it is left afterwards. Each part
takes less than 9 minutes; the estimate is printed first, and rows are written as they are found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from spine import ROOT, Scheduler

_LOG_LINES = 200


def bench(arguments: argparse.Namespace, scheduler: Scheduler) -> int:
    command = [sys.executable, "-m", "nvshare", "bench", "compute", "--real", "--seconds", str(arguments.seconds)]
    command += ["--only", arguments.only] if arguments.only else []
    command += ["--json", str(arguments.json)] if arguments.json else []
    return subprocess.run(command, env={**os.environ, **scheduler.env}, check=False).returncode


def add_log(path: Path, log: list[str]) -> None:
    """What the scheduler said last, beside the rows."""
    content = json.loads(path.read_text())
    content["scheduler_log"] = log
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="which parts, comma separated (default: all)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a measured window (default: 8)")
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    subprocess.run(["make", "-C", str(ROOT), "native"], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as directory:
        scheduler = Scheduler(Path(directory))
        try:
            code = bench(arguments, scheduler)
        finally:
            scheduler.stop()
            log = (Path(directory) / "scheduler.log").read_text().splitlines()[-_LOG_LINES:]
    if arguments.json and arguments.json.exists():
        add_log(arguments.json, log)
    return code


if __name__ == "__main__":
    sys.exit(main())
