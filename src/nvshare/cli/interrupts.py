"""Ctrl-C and polite kills: the first one ends a command, those that follow do not keep it from cleaning up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT  # exit code
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """By a signal; which one, says the exit code."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


def code_of(ending: KeyboardInterrupt) -> int:
    """The exit code of a command that ended so, as a shell has it."""
    return ending.code if isinstance(ending, Ended) else INTERRUPTED


def _end(number: int, frame: FrameType | None) -> None:
    for each in ENDING:
        if signal.getsignal(each) is _end:
            signal.signal(each, _hear_no_more)
    raise Ended(number)


def _hear_no_more(number: int, frame: FrameType | None) -> None:
    """Not the same as to ignore the signal, which programs that are started to clean up would inherit."""


@contextlib.contextmanager
def ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """In this block the first of these signals is a KeyboardInterrupt (``Ended``), and further ones of ``ENDING`` are
    nothing. One that is ignored, as under nohup or in the background of a script, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    heard = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, _hear_no_more)}
    for number in heard:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and a polite kill count only afterwards: in the middle of an import they come out as any error or none."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
