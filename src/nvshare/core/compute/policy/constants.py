"""Every constant of compute sharing in the scheduler, in one place. docs/compute.md has the same table with reasons.

All are seconds unless the comment says otherwise.
"""

from __future__ import annotations

# Slices
SLICE = 0.02  # the longest slice beside tasks that think; wakers of less lag wait so long
LONGEST = 0.04  # the longest slice where all are busy: each change of task loses up to half a millisecond of the card
SHORTEST = 0.002  # a shorter slice loses more than it gives
CYCLE = 0.2  # every busy group has a slice in this time, whatever its share
MOST_LAG = 0.1  # the most a group is owed when it wakes up

# Work in flight, which nobody can take back
IN_FLIGHT = 0.0013  # in a slice, beside others of which one thinks; two kernels of a millisecond
IN_FLIGHT_BUSY = 0.004  # in a slice, where all are busy: nobody wakes up, and long kernels follow one another at once
IN_FLIGHT_URGENT = 0.0004  # in a slice, beside a client of high priority
IN_FLIGHT_ALONE = 0.008  # nobody waits for it, and a host that hesitates does not let the card fall idle
IN_FLIGHT_LOOSE = 0.05  # of a launch-bound client, which a close watch would only slow down
HANDOVER = 0.002  # so much of a slice may still be in flight when the next one begins

# How a client uses the card
PAUSE = 0.001  # a gap in the work that is longer is a host phase
PATIENCE = 0.0002  # the same for a client whose host phases are known to be long
THINKS = 0.9  # (part) of the card that a client would use alone; one that would use less thinks
BRIEF = 0.0035  # bursts below 3 ms are better left free; what is measured is a little longer
BURSTS = 4  # (number) over which bursts and host phases are averaged
LAUNCH_BOUND_BELOW = 0.60  # (part) of the time used alone in which the card was at work
BUSY_ABOVE = 0.75  # (part) the same, to be taken for busy again
EVIDENCE = 0.06  # of use alone, before a client's kind is judged
LOOK_AGAIN = 4.0  # until a client that runs freely is measured again; twice as long each time
LOOK_AGAIN_MAX = 60.0
ACTIVE_FOR = 2.0  # after its last use of the card a client counts as active
BACKLOG = 0.25  # after it began to take slices, what a client had submitted freely may run on

# Clients that do not answer, and kernels that do not end
SPEAK_BY = 1.5  # after the end of a slice; the library gives up a drain after one
ENDS_BY = 10.0  # after work in flight was due; also the longest wait for a debt

MEMORY_TURNS = 4  # (number) turns of others for which a cap's credit is kept where memory takes turns
