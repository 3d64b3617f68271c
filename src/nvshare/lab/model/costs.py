"""What software costs, in seconds. Measured with real processes on a simulated card at life speed; see each line.

They are small against kernels of milliseconds; they are here so that the model does not promise exactly 1.
"""

from __future__ import annotations

LAUNCH = 2e-6  # one launch by the workload program (Python and the driver), native
LAUNCH_SHARED = 0.1e-6  # what libnvshare.so adds to a launch, its share of a measured one included
WAKE = 40e-6  # from the end of work on the card until a thread that waits for it runs
MESSAGE = 50e-6  # one message between a task and the scheduler, one way, handling included
REGISTRATION = 1e-3  # connecting to the scheduler, beyond the messages
IDLE_RELEASE = 0.02  # a task whose turn others wait for gives it up after so long without work
PACED_WORK = 0.05  # work in flight while in exclusive turns
USAGE_PERIOD = 0.25  # between two reports of a task's counters
FREE_WINDOW = 1024  # the pending-kernel window of a task that runs freely
