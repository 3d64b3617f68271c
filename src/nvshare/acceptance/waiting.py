"""Something done again and again beside other work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def every(seconds: float, look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` now and every so many seconds, in a thread of its own, until the block ends."""
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
