"""The same function of many values, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")
FEW = 3  # values that one process is done with before others have started


class HelperEnded(Exception):
    """A process that computes a part ended before its time."""


def spread(function: Callable[[Value], Result], values: Sequence[Value]) -> Generator[tuple[int, Result], None, None]:
    """Each result with the place of its value, as soon as it is known. Function, values and results can be pickled.

    Closing the iterator ends all processes, whatever they do. Ctrl-C reaches the caller alone.
    """
    helpers = min(len(os.sched_getaffinity(0)), len(values))
    if len(values) <= FEW or helpers == 1:
        yield from ((place, function(value)) for place, value in enumerate(values))
        return
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(helpers)]
    processes = [context.Process(target=_serve, args=(function, theirs), daemon=True) for _, theirs in pairs]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # they inherit it
    try:
        for process in processes:
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        for _, theirs in pairs:
            theirs.close()
        yield from _handed_out(values, [ours for ours, _ in pairs])
    finally:
        for process in processes:
            process.kill()
            process.join()
        for ours, _ in pairs:
            ours.close()


def _handed_out(values: Sequence[Value], helpers: Sequence[Connection]) -> Iterator[tuple[int, Result]]:
    """One value at a time to whoever has nothing to do."""
    to_do = iter(enumerate(values))
    at_work: dict[Connection, int] = {}

    def hand(helper: Connection) -> None:
        for place, value in to_do:
            helper.send(value)
            at_work[helper] = place
            return

    for helper in helpers:
        hand(helper)
    while at_work:
        for ready in wait(list(at_work)):
            assert isinstance(ready, Connection)
            try:
                result = ready.recv()
            except EOFError:
                raise HelperEnded("a helper process ended: its error is above, or there was no memory left") from None
            place = at_work.pop(ready)
            hand(ready)
            yield place, result


def _serve(function: Callable[[Value], Result], caller: Connection) -> None:
    """Until the caller is gone."""
    try:
        while True:
            caller.send(function(caller.recv()))
    except (EOFError, OSError):
        return
