"""A launcher to be killed: a pool whose workers compute and have children, until its standard input ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait

from nvshare.bench.driver import Context, Driver
from nvshare.launch import GpuPool


def compute() -> str:
    """Has a context, memory, and a child that would live on."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with Context(Driver()) as context:
        pointer = context.allocate(16 << 20)
        context.fill(pointer, 7, 1024)
        context.synchronize()
    return str(child.pid)


def main() -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    with GpuPool(2, mem="64MiB", grace=0.2, output=subprocess.DEVNULL) as pool:
        running: set[Future[str]] = set()
        while not stop.is_set():
            running |= {pool.submit(compute) for _ in range(2 - len(running))}
            done, running = wait(running, timeout=0.05, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    future.result()
                    print("ok", flush=True)
                except Exception as error:
                    print(type(error).__name__, flush=True)
                    print(error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
