"""Twenty trials on a pool of four workers, each with a part of a GPU.

eval "$(nvshare env --sim 4xT4)"      # or on real GPUs: nothing
python examples/launch/pool.py
"""

from __future__ import annotations

from trial import add

from nvshare.launch import GpuPool


def main() -> None:
    with GpuPool(4, mem="512MiB", cores=25, deadline=60, retries=1) as pool:
        for result in pool.map(add, range(200, 2200, 100)):
            print(result)
            assert result["right"]


if __name__ == "__main__":
    main()
