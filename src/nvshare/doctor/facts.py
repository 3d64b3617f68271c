"""What a look at a machine found. Plain frozen data: ``gather`` fills it in, ``judge`` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CudaDevice:
    uuid: str
    name: str
    virtual_memory: bool  # has the virtual-memory API, with which memory moves at the speed of the link


@dataclass(frozen=True)
class CudaView:
    """What CUDA shows to a process."""

    failure: str | None = None  # the process hung or died while it looked; then nothing else is known
    load_error: str | None = None  # of libcuda.so.1
    library: str = ""  # the file of libcuda.so.1
    init_error: str | None = None  # of cuInit
    version: int = 0  # 13000 is CUDA 13.0
    devices: tuple[CudaDevice, ...] = ()
    mapped: tuple[str, ...] = ()  # every libnvshare.so inside of the process
    interposer: str | None = None  # the libnvshare.so that the process reaches when it calls CUDA
    loader: tuple[str, ...] = ()  # what the dynamic loader complained of

    @property
    def works(self) -> bool:
        return self.failure is None and self.load_error is None and self.init_error is None

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(device.uuid for device in self.devices)


@dataclass(frozen=True)
class NvmlProcess:
    pid: int  # 0 where it has no number here
    bytes: int | None  # None where the driver does not tell
    graphics: bool  # draws and does not compute


@dataclass(frozen=True)
class NvmlDevice:
    """A card as NVML shows it; None where the driver does not tell."""

    uuid: str
    name: str
    total: int
    used: int
    compute_mode: int | None = None
    mig: tuple[int, int] | None = None  # now, and after the next reset
    instances: tuple[str, ...] = ()  # UUIDs of MIG instances
    clock_reasons: int | None = None  # bits: why the clocks are not higher
    processes: tuple[NvmlProcess, ...] = ()


@dataclass(frozen=True)
class NvmlView:
    failure: str | None = None  # as in CudaView
    error: str | None = None
    error_code: int = 0
    driver: str = ""
    devices: tuple[NvmlDevice, ...] = ()

    @property
    def works(self) -> bool:
        return self.failure is None and self.error is None


@dataclass(frozen=True)
class Preload:
    """One entry of LD_PRELOAD or of the loader's own list."""

    entry: str
    origin: str  # where it stands
    exists: bool
    machine: int | None  # of its ELF header; None where it has none
    searched: bool = False  # the loader looks for it, in places that only it knows

    @property
    def is_ours(self) -> bool:
        return self.entry.rpartition("/")[2].startswith("libnvshare")


@dataclass(frozen=True)
class LibraryFacts:
    path: str | None = None  # libnvshare.so of this installation
    missing: str | None = None  # why there is none
    machine: int | None = None
    own_machine: int | None = None  # of the programs here
    preloads: tuple[Preload, ...] = ()


@dataclass(frozen=True)
class Holder:
    """A process that has memory on a card and is no client, or a client that was stopped and cannot give any up."""

    uuid: str
    pid: int
    name: str  # empty: it cannot be seen from here
    bytes: int | None
    preloaded: bool = False
    graphics: bool = False
    stopped: bool = False  # a client


@dataclass(frozen=True)
class SocketFile:
    is_socket: bool
    owner: str
    owned_by_us_or_root: bool
    mode: int
    directory_open: bool  # others may replace what is in its directory


@dataclass(frozen=True)
class SchedulerFacts:
    """``answer`` is one of: answers, absent, dead, denied, other version, foreign, silent, unusable."""

    socket: str
    chosen_by: str  # NVSHARE_SOCK, system, user or simulated node
    answer: str
    detail: str = ""  # in words, where it does not answer
    file: SocketFile | None = None
    release: str = ""
    pid: int = 0
    owner: str = ""
    cards: tuple[str, ...] = ()
    clients: int = 0
    kept: dict[str, str] = field(default_factory=dict)  # leases that have ended and whose place is not free, and why
    accounted: dict[str, int] = field(default_factory=dict)  # bytes of each card of which it knows who has them
    elsewhere: dict[str, str] = field(default_factory=dict)  # cards that another scheduler has, and which
    stopped: bool = False  # by a signal


@dataclass(frozen=True)
class Kubelet:
    """The directory in which a node's device plugins have their sockets."""

    directory: str
    readable: bool
    sockets: tuple[str, ...]  # those that somebody listens on


@dataclass(frozen=True)
class HostFacts:
    container: str | None = None  # the kind of container that we are in
    root: bool = False
    kernel_module: bool = False
    closed_devices: tuple[str, ...] = ()  # device files of the driver that we may not open
    memory_total: int | None = None
    memory_budget: int | None = None  # of it for what has left the cards
    memory_limit: int | None = None  # of our control groups
    locked_limit: int | None = None  # None: unlimited
    address_limit: int | None = None
    shm_total: int | None = None
    mps: tuple[int, ...] = ()  # processes of the MPS daemon
    kubelet: Kubelet | None = None


@dataclass(frozen=True)
class EnvironmentFacts:
    """What the variables around us say."""

    visible: str | None = None  # CUDA_VISIBLE_DEVICES
    order: str | None = None  # CUDA_DEVICE_ORDER
    takes_part: tuple[str, ...] = ()  # variables that say that programs started here are to share
    simulated: bool = False
    unusable: tuple[str, ...] = ()  # settings that nvshare cannot use, in words
    unknown: tuple[str, ...] = ()  # variables that look like settings of nvshare and are none


@dataclass(frozen=True)
class Facts:
    release: str
    environment: EnvironmentFacts
    host: HostFacts
    native: CudaView  # with every card visible and nothing preloaded
    here: CudaView  # of a program started from this shell
    shared: CudaView  # of a program started by `nvshare run`
    nvml: NvmlView
    library: LibraryFacts
    scheduler: SchedulerFacts
    holders: tuple[Holder, ...] = ()
