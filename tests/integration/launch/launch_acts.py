"""What workers do in these tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from nvshare.bench.driver import Context, Driver
from nvshare.launch import check


class Unpicklable(Exception):
    def __reduce__(self) -> str:
        raise TypeError("no")


class Poisonous:
    """Can be sent, but not received."""

    def __reduce__(self) -> tuple[object, tuple[int, int]]:
        return divmod, (1, 0)


def square(number: int) -> int:
    return number * number


def who() -> tuple[int, tuple[str, ...], int | None]:
    sight = check()
    return os.getpid(), tuple(gpu.uuid for gpu in sight.gpus), sight.mem


def environment(name: str) -> str | None:
    return os.environ.get(name)


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


def leave(code: int) -> None:
    os._exit(code)


def complain() -> None:
    raise KeyError("what was asked for")


def complain_unpicklably() -> None:
    raise Unpicklable("this stays there")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def die_once(path: str) -> str:
    """Die the first time, do well the second."""
    if not os.path.exists(path):
        open(path, "w").close()
        die()
    return "done"


def take(size: int) -> None:
    with Context(Driver()) as context:
        context.allocate(size)


def lose_the_driver() -> None:
    """A worker that sees another card than its lease says."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    check()


def spawn_deaf_family() -> list[int]:
    """A child and a grandchild in sessions of their own that ignore SIGTERM."""
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if len(sys.argv) > 1:\n"
        "    child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)\n"
        "    print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout
    return [child.pid, int(child.stdout.readline())]
