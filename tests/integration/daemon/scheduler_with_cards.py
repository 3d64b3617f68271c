"""A scheduler process whose cards are given on its command line, for tests that need neither a driver nor a simulation.

Usage: scheduler_with_cards.py SOCKET CARDS BYTES READY_FD [IDLE_EXIT]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nvshare import config
from nvshare.cli.options import fail
from nvshare.daemon.exclusive import Unavailable
from nvshare.daemon.serve import Listening, serve
from nvshare.gpu.cards import Card, ProcessMemory


class GivenCards:
    def __init__(self, names: list[str], total: int) -> None:
        self._cards = [Card(name, "Test card", total) for name in names]

    def cards(self) -> list[Card]:
        return self._cards

    def process_memory(self) -> ProcessMemory:
        return {}


def main(socket: str, cards: str, total: str, ready: str, idle_exit: str = "0") -> None:
    environment = config.Environment()
    settings = config.scheduler_config(environment)
    config.configure_logging(settings.debug)

    def tell() -> None:
        os.write(int(ready), b"\n")
        os.close(int(ready))

    listening = Listening(Path(socket), private=False, idle_exit=float(idle_exit))
    try:
        serve(settings, listening, GivenCards(cards.split(","), int(total)), tell)
    except Unavailable as error:
        fail(str(error), 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
