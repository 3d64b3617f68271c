"""One rank of a PyTorch distributed job whose ranks share a card: rounds of work and an all-reduce through the host.

python rank.py RANK SIZE STORE ROUNDS GIB
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    rank, size, rounds, gib = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4]), float(sys.argv[5])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=size)
    ballast = torch.full((int(gib * (1 << 30) / 4),), rank, dtype=torch.int32, device="cuda")
    value = torch.full((1 << 16,), float(rank + 1), device="cuda")
    began = time.monotonic()
    for _ in range(rounds):
        ballast.add_(1)
        value.mul_(2.0).div_(2.0)
        total = value.clone()
        dist.all_reduce(total)
        if float(total[0]) != size * (size + 1) / 2:
            raise SystemExit(f"rank {rank}: wrong sum {float(total[0])}")
    right = bool((ballast == rank + rounds).all())
    print(json.dumps({"rank": rank, "right": right, "seconds": time.monotonic() - began}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
