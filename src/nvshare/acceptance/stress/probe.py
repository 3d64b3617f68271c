"""A worker that reports which GPUs it sees, and which its child sees.

``python -m nvshare.acceptance.stress.probe DIR WORKERS`` writes it into the directory once all workers have come: where
leases are placed is only told by those that are held together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from nvshare import config
from nvshare.launch import LaunchError, check
from nvshare.launch.seen import seen_gpus

_PATIENCE = 60.0  # seconds for the others to come


def _meet(directory: Path, workers: int) -> None:
    (directory / f"{os.getpid()}.here").touch()
    deadline = time.monotonic() + _PATIENCE
    while len(list(directory.glob("*.here"))) < workers and time.monotonic() < deadline:
        time.sleep(0.02)


def main(directory: Path, workers: int) -> int:
    _meet(directory, workers)
    variables = config.child_environment({})
    try:
        sight, error = check(), ""
        mem, cores = sight.mem, sight.cores
    except LaunchError as failure:
        mem, cores, error = None, None, f"{type(failure).__name__}: {failure}"
    seen = seen_gpus()
    child = subprocess.run([sys.executable, "-m", "nvshare.launch.seen"], capture_output=True, text=True, check=False)
    report = {
        "uuids": [gpu.uuid for gpu in seen],
        "totals": [gpu.total for gpu in seen],
        "child": child.stdout.split(),
        "visible": variables.get("CUDA_VISIBLE_DEVICES"),
        "mem": mem,
        "cores": cores,
        "error": error,
    }
    (directory / f"{os.getpid()}.json").write_text(json.dumps(report))
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
