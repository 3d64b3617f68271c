"""The same with plain multiprocessing: each process of the pool has a lease."""

from __future__ import annotations

from trial import add

from nvshare.launch.adapters.multiprocessing import leased


def main() -> None:
    with leased(mem="512MiB", cores=25) as context, context.Pool(4, *context.initializer) as pool:
        results = pool.map(add, range(200, 2200, 100))
    assert all(result["right"] for result in results)
    print(f"{len(results)} trials on {len({result['gpu'] for result in results})} GPUs")


if __name__ == "__main__":
    main()
