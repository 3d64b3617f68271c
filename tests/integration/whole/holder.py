"""A small CUDA program that does what its standard input says, one JSON answer per line.

alloc MIB | free | info | spin MS (submit and wait) | submit MS (submit only) | break | smi | quit
raise | _exit: end by an exception, or at once
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nvshare.bench.driver import Context, CudaError, Driver
from nvshare.bench.workloads.ptx import PTX

MIB = 1 << 20
NOWHERE = (0x7000_0000_0000,) * 3
SMI = Path(__file__).with_name("smi.py")


def main() -> None:
    with Context(Driver()) as context:
        module = context.load(PTX)
        held: list[int] = []
        for line in sys.stdin:
            what, *arguments = line.split()
            answer: dict[str, object] = {"did": what}
            try:
                if what == "alloc":
                    held.append(context.allocate(int(arguments[0]) * MIB))
                elif what == "free":
                    context.free(held.pop())
                elif what == "info":
                    free, total = context.memory()
                    answer |= {"free": free // MIB, "total": total // MIB}
                elif what == "break":  # a kernel that reads where nothing is
                    context.driver.check("cuLaunchKernel", module.launcher("nvs_add_f32", *NOWHERE, 4, elements=4)())
                    context.synchronize()
                elif what == "raise":
                    raise RuntimeError("as told")
                elif what == "_exit":
                    os._exit(7)
                elif what == "smi":  # a management tool started from here
                    tool = subprocess.run([sys.executable, SMI], check=True, capture_output=True, text=True)
                    answer |= json.loads(tool.stdout)
                elif what in ("spin", "submit"):
                    launch = module.launcher("nvs_spin", int(float(arguments[0]) * 1e6), elements=1)
                    context.driver.check("cuLaunchKernel", launch())
                    if what == "spin":
                        context.synchronize()
                else:
                    return
            except CudaError as error:
                answer["error"] = error.name
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
