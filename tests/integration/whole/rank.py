"""One of two processes that do a round of work each and then wait for each other on the host, as gloo does.

python rank.py --rank 0|1 --rounds N --bytes MIB --shared FILE (of 8 zero bytes)
"""

from __future__ import annotations

import argparse
import mmap
import struct
import time
from pathlib import Path

from nvshare.bench.driver import Context, Driver
from nvshare.bench.workloads.ptx import PTX

MIB = 1 << 20
PAUSE = 0.0005  # seconds between looks at the other's number


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--shared", type=Path, required=True)
    arguments = parser.parse_args()
    own, other = 4 * arguments.rank, 4 * (1 - arguments.rank)
    with arguments.shared.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared, Context(Driver()) as context:
        launch = context.load(PTX).launcher("nvs_spin", 1_000_000, elements=1)
        context.fill(context.allocate(arguments.bytes * MIB), 7, arguments.bytes * MIB // 4)
        for number in range(1, arguments.rounds + 1):
            context.driver.check("cuLaunchKernel", launch())
            context.synchronize()
            struct.pack_into("<I", shared, own, number)
            while struct.unpack_from("<I", shared, other)[0] < number:
                time.sleep(PAUSE)
    print("PASS", flush=True)


if __name__ == "__main__":
    main()
