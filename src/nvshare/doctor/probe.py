"""The part that touches the driver, run as a process of its own: a driver that hangs or crashes takes only it along.

``python -m nvshare.doctor.probe cuda|nvml SECONDS`` prints one line of JSON. It makes no context and takes no memory of
a card.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

_VIRTUAL_MEMORY_SUPPORTED = 102  # CU_DEVICE_ATTRIBUTE_…
_NAME_SIZE = 256


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _owner(function: Any) -> str:
    """The file of the library that a function is in."""
    info = _DlInfo()
    found = ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info))
    return os.path.realpath(os.fsdecode(info.file or b"")) if found else ""


def _mapped(name: str) -> list[str]:
    """Files of this name inside of this process."""
    with open("/proc/self/maps", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if name in line}
    return sorted(path for path in paths if path.rpartition("/")[2].startswith(name))


def cuda_view(library: str = "libcuda.so.1") -> dict[str, Any]:
    view: dict[str, Any] = {"mapped": _mapped("libnvshare")}
    try:
        cuda = ctypes.CDLL(library)
        owner = _owner(cuda.cuMemAlloc_v2)
    except (OSError, AttributeError) as error:  # the latter: a library of that name which is no driver
        return {**view, "load_error": str(error)}
    files = _mapped("libcuda.so")
    view["library"] = files[0] if files else library
    view["interposer"] = owner if owner.rpartition("/")[2].startswith("libnvshare") else None
    result = cuda.cuInit(0)
    if result:
        return {**view, "init_error": _error_name(cuda, result)}
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    return {**view, "version": version.value, "devices": _devices(cuda)}


def _error_name(cuda: ctypes.CDLL, result: int) -> str:
    name = ctypes.c_char_p()
    if cuda.cuGetErrorName(result, ctypes.byref(name)) == 0 and name.value:
        return f"{name.value.decode()} ({result})"
    return f"error {result}"


def _devices(cuda: ctypes.CDLL) -> list[dict[str, Any]]:
    from nvshare.launch.seen import seen_gpus

    found = []
    for ordinal, gpu in enumerate(seen_gpus()):
        name, attribute = ctypes.create_string_buffer(_NAME_SIZE), ctypes.c_int()
        cuda.cuDeviceGetName(name, _NAME_SIZE, ordinal)
        cuda.cuDeviceGetAttribute(ctypes.byref(attribute), _VIRTUAL_MEMORY_SUPPORTED, ordinal)
        text = name.value.decode(errors="replace")
        found.append({"uuid": gpu.uuid, "name": text, "virtual_memory": bool(attribute.value)})
    return found


def nvml_view() -> dict[str, Any]:
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return {"driver": driver, "devices": [_nvml_device(pynvml, handle) for handle in handles]}
    except pynvml.NVMLError as error:
        return {"error": str(error), "error_code": int(getattr(error, "value", 0))}


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _nvml_device(nvml: Any, handle: Any) -> dict[str, Any]:
    def ask(name: str, *arguments: Any) -> Any:
        """None where this driver or this binding does not know the question."""
        try:
            return getattr(nvml, name)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    memory = ask("nvmlDeviceGetMemoryInfo", getattr(nvml, "nvmlMemory_v2", None)) or ask("nvmlDeviceGetMemoryInfo")
    mig = ask("nvmlDeviceGetMigMode")
    return {
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "name": _text(ask("nvmlDeviceGetName") or "unnamed card"),
        "total": int(memory.total) if memory else 0,
        "used": int(memory.used) if memory else 0,
        "compute_mode": ask("nvmlDeviceGetComputeMode"),
        "mig": list(mig) if mig else None,
        "instances": _instances(nvml, handle) if mig and mig[0] else [],
        "clock_reasons": ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "processes": _processes(
            ask("nvmlDeviceGetComputeRunningProcesses") or [], ask("nvmlDeviceGetGraphicsRunningProcesses") or []
        ),
    }


def _instances(nvml: Any, handle: Any) -> list[str]:
    from nvshare.gpu.cards import mig_instances

    return [_text(nvml.nvmlDeviceGetUUID(instance)) for instance in mig_instances(handle)]


def _processes(compute: list[Any], graphics: list[Any]) -> list[dict[str, Any]]:
    """A process may be in both lists, with one size."""
    computing = {process.pid for process in compute}
    drawing = [process for process in graphics if process.pid not in computing]
    return [
        {"pid": int(process.pid), "bytes": process.usedGpuMemory, "graphics": number >= len(compute)}
        for number, process in enumerate([*compute, *drawing])
    ]


def main() -> None:
    what, seconds = sys.argv[1], float(sys.argv[2])
    # Should whoever started us be gone by then, nobody else would end this.
    signal.setitimer(signal.ITIMER_REAL, seconds)
    view = cuda_view() if what == "cuda" else nvml_view()
    print(json.dumps(view), flush=True)


if __name__ == "__main__":
    main()
