"""Before workers start: does a process that is given these GPUs really see them, and nothing else?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from nvshare.launch.address import Address
from nvshare.launch.errors import WrongDevice
from nvshare.launch.orders import with_package

_TIMEOUT = 60.0


def validate(address: Address, uuids: Sequence[str]) -> None:
    """``WrongDevice`` when a process with just these cards (none: the CPU only) sees something else."""
    environment = {name: value for name, value in address.environment.items() if name != "LD_PRELOAD"}
    environment.update(CUDA_VISIBLE_DEVICES=",".join(uuids), CUDA_DEVICE_ORDER="PCI_BUS_ID", **with_package())
    try:
        probe = subprocess.run(
            [sys.executable, "-m", "nvshare.launch.seen"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise WrongDevice(f"a process cannot look at the GPUs: {error}") from error
    seen, wanted = probe.stdout.split(), list(uuids)
    # Only the first MIG instance is ever shown to a process, and drivers differ in how they name it.
    if any(uuid.startswith("MIG-") for uuid in wanted):
        wanted, seen = wanted[:1], [uuid.replace("GPU-", "MIG-") for uuid in seen]
    if seen != wanted:
        raise WrongDevice(f"a process that is given {', '.join(wanted) or 'no GPU'} sees {', '.join(seen) or 'no GPU'}")
