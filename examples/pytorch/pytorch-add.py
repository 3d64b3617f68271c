"""z = x + y over 28000 x 28000 float32 matrices, 4000 times: about 12 GiB of GPU memory, always busy.

    nvshare run -- python pytorch-add.py
    python pytorch-add.py --iterations 400 --n 7000      (or ADD_ITERATIONS=400 ADD_N=7000)

Ends with PASS and --- N seconds ---, or FAIL and exit code 1 when a sum is wrong.
pytorch-add-small.py and pytorch-add-idle-small.py are the same program with other numbers.
"""

import argparse
import os
import sys
import time

import torch

CHECKED_ROWS = 32


def check(z, pattern):
    """Whole numbers below 2048: float32 sums are exact, so equal means equal."""
    rows = range(0, z.shape[0], max(1, z.shape[0] // CHECKED_ROWS))
    return all(torch.equal(z[row], pattern[row] + pattern) for row in (*rows, z.shape[0] - 1))


def main(n=28000, iterations=4000, sleep=0.0, cached=0):
    parser = argparse.ArgumentParser(description="PyTorch: z = x + y on the GPU, again and again")
    parser.add_argument("--n", type=int, default=int(os.environ.get("ADD_N", n)), help="matrices are n x n")
    parser.add_argument("--iterations", type=int, default=int(os.environ.get("ADD_ITERATIONS", iterations)))
    parser.add_argument("--sleep", type=float, default=sleep, help="seconds after each addition")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("FAIL: PyTorch finds no usable GPU (a simulated one runs driver-API programs only)", file=sys.stderr)
        return 1

    started = time.monotonic()
    pattern = torch.arange(arguments.n, device="cuda", dtype=torch.float32) % 1024
    x = pattern[:, None].repeat(1, arguments.n)
    y = pattern[None, :].repeat(arguments.n, 1)
    results = [torch.zeros_like(x), torch.zeros_like(x)]
    for _ in range(cached):
        torch.zeros_like(x)  # dropped at once, but PyTorch keeps its memory
    torch.cuda.synchronize()

    loop_started = time.monotonic()
    for iteration in range(arguments.iterations):
        torch.add(x, y, out=results[iteration % 2])
        if arguments.sleep:
            torch.cuda.synchronize()
            time.sleep(arguments.sleep)
    torch.cuda.synchronize()
    ended = time.monotonic()

    right = all(check(z, pattern) for z in results[: arguments.iterations])
    print("PASS" if right else "FAIL: a sum is wrong")
    print(f"{arguments.iterations / (ended - loop_started):.2f} it/s")
    print(f"--- {ended - started:.2f} seconds ---")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
