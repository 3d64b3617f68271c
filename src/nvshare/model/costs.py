"""What software costs, in seconds, and the library's sizes.

Costs come from a few short runs on a busy two-core machine with the simulated driver: right in size, not to the digit.
They are small against kernels of milliseconds, and are here so that the model does not promise exactly 1.

What the library decides is decided by its own code (``machine.py``). In which sizes it moves memory is what
``native/interposer`` says; a test compares them.
"""

from __future__ import annotations

from nvshare.gpu.profiles import Profile

# Measured.
LAUNCH = 1.8e-6  # one launch by the workload program, Python and driver: 1.7 to 1.9 us without the library
LAUNCH_SHARED = 0.2e-6  # what libnvshare.so adds to it: 1.9 to 2.0 us with it
WAKE = 40e-6  # from the end of work on the card until a waiting thread runs: median of 40, without the library
REGISTRATION = 5e-3  # connecting and being identified: a context took 4.8 and 6.1 ms, 0.1 ms without the library

# Chosen to agree with what was measured.
MESSAGE = 50e-6  # one way: an allocation (two messages) took 46 to 54 us, a first launch (two) 156 to 212 us
OPEN_GATE = 0.1e-3  # from a slice that is given until a thread that waits at the gate runs again
SEE_END = 0.1e-3  # from the end of the last work of a slice until the library has seen it
SEE_IDLE = 0.2e-3  # from the end of a burst until the library has seen it

# The library's own.
PACED_WORK = 0.05  # work in flight while in exclusive turns
USAGE_PERIOD = 0.25  # between two reports of a task's counters
FREE_WINDOW = 1024  # submissions in flight of a task that runs freely
GRANULE = 2 << 20  # an allocation counts as whole granules
CHUNK = 128 << 20  # the unit in which memory moves


def mapping(profile: Profile) -> float:
    """Giving an address memory."""
    return profile.mem_create + profile.mem_map + profile.mem_set_access


def unmapping(profile: Profile) -> float:
    """Taking the memory behind an address away."""
    return profile.mem_unmap + profile.mem_release


def registration(profile: Profile, size: int) -> float:
    """Page-locking host memory, before bytes leave for the first time."""
    return profile.host_register_per_gib * size / (1 << 30)
