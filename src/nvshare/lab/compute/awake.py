"""Keeps a core from going to sleep, at the lowest priority there is: whoever wants to compute there does.

    python -m nvshare.lab.compute.awake CORE

A core that slept is slower for a while, and a virtual one may come back beside a neighbour: natively, tiny kernels that
pause for 50 of every 100 ms take a third longer (H200, 16 virtual cores). A task that waits for its turns pauses like
that, and what it loses is the host's doing. Ends with the process that started it.
"""

from __future__ import annotations

import os
import sys

_SPINS = 100_000


def main() -> int:
    parent = os.getppid()
    os.sched_setaffinity(0, {int(sys.argv[1])})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        for _ in range(_SPINS):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
