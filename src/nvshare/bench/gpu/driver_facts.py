"""Facts about a real driver that the interposer relies on. Run it natively on a new driver before trusting it.

    python -m nvshare.bench.gpu.driver_facts [--json FILE]

Uses under 1 GiB of plain and virtual-memory-API memory; changes no settings.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvshare.bench.gpu.scheduler import TREE

cuda = c.CDLL("libcuda.so.1")
HOOKS = TREE / "native" / "include" / "hooks.def"
MIB = 1 << 20
DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def call(name: str, *args: Any) -> None:
    result = getattr(cuda, name)(*args)
    if result:
        raise RuntimeError(f"{name} -> {result}")


def hooked_symbols() -> list[str]:
    """Every exported name in the hook list, with its per-thread variants."""
    text = HOOKS.read_text()
    names = []
    entry = re.compile(r"^NVS_(SUBMIT_PT|HOOK_PT|SUBMIT|HOOK)\((\w+)(?:, (_pt[sd][sz]))?", re.MULTILINE)
    for macro, name, suffix in entry.findall(text):
        names.append(name)
        if macro.endswith("_PT"):
            names.append(name + suffix)
    return names


def proc_address_agrees() -> dict[str, Any]:
    """Does cuGetProcAddress return the very addresses that dlsym does? The address map depends on it."""
    exported = {}
    missing = []
    for symbol in hooked_symbols():
        try:
            exported[c.cast(getattr(cuda, symbol), c.c_void_p).value] = symbol
        except AttributeError:
            missing.append(symbol)
    different = []
    unmapped_versions = []
    for symbol in hooked_symbols():
        base = re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", symbol)
        flags = 2 if symbol.endswith(("_ptsz", "_ptds")) else 0
        found = set()
        for version in (3020, 4000, 6050, 9000, 10000, 11000, 11020, 12000, 12050, 12080, 13000):
            pointer, status = c.c_void_p(), c.c_int()
            cuda.cuGetProcAddress_v2(base.encode(), c.byref(pointer), version, c.c_uint64(flags), c.byref(status))
            if pointer.value:
                found.add(pointer.value)
                if pointer.value not in exported:
                    unmapped_versions.append(f"{base}@{version}/{flags}")
        if symbol not in missing and not any(exported.get(a) == symbol for a in found):
            different.append(symbol)
    return {"missing": missing, "never_returned": different, "unmapped": unmapped_versions}


class Prop(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("handles", c.c_int),
        ("location_type", c.c_int),
        ("location_id", c.c_int),
        ("meta", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    ]


class Access(c.Structure):
    _fields_ = [("location_type", c.c_int), ("location_id", c.c_int), ("flags", c.c_int)]


def vmm_alloc(size: int, handles: int = 0) -> tuple[c.c_uint64, c.c_uint64]:
    prop, handle, pointer = Prop(1, handles, 1, 0), c.c_uint64(), c.c_uint64()
    call("cuMemAddressReserve", c.byref(pointer), c.c_size_t(size), c.c_size_t(0), c.c_uint64(0), c.c_uint64(0))
    call("cuMemCreate", c.byref(handle), c.c_size_t(size), c.byref(prop), c.c_uint64(0))
    call("cuMemMap", pointer, c.c_size_t(size), c.c_size_t(0), handle, c.c_uint64(0))
    call("cuMemSetAccess", pointer, c.c_size_t(size), c.byref(Access(1, 0, 3)), c.c_size_t(1))
    return pointer, handle


def vmm_free(pointer: c.c_uint64, handle: c.c_uint64, size: int) -> None:
    call("cuMemUnmap", pointer, c.c_size_t(size))
    call("cuMemRelease", handle)
    call("cuMemAddressFree", pointer, c.c_size_t(size))


def pointer_attributes(pointer: c.c_uint64) -> dict[str, Any]:
    names = {
        1: "context",
        2: "memory_type",
        7: "buffer_id",
        9: "ordinal",
        10: "ipc",
        11: "start",
        12: "size",
        13: "mapped",
        14: "handle_types",
        17: "pool",
    }
    out: dict[str, Any] = {}
    for number, name in names.items():
        value = c.c_uint64(0)
        result = cuda.cuPointerGetAttribute(c.byref(value), number, pointer)
        out[name] = value.value if result == 0 else f"error {result}"
    base, size = c.c_uint64(), c.c_size_t()
    result = cuda.cuMemGetAddressRange_v2(c.byref(base), c.byref(size), c.c_uint64(pointer.value + 4096))
    out["range_from_inside"] = (base.value == pointer.value, size.value) if result == 0 else f"error {result}"
    return out


def microseconds(action: Callable[[], None], rounds: int = 200) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e6)
    return round(statistics.median(times), 2)


def costs() -> dict[str, float]:
    out = {}
    for size in (2 * MIB, 20 * MIB, 128 * MIB):
        plain = c.c_uint64()

        def native(size: int = size, plain: c.c_uint64 = plain) -> None:
            call("cuMemAlloc_v2", c.byref(plain), c.c_size_t(size))
            call("cuMemFree_v2", plain)

        def ours(size: int = size) -> None:
            vmm_free(*vmm_alloc(size), size)

        out[f"alloc+free {size // MIB} MiB plain us"] = microseconds(native, 50)

        def exportable(size: int = size) -> None:
            vmm_free(*vmm_alloc(size, DESCRIPTOR), size)

        out[f"alloc+free {size // MIB} MiB vmm us"] = microseconds(ours, 50)
        out[f"alloc+free {size // MIB} MiB vmm exportable us"] = microseconds(exportable, 50)
    event, stream, status = c.c_void_p(), c.c_void_p(), c.c_int()
    call("cuEventCreate", c.byref(event), 0)
    call("cuStreamCreate", c.byref(stream), 1)
    out["event record us"] = microseconds(lambda: call("cuEventRecord", event, stream))
    out["event query us"] = microseconds(lambda: cuda.cuEventQuery(event))
    out["is capturing us"] = microseconds(lambda: call("cuStreamIsCapturing", stream, c.byref(status)))
    return out


def capture_rules() -> dict[str, Any]:
    """What our helper thread may do while the application captures a stream."""
    out: dict[str, Any] = {}
    stream, other, event, graph = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_void_p()
    call("cuStreamCreate", c.byref(stream), 0)
    call("cuStreamCreate", c.byref(other), 0)
    call("cuEventCreate", c.byref(event), 0)
    mode = c.c_int(2)
    for target, name in ((other, "other stream"), (c.c_void_p(0), "legacy stream")):
        for relaxed in (False, True):
            call("cuStreamBeginCapture_v2", stream, 0)
            if relaxed:
                mode.value = 2
                call("cuThreadExchangeStreamCaptureMode", c.byref(mode))
            record = cuda.cuEventRecord(event, target)
            query = cuda.cuEventQuery(event)
            if relaxed:
                call("cuThreadExchangeStreamCaptureMode", c.byref(mode))
            end = cuda.cuStreamEndCapture(stream, c.byref(graph))
            out[f"{name}{' relaxed' if relaxed else ''}"] = {"record": record, "query": query, "end_capture": end}
    call("cuStreamBeginCapture_v2", stream, 0)
    mode.value = 2
    call("cuThreadExchangeStreamCaptureMode", c.byref(mode))
    pointer, handle = vmm_alloc(2 * MIB)
    vmm_free(pointer, handle, 2 * MIB)
    call("cuThreadExchangeStreamCaptureMode", c.byref(mode))
    out["vmm alloc and free during capture, relaxed"] = {"end_capture": cuda.cuStreamEndCapture(stream, c.byref(graph))}
    return out


class IpcHandle(c.Structure):
    _fields_ = [("bytes", c.c_ubyte * 64)]


def sharing() -> dict[str, Any]:
    """What our emulation of legacy IPC relies on: a thread without a context can export, and what the real one answers
    to the process that made a handle."""
    out: dict[str, Any] = {}
    plain, opened, handle = c.c_uint64(), c.c_uint64(), IpcHandle()
    call("cuMemAlloc_v2", c.byref(plain), c.c_size_t(4 * MIB))
    out["get own"] = cuda.cuIpcGetMemHandle(c.byref(handle), plain)
    out["open own"] = cuda.cuIpcOpenMemHandle_v2(c.byref(opened), handle, c.c_uint(1))
    call("cuMemFree_v2", plain)
    size = 128 * MIB
    pointer, memory = vmm_alloc(size, DESCRIPTOR)
    descriptor, imported = c.c_int(-1), c.c_uint64()

    def export() -> int:
        return int(cuda.cuMemExportToShareableHandle(c.byref(descriptor), memory, DESCRIPTOR, c.c_uint64(0)))

    thread = threading.Thread(target=lambda: out.update({"export without a context": export()}))
    thread.start()
    thread.join()
    if out["export without a context"] == 0:
        os.close(descriptor.value)

    def pass_on() -> None:
        export()
        call("cuMemImportFromShareableHandle", c.byref(imported), c.c_void_p(descriptor.value), DESCRIPTOR)
        os.close(descriptor.value)
        call("cuMemRelease", imported)

    out["export+import 128 MiB us"] = microseconds(pass_on, 50)
    vmm_free(pointer, memory, size)
    return out


def nvml_view() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    return {
        "own_pid": os.getpid(),
        "processes": [(p.pid, p.usedGpuMemory) for p in processes],
        "total": memory.total,
        "used": memory.used,
        "uuid": str(pynvml.nvmlDeviceGetUUID(device)),
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    call("cuInit", 0)
    context, uuid, version = c.c_void_p(), (c.c_ubyte * 16)(), c.c_int()
    call("cuDriverGetVersion", c.byref(version))
    call("cuDevicePrimaryCtxRetain", c.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuDeviceGetUuid_v2", uuid, 0)
    plain = c.c_uint64()
    call("cuMemAlloc_v2", c.byref(plain), c.c_size_t(4 * MIB))
    pointer, _ = vmm_alloc(4 * MIB)
    facts = {
        "driver_version": version.value,
        "uuid": bytes(uuid).hex(),
        "proc_address": proc_address_agrees(),
        "plain_pointer": pointer_attributes(plain),
        "vmm_pointer": pointer_attributes(pointer),
        "costs": costs(),
        "capture": capture_rules(),
        "sharing": sharing(),
        "nvml": nvml_view(),
    }
    print(json.dumps(facts, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
