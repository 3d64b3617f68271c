"""The driver itself: is it there, does it answer, is it one that nvshare knows."""

from __future__ import annotations

from nvshare.doctor.facts import CudaView, Facts
from nvshare.doctor.findings import Verdict, Verdicts, note, ok, problem, warning

_NEEDED = 10020  # CUDA 10.2 brought the virtual-memory API
_OLDEST_KNOWN, _NEWEST_KNOWN = 11080, 13040  # whose functions are all in native/include/surface.def
_LIB_RM_VERSION_MISMATCH = 18  # NVML: library and kernel module are of different releases
_CUDA_REMEDIES = {
    "CUDA_ERROR_STUB_LIBRARY": "a stub for building is found instead of the driver: take .../stubs out of "
    "LD_LIBRARY_PATH",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver was updated while it was in use: reboot, or reload its modules",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "a CUDA compatibility library is found that this card does not "
    "support: take .../compat out of LD_LIBRARY_PATH",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the fabric manager: systemctl start nvidia-fabricmanager",
    "CUDA_ERROR_OUT_OF_MEMORY": "CUDA could not reserve addresses: look at `ulimit -v`, which should be unlimited",
    "CUDA_ERROR_UNKNOWN": "load the module for unified memory: modprobe nvidia-uvm (after a suspend: reload it)",
}
_HUNG_REMEDY = (
    "look for Xid lines in `dmesg`; a card that hangs needs `nvidia-smi --gpu-reset`, or a reboot. A machine that only "
    "starts its cards slowly: nvidia-smi -pm 1, or give them longer with --timeout"
)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def cuda(facts: Facts) -> Verdicts:
    view = facts.native
    if not view.works:
        yield _broken(facts, view)
        return
    found = f"CUDA {_version(view.version)}, {len(view.devices)} {'card' if len(view.devices) == 1 else 'cards'}"
    if facts.environment.simulated:
        found += " (simulated)"
    if view.version < _NEEDED:
        yield problem(f"{found}: older than CUDA {_version(_NEEDED)}", "update the NVIDIA driver to 520 or later")
    elif view.version < _OLDEST_KNOWN:
        yield warning(
            f"{found}: older than CUDA {_version(_OLDEST_KNOWN)}, the oldest that nvshare was checked against",
            "update the NVIDIA driver to 520 or later",
        )
    elif view.version > _NEWEST_KNOWN:
        yield note(
            f"{found}: newer than CUDA {_version(_NEWEST_KNOWN)}, the newest that nvshare was checked against",
            "functions that are new in it pass through unshared; look for a newer nvshare",
        )
    else:
        yield ok(f"{found}, {view.library}")
    for device in view.devices:
        if not device.virtual_memory:
            yield warning(
                f"{device.name} ({device.uuid}) has no virtual-memory API",
                "its memory moves as unified memory, slowly; on a virtual GPU ask for a profile with unified memory",
            )


def _broken(facts: Facts, view: CudaView) -> Verdict:
    if view.failure is not None:
        hung = "did not answer" in view.failure
        remedy = _HUNG_REMEDY if hung else "reinstall the NVIDIA driver; `dmesg` may say what is wrong with the card"
        return problem(f"a process that initialises CUDA {view.failure}", remedy)
    if view.load_error is not None:
        return problem(f"libcuda.so.1 cannot be loaded ({view.load_error})", _missing_remedy(facts))
    closed = facts.host.closed_devices
    if closed:
        remedy = f"you may not open {', '.join(closed)}: chmod a+rw them as root, or join the group that owns them"
        return problem(f"CUDA does not start: {view.init_error}", remedy)
    name = (view.init_error or "").partition(" ")[0]
    remedy = _CUDA_REMEDIES.get(name, "no card is usable: look at `nvidia-smi` and at `dmesg`")
    if name == "CUDA_ERROR_NO_DEVICE" and any(device.mig and device.mig[0] for device in facts.nvml.devices):
        remedy = "cards in MIG mode show nothing but instances: see MIG below"
    elif name == "CUDA_ERROR_NO_DEVICE" and facts.host.container is not None:
        remedy = "no card is given to this container: start it with --gpus all, or in Kubernetes with nvshare.com/gpu"
    return problem(f"CUDA does not start: {view.init_error}", remedy)


def _missing_remedy(facts: Facts) -> str:
    if facts.host.container is not None:
        return (
            "start the container with --gpus all (NVIDIA toolkit, NVIDIA_DRIVER_CAPABILITIES=compute,utility); "
            "in Kubernetes ask for nvshare.com/gpu"
        )
    if facts.host.kernel_module:
        return "the kernel module is loaded, its library is not found: install libcuda of its release, run ldconfig"
    return "install the NVIDIA driver; to try nvshare without a card: nvshare demo"


def nvml(facts: Facts) -> Verdicts:
    view = facts.nvml
    if view.works:
        yield ok(f"driver {view.driver}")
        return
    if view.failure is not None:
        hung = "did not answer" in view.failure
        remedy = _HUNG_REMEDY if hung else "reinstall the NVIDIA driver"
        yield problem(f"a process that asks NVML {view.failure}", remedy)
    elif view.error_code == _LIB_RM_VERSION_MISMATCH:
        yield problem(
            f"NVML: {view.error}", "the driver was updated while it was in use: reboot, or reload its modules"
        )
    elif facts.native.works:
        remedy = "install libnvidia-ml.so.1 of the driver; the scheduler finds its cards through it"
        if facts.host.container is not None:
            remedy = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield problem(f"CUDA works, NVML does not: {view.error}", remedy)
    else:
        yield problem(f"NVML: {view.error}", "see the driver above")
