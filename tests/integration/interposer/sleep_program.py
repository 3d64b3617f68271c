"""A CUDA program, told by lines what to do, that answers every line with one of its own. It knows nothing of nvshare.

A line is the name of a method below, with arguments; ``end`` ends it. Its data are 8 MiB on each card, checked to the
byte.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import struct
import sys
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nvs_spin(.param .u64 ns)\n{ ret; }\n"
SIZE = 8 << 20


class Program:
    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.contexts: list[c_void_p] = []
        self.data: list[c_uint64] = []
        self.kernel = c_void_p()
        self.event = c_void_p()
        self.polling = threading.Event()
        self.polls, self.failed = 0, 0

    def attach(self, cards: str = "1") -> int:
        code, module = int(self.cuda.cuInit(0)), c_void_p()
        for card in range(int(cards)):
            context = c_void_p()
            code = code or self.cuda.cuDevicePrimaryCtxRetain(byref(context), card)
            self.contexts.append(context)
        return int(
            code
            or self.cuda.cuCtxSetCurrent(self.contexts[0])
            or self.cuda.cuEventCreate(byref(self.event), 0)
            or self.cuda.cuModuleLoadData(byref(module), PTX)
            or self.cuda.cuModuleGetFunction(byref(self.kernel), module, b"nvs_spin")
        )

    def fill(self) -> int:
        """Every byte of every card's data says where it is."""
        code = 0
        for card, context in enumerate(self.contexts):
            p = c_uint64()
            code = code or self.cuda.cuCtxSetCurrent(context) or self.cuda.cuMemAlloc_v2(byref(p), c_size_t(SIZE))
            code = code or self.cuda.cuMemcpyHtoD_v2(p, self.pattern(card), c_size_t(SIZE))
            self.data.append(p)
        return int(code or self.cuda.cuCtxSetCurrent(self.contexts[0]))

    @staticmethod
    def pattern(card: int) -> bytes:
        return b"".join(((card << 28) + place).to_bytes(4, "little") for place in range(0, SIZE, 4))

    def check(self) -> int:
        """0: every byte is right; -1: one is not."""
        for card, p in enumerate(self.data):
            seen = ctypes.create_string_buffer(SIZE)
            code = self.cuda.cuMemcpyDtoH_v2(seen, p, c_size_t(SIZE))
            if code != 0 or seen.raw != self.pattern(card):
                return int(code or -1)
        return 0

    def launch(self) -> int:
        ns = c_uint64(100_000)
        parameters = (c_void_p * 1)(ctypes.cast(byref(ns), c_void_p))
        code = self.cuda.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        return int(code or self.cuda.cuCtxSynchronize())

    def query(self) -> int:
        """A call without a hook."""
        return int(self.cuda.cuEventQuery(self.event))

    def memory(self) -> int:
        """A call with a hook written by hand."""
        return int(self.cuda.cuMemGetInfo_v2(byref(c_size_t()), byref(c_size_t())))

    def calls(self) -> int:
        """One of each kind, from threads of their own, at once."""
        codes: list[int] = []

        def call(which: int) -> None:
            self.cuda.cuCtxSetCurrent(self.contexts[0])
            codes.append((self.query, self.memory)[which % 2]())

        threads = [threading.Thread(target=call, args=[number]) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return max(codes)

    def poll(self) -> int:
        """Two threads query each millisecond from now on."""
        self.polling.set()

        def body() -> None:
            self.cuda.cuCtxSetCurrent(self.contexts[0])
            while self.polling.is_set():
                self.failed = self.failed or self.query()
                self.polls += 1
                time.sleep(0.001)

        self.pollers = [threading.Thread(target=body) for _ in range(2)]
        for poller in self.pollers:
            poller.start()
        return 0

    def polled(self) -> int:
        """Stop them; the first error, or 0."""
        self.polling.clear()
        for poller in self.pollers:
            poller.join()
        return self.failed if self.polls else -1

    def at_exit(self) -> int:
        """At its end the program says whether its data are right."""
        atexit.register(lambda: print(self.check(), flush=True))
        return 0

    def alarm(self) -> int:
        """A signal's handler calls the driver."""
        codes: list[int] = []
        signal.signal(signal.SIGALRM, lambda *_: codes.append(self.query()))
        signal.raise_signal(signal.SIGALRM)
        return codes.pop()

    def fork(self) -> int:
        """What a call says in a child, which is no sleeper."""
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(self.query() & 0x7F)
        status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status)

    def second(self) -> int:
        """A second context on the first card, that lives on."""
        context = c_void_p()
        code = self.cuda.cuCtxCreate_v2(byref(context), 0, 0)
        return int(code or self.cuda.cuCtxSetCurrent(self.contexts[0]))

    def managed(self) -> int:
        return int(self.cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(1 << 20), c_uint(1)))

    def exported(self) -> int:
        """Memory that other processes may have."""
        handle, descriptor = c_uint64(), c_int()
        prop = struct.pack("<iiiiQQ", 1, 1, 1, 0, 0, 0)
        code = self.cuda.cuMemCreate(byref(handle), c_size_t(2 << 20), prop, c_uint64())
        return int(code or self.cuda.cuMemExportToShareableHandle(byref(descriptor), handle, 1, c_uint64()))

    def device_count(self) -> int:
        return int(self.cuda.cuDeviceGetCount(byref(c_int())))


def main() -> None:
    program = Program()
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "end":
            return
        print(getattr(program, command.replace("-", "_"))(*arguments), flush=True)


if __name__ == "__main__":
    main()
