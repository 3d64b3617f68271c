"""What software costs, in seconds, and what the library waits for.

The first part comes from a few short runs on a busy two-core machine with the simulated driver: right in size, not to
the digit. These costs are small against kernels of milliseconds; they are here so that the model does not promise
exactly 1. The second part is what the library does by design; ``native/interposer`` has the same numbers.
"""

from __future__ import annotations

from nvshare.gpu.profiles import Profile

LAUNCH = 1.8e-6  # one launch by the workload program, Python and driver: 1.7 to 1.9 us without the library
LAUNCH_SHARED = 0.2e-6  # what libnvshare.so adds to it: 1.9 to 2.0 us with it
WAKE = 40e-6  # from the end of work on the card until a waiting thread runs: median of 40, without the library
MESSAGE = 50e-6  # one way; chosen: an allocation (two messages) took 46 to 54 us, a first launch (two) 156 to 212 us
REGISTRATION = 5e-3  # connecting and being identified: a context took 4.8 and 6.1 ms, 0.1 ms without the library

IDLE_RELEASE = 0.02  # a task whose turn others wait for gives it up after so long without work
PACED_WORK = 0.05  # work in flight while in exclusive turns
USAGE_PERIOD = 0.25  # between two reports of a task's counters
FREE_WINDOW = 1024  # the pending-kernel window of a task that runs freely

# Compute turns. From a message to the first launch it takes MESSAGE and OPEN_GATE; daemon_scale measures some 150 us
# from a request to its answer.
OPEN_GATE = 0.1e-3  # until a thread that waits at the gate runs again
SEE_END = 0.1e-3  # from the end of the last work of a turn until the library has seen it
TURN_IDLE = 1.5e-3  # a turn that has a length is given up after so long without work
SHORT_GAP = 1e-3  # a gap up to this counts as used

# Moving memory, in the same sizes as native/interposer; what the driver's calls take is in the card's profile.
GRANULE = 2 << 20  # an allocation counts as whole granules
CHUNK = 128 << 20


def mapping(profile: Profile) -> float:
    """Giving an address memory."""
    return profile.mem_create + profile.mem_map + profile.mem_set_access


def unmapping(profile: Profile) -> float:
    """Taking the memory behind an address away."""
    return profile.mem_unmap + profile.mem_release


def registration(profile: Profile, size: int) -> float:
    """Page-locking host memory, before bytes leave for the first time."""
    return profile.host_register_per_gib * size / (1 << 30)
