# For type checkers: the module itself imports nothing until a name is used.
from nvshare.launch import CannotStart as CannotStart
from nvshare.launch import CleanupFailed as CleanupFailed
from nvshare.launch import Cores as Cores
from nvshare.launch import DeviceOutOfMemory as DeviceOutOfMemory
from nvshare.launch import Finished as Finished
from nvshare.launch import GpuPool as GpuPool
from nvshare.launch import LaunchError as LaunchError
from nvshare.launch import Lease as Lease
from nvshare.launch import LeaseLost as LeaseLost
from nvshare.launch import LeaseRefused as LeaseRefused
from nvshare.launch import LeaseTimeout as LeaseTimeout
from nvshare.launch import NoGpu as NoGpu
from nvshare.launch import OutOfMemory as OutOfMemory
from nvshare.launch import QuotaOutOfMemory as QuotaOutOfMemory
from nvshare.launch import Sight as Sight
from nvshare.launch import WorkerKilled as WorkerKilled
from nvshare.launch import WorkerTimeout as WorkerTimeout
from nvshare.launch import WrongDevice as WrongDevice
from nvshare.launch import alease as alease
from nvshare.launch import check as check
from nvshare.launch import lease as lease
from nvshare.launch import run as run

__all__: list[str]
__version__: str
