"""A CUDA program, told by lines what to do: ``attach``, ``launch MS``, ``launch-async MS``, ``loop MS TIMES
[HOST]``, ``fork``, ``threads``.

It knows nothing of nvshare and answers every line with one of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nvs_spin(.param .u64 ns)\n{ ret; }\n"


class Program:
    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.kernel = ctypes.c_void_p()

    def attach(self) -> int:
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.cuda.cuInit(0) or self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        return int(
            code
            or self.cuda.cuCtxSetCurrent(context)
            or self.cuda.cuModuleLoadData(ctypes.byref(module), PTX)
            or self.cuda.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"nvs_spin")
        )

    def launch_async(self, milliseconds: str) -> int:
        ns = ctypes.c_uint64(int(float(milliseconds) * 1e6))
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(ns), ctypes.c_void_p))
        return int(self.cuda.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))

    def launch(self, milliseconds: str) -> int:
        return int(self.launch_async(milliseconds) or self.cuda.cuCtxSynchronize())

    def loop(self, milliseconds: str, times: str, host: str = "0") -> int:
        """Launch so many in a row, with so much to do on the host before each, and wait for them."""
        ns = ctypes.c_uint64(int(float(milliseconds) * 1e6))
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(ns), ctypes.c_void_p))
        launch = self.cuda.cuLaunchKernel
        host_work = range(int(host))
        for _ in range(int(times)):
            sum(host_work)
            launch(self.kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        return int(self.cuda.cuCtxSynchronize())

    def fork(self) -> int:
        """A child that lives until its standard input ends; its process id."""
        child = os.fork()
        if child == 0:
            os.close(1)
            sys.stdin.read()
            os._exit(0)
        return child

    def threads(self) -> int:
        return len(os.listdir("/proc/self/task"))


def main() -> None:
    program = Program()
    for line in sys.stdin:
        command, *arguments = line.split()
        print(getattr(program, command.replace("-", "_"))(*arguments), flush=True)


if __name__ == "__main__":
    main()
