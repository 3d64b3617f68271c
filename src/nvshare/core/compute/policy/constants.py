"""Every constant that decides how compute is shared, in the scheduler and in the library.

All are seconds unless the comment says otherwise. docs/compute.md has the same table with the reasons. ``make
generate`` writes those that the library needs to ``native/include/compute_constants.h``.
"""

from __future__ import annotations

# Slices
SLICE = 0.02  # the longest slice beside tasks that think
LONGEST = 0.04  # the longest slice where all are busy
CYCLE = 0.2  # every busy group has a slice in this time, whatever its share
GRAIN = 0.002  # the shortest slice, and the work of one that may still run when the next slice begins
LONG = 0.1  # the most a group is owed when it wakes up; a wait for work that is longer is not usual
FOR_WAKER = 0.25  # (part) of a slice that a waking task is owed before the holder gives way
FOR_TURN = 0.5  # (part) of a slice that any other task is owed

# Work in flight, which nobody can take back
IN_FLIGHT = 0.0013  # beside others of which one thinks: two kernels of a millisecond
IN_FLIGHT_BUSY = 0.004  # where all are busy; twice as much where nobody waits
IN_FLIGHT_URGENT = 0.0004  # beside a task of high priority
IN_FLIGHT_LOOSE = 0.05  # of a launch-bound task, and in an exclusive turn

# How a task uses the card
PAUSE = 0.001  # a longer gap in the work is a host phase
THINKS = 0.9  # (part) of the card; a task that would use less thinks
BRIEF = 0.0035  # tasks with shorter bursts run freely
BURSTS = 4  # (number) over which bursts and host phases are averaged
LAUNCH_BOUND_BELOW = 0.60  # (part) of the time used alone in which the card was at work
BUSY_ABOVE = 0.75  # (part) the same, to be taken for busy again
EVIDENCE = 0.06  # of use alone, before a task's kind is judged
ACTIVE_FOR = 2.0  # after its last use of the card a task counts as active
LOOK_AGAIN_MAX = 60.0  # until a task that runs freely is measured again

# Clients that do not answer, and kernels that do not end
STUCK = 1.0  # after a slice, until its work counts as running on
ENDS_BY = 10.0  # the longest wait for work in flight, and for a debt

# What the library looks at
TINY = 0.000008  # shorter kernels are over before the host has submitted the next, or measured them
SOON = 0.00002  # the GPU answers an event behind nothing, and a call that submits returns
OFTEN = 0.0001  # between two looks where an end is near
NEAR = 0.004  # between two looks for the end of a turn; of GPU time, for each submission that is measured
RARELY = 0.02  # between two looks where no end is near; the shortest pause that ends a turn
USUAL = 4  # (number) typical lengths of a submission
ROUND = 16  # (number) samples of an average, and submissions until the next attempt where one told nothing
WINDOW_SMALL = 256  # (number) submissions in flight within a small budget
