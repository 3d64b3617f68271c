"""Facts of a machine on which all is well, to be changed one by one."""

from __future__ import annotations

from nvshare.doctor.facts import (
    CudaDevice,
    CudaView,
    EnvironmentFacts,
    Facts,
    HostFacts,
    LibraryFacts,
    NvmlDevice,
    NvmlView,
    Preload,
    SchedulerFacts,
    SocketFile,
)

GIB = 1 << 30
X86, ARM = 62, 183
CARDS = ("GPU-aaaaaaaa-0", "GPU-bbbbbbbb-1")
LIBRARY = "/opt/nvshare/libnvshare.so"

_PLAIN = CudaView(
    library="/usr/lib/libcuda.so.1",
    version=13000,
    devices=tuple(CudaDevice(uuid, "T4", True) for uuid in CARDS),
)
_SHARED = CudaView(library=_PLAIN.library, version=13000, devices=_PLAIN.devices, mapped=(LIBRARY,), interposer=LIBRARY)

CARD = NvmlDevice(CARDS[0], "T4", 16 * GIB, 0, compute_mode=0, mig=(0, 0), clock_reasons=0)

WELL = Facts(
    release="1.0",
    environment=EnvironmentFacts(),
    host=HostFacts(memory_total=64 * GIB, memory_budget=51 * GIB, shm_total=32 * GIB, locked_limit=8 << 20),
    native=_PLAIN,
    here=_SHARED,
    shared=_SHARED,
    nvml=NvmlView(
        driver="580",
        devices=(CARD, NvmlDevice(CARDS[1], "T4", 16 * GIB, 0, compute_mode=0, mig=(0, 0), clock_reasons=0)),
    ),
    library=LibraryFacts(LIBRARY, machine=X86, own_machine=X86, preloads=(Preload(LIBRARY, "LD_PRELOAD", True, X86),)),
    scheduler=SchedulerFacts(
        "/run/user/1/nvshare/scheduler.sock",
        "user",
        "answers",
        file=SocketFile(True, "me", True, 0o600, False),
        release="1.0",
        pid=7,
        owner="me",
        cards=CARDS,
    ),
)
