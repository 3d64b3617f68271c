"""What torch_worker.py does, by the driver API and for simulated cards: the scripts that measure can be tried there.

The commands are the same, but for ``alloc``. The simulated add really happens, so sums can be wrong; a matmul is a
kernel of its length.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from nvshare.bench.compute import driver_kit, kinds
from nvshare.bench.compute.worker import Notes, Steps, work_on

GIB = 1 << 30
STEPS = {"add": kinds.ADD, "matmul": kinds.MATMUL, "tiny": kinds.LAUNCH}


def run(steps: Steps, iterations: int) -> dict[str, Any]:
    began = time.monotonic()
    mark = steps.mark()
    steps.submit(iterations)
    mark.record()
    mark.wait()
    seconds = time.monotonic() - began
    return {"seconds": seconds, "its": iterations / seconds, "right": steps.check()}


def work(steps: Steps, until: float, batch: int) -> dict[str, Any]:
    notes = Notes()
    work_on(steps, batch, until, notes)
    done = [count for at, count in zip(notes.times, notes.counts, strict=True) if at <= until]
    return {"done": done[-1] if done else 0, "right": steps.check()}


def main() -> None:
    kit = driver_kit.Kit()
    steps: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any]
        match command["do"]:
            case "prepare":
                name = STEPS[command["workload"]]
                steps = kit.prepare(name, int(command.get("gib", 1.0) * GIB) if name == kinds.ADD else None)
                answer = run(steps, 3)
            case "run":
                answer = run(steps, command["iterations"])
            case "work":
                answer = work(steps, command["until"], command["batch"])
            case "check":
                answer = {"right": steps.check()}
            case "info":
                answer = {"pid": os.getpid(), "at": time.monotonic()}
            case _:
                return
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
