"""A real scheduler that is told by a directory which process is in which pod, where there are no containers.

Usage: scheduler.py SOCKET PODS READY_FD; ``PODS/<pid>`` has the uid of the pod that this process and all below it are
in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nvshare import config
from nvshare.daemon.identity import ancestry, read
from nvshare.daemon.serve import Listening, serve
from nvshare.gpu.cards import NvmlCards


def main(socket: str, pods: str, ready: str) -> None:
    def pod_of(pid: int) -> str | None:
        found = (read(f"{pods}/{ancestor}") for ancestor in ancestry(pid))
        return next((uid.strip() for uid in found if uid), None)

    def tell() -> None:
        os.write(int(ready), b"\n")
        os.close(int(ready))

    settings = config.scheduler_config(config.Environment())
    config.configure_logging(settings.debug)
    serve(settings, Listening(Path(socket), private=True), NvmlCards(), tell, pod_of)


if __name__ == "__main__":
    main(*sys.argv[1:])
