"""What the pods of these tests run: a CUDA program that says what it sees.

watch             say when the size of the card changes
work [MIB]        the same, with so much memory and work without end
grow MIB          ask for so much until it is given
once MIB          ask for so much once: exit code 0, or 3 when there is not enough
churn SEED        take and free at random; says BROKEN where what it has is more than it may have
"""

import random
import sys
import time

from nvshare.bench.driver import Context, CudaError, Driver
from nvshare.bench.workloads.ptx import PTX

MIB = 1 << 20


def say(text):
    print(text, flush=True)


def watch(context):
    seen = 0
    while True:
        total = context.memory()[1] // MIB
        if total != seen:
            say(f"{time.time()} total {total}")
            seen = total
        yield
        time.sleep(0.005)


def work(context, size):
    if size:
        context.allocate(size * MIB)
    launch = context.load(PTX).launcher("nvs_spin", 1_000_000, elements=1)
    slowest = 0.0
    for number, _ in enumerate(watch(context), start=1):
        began = time.monotonic()
        context.driver.check("cuLaunchKernel", launch())
        context.synchronize()
        slowest = max(slowest, time.monotonic() - began)
        if number % 20 == 0:
            say(f"{number} steps, slowest step {slowest:.3f}")


def allocate(context, size):
    try:
        return context.allocate(size * MIB)
    except CudaError as error:
        if not error.out_of_memory:
            raise
        return None


def grow(context, size):
    told = False
    while allocate(context, size) is None:
        if not told:
            say("CUDA_ERROR_OUT_OF_MEMORY")
        told = True
        time.sleep(0.02)
    say(f"allocated {size}")
    for _ in watch(context):
        pass


def once(context, size):
    if allocate(context, size) is None:
        say("CUDA_ERROR_OUT_OF_MEMORY")
        raise SystemExit(3)


def churn(context, seed):
    chance = random.Random(seed)
    held: list[tuple[int, int]] = []
    for _ in watch(context):
        free, total = context.memory()
        if held and (chance.random() < 0.4 or free == 0):
            context.free(held.pop()[0])
            continue
        size = chance.randrange(1, 600)
        limits = [total]
        pointer = allocate(context, size)
        limits.append(context.memory()[1])
        if pointer is not None:
            held.append((pointer, size))
            if sum(size for _, size in held) * MIB > max(limits):
                say(f"BROKEN {held} beyond {limits}")


def main(act, *arguments):
    with Context(Driver()) as context:
        if act == "watch":
            for _ in watch(context):
                pass
        numbers = [*map(int, arguments), 0]
        {"work": work, "grow": grow, "once": once, "churn": churn}[act](context, numbers[0])


main(*sys.argv[1:])
