"""What management tools see of the first card: memory, processes. One JSON object; never touches CUDA."""

from __future__ import annotations

import json

import pynvml

MIB = 1 << 20


def main() -> None:
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    print(
        json.dumps(
            {
                "total": memory.total // MIB,
                "used": memory.used // MIB,
                "free": memory.free // MIB,
                "processes": {
                    str(process.pid): process.usedGpuMemory // MIB
                    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card)
                },
                "graphics": len(pynvml.nvmlDeviceGetGraphicsRunningProcesses(card)),
            }
        )
    )


if __name__ == "__main__":
    main()
