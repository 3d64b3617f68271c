"""The programs, as they are installed. Ctrl-C while Python still imports them ends them as it does later: without a
word. Nothing has been started by then that could be left behind.
"""

import os
import signal
from types import FrameType

_INTERRUPTED = 128 + signal.SIGINT
_ENDED = {_INTERRUPTED, 128 + signal.SIGTERM, 128 + signal.SIGHUP}


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


_HEARD = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored, as in a script's background
if _HEARD:
    signal.signal(signal.SIGINT, _leave)  # before all other imports, which is why this module has next to none


def _run(module: str, command: str = "main", program: str | None = None) -> None:
    from importlib import import_module

    at_the_end = signal.SIG_DFL  # what Python does at its very end is not worth a traceback
    try:
        getattr(import_module(f"nvshare.cli.{module}"), command)(prog_name=program)
    except SystemExit as ending:
        if ending.code in _ENDED:
            at_the_end = signal.SIG_IGN  # a further Ctrl-C changes nothing
        raise
    finally:
        if _HEARD:
            signal.signal(signal.SIGINT, at_the_end)


def nvshare() -> None:
    _run("main")


def nvsharectl() -> None:
    _run("ctl")


def scheduler() -> None:
    _run("scheduler")


def device_plugin() -> None:
    _run("device_plugin")


def pod_watch() -> None:
    _run("pod_watch")


def exporter() -> None:
    _run("exporter")


def stress(program: str) -> None:
    """``nvshare stress`` under another name."""
    _run("stress", "command", program)
