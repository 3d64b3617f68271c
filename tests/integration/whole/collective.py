"""A process with two cards whose streams wait for each other in every round, as the kernels of a collective do.

    python collective.py --rounds N --bytes MIB (on each card) [--pause MS] [--batch N]

Card 0 begins a round and cannot end it before card 1 has begun its own; the host submits them one after the other, with
a pause between them, and waits for both only every few rounds. Prints a line then, PASS at the end. With a batch card 0
is given so many rounds before card 1 is given the first of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from driver import Driver

MIB = 1 << 20
LOOK = 5  # batches between waits
WORK = 2e-3  # seconds of each card in each round


class Card:
    def __init__(self, ordinal: int, size: int) -> None:
        self.driver = Driver(device=ordinal)
        self.stream = self.driver.stream()
        self.data = self.driver.alloc(size)
        self.size = size
        self.driver.fill(self.data, 7 + ordinal, size)

    def round(self, number: int, own: int, other: int) -> None:
        self.driver.cuCtxSetCurrent(self.driver.context)
        self.driver.spin(WORK, self.stream)
        self.driver.cuStreamWriteValue32_v2(self.stream, own, number, 0)
        self.driver.cuStreamWaitValue32_v2(self.stream, other, number, 0)

    def wait(self) -> None:
        self.driver.cuCtxSetCurrent(self.driver.context)
        self.driver.cuStreamSynchronize(self.stream)

    def read(self) -> tuple[bytes, bytes]:
        self.driver.cuCtxSetCurrent(self.driver.context)
        return self.driver.download(self.data, 4), self.driver.download(self.data + self.size - 4, 4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="ms between the two cards' part of a round")
    parser.add_argument("--batch", type=int, default=1, help="rounds that are submitted to one card in a row")
    arguments = parser.parse_args()
    cards = [Card(ordinal, arguments.bytes * MIB) for ordinal in range(2)]
    flags = cards[0].driver.host_alloc(8)
    for first in range(1, arguments.rounds + 1, arguments.batch):
        for index, card in enumerate(cards):
            if index:
                time.sleep(arguments.pause / 1000)  # the host's own work
            for number in range(first, first + arguments.batch):
                card.round(number, flags + 4 * index, flags + 4 * (1 - index))
        if first // arguments.batch % LOOK == 0:
            for card in cards:
                card.wait()
            print(f"round {first}", flush=True)
    for index, card in enumerate(cards):
        assert card.read() == ((7 + index).to_bytes(4, "little"),) * 2
    print("PASS", flush=True)


if __name__ == "__main__":
    main()
