"""What ``nvshare run`` does with signals, in a process of its own: it waits for them, blocked in all its threads."""

from __future__ import annotations

import signal
import subprocess
import sys

from nvshare.cli import launch

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


IGNORING = """
import os, signal, sys
from nvshare.cli import run

signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, run._heard() | {signal.SIGCHLD})
child = run._start(("sh", "-c", "kill -HUP $$ $PPID; echo lives"), os.environ)
print(run._await(child, lambda: False))
"""


def test_what_nohup_has_ignored_stays_so_for_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", IGNORING], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "lives\n0\n"


def test_nor_does_the_end_of_the_terminal_stop_a_launch_under_nohup() -> None:
    stopped: list[bool] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with launch.stopping(lambda: stopped.append(True)) as number:
            signal.raise_signal(signal.SIGHUP)
            assert number() is None
            signal.raise_signal(signal.SIGTERM)
            assert number() == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stopped == [True]
