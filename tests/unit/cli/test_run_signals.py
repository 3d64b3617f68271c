"""What ``nvshare run`` does with signals, in a process of its own: it waits for them, blocked in all its threads."""

from __future__ import annotations

import signal
import subprocess
import sys

SCRIPT = """
import os, signal, sys
from nvshare.cli import run

run._END_GRACE = 0.0
run._adopt_orphans()
signal.pthread_sigmask(signal.SIG_BLOCK, run._FORWARDED | {signal.SIGCHLD})
ready, told = os.pipe()
os.set_inheritable(told, True)
child = run._start(("sh", "-c", f"trap '' INT TERM; echo >&{told}; while :; do sleep 1000; done"), os.environ)
os.read(ready, 1)
asked = []

def waits():
    if not asked:
        os.kill(os.getpid(), signal.SIGINT)  # the second one, as soon as the first has been taken
    asked.append(True)
    return True

os.kill(os.getpid(), signal.SIGINT)
code = run._await(child, waits)
run._end_leftovers()
print(len(asked), code)
"""


def test_command_that_ctrl_c_and_sigterm_do_not_reach_is_killed_when_its_time_is_over() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == f"2 {128 + signal.SIGKILL}\n"
    assert done.stderr == "[NVSHARE][INFO]: the task waits inside the GPU driver and does not react; ending it\n"
