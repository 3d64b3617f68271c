"""Look again and again: beside other work, or until something holds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from nvshare.client.connection import SchedulerError

_POLL = 0.02  # seconds


@contextlib.contextmanager
def every(seconds: float, look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` at once and every ``seconds``, in a thread of its own, until the block ends."""
    stop = threading.Event()

    def go_on() -> None:
        look()
        while not stop.wait(seconds):
            look()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def eventually(holds: Callable[[], bool], patience: float) -> bool:
    """Whether it holds within ``patience`` seconds. A scheduler that does not answer meanwhile is asked again."""
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(SchedulerError):
            if holds():
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
