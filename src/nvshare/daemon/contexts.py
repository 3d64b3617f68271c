"""What a client's CUDA context really costs: what NVML says its process takes, less what it allocated.

A client is granted bytes before it allocates them and reports them released after it freed them, so what we have on
record is never less than what it holds, and the difference never more than the context. The largest of the last few
samples is therefore the best estimate. The first one is taken when the client first asks for memory: it has a context
then and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from nvshare.core import commands, events
from nvshare.core.sleep.state import Outcome
from nvshare.gpu.cards import ProcessMemory

SAMPLES = 10
WORTH_REPORTING = 1 << 20  # bytes; smaller changes are noise


class _Held:
    """One client on one GPU."""

    __slots__ = ("asleep", "granted", "released", "reported", "resident", "samples")

    def __init__(self, allocated: int, resident: int) -> None:
        self.granted = allocated
        self.resident = resident
        self.released = 0
        self.asleep = False  # or on its way
        self.samples: deque[int] = deque(maxlen=SAMPLES)
        self.reported = 0

    @property
    def allocated(self) -> int:
        return self.granted - self.released

    @property
    def is_whole(self) -> bool:
        return self.resident == self.allocated and not self.asleep


Recorded = dict[tuple[int, str], int]


class ContextMeter:
    """Follows the events and commands that change what clients hold, and turns samples into ``ContextMeasured``."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], _Held] = {}

    def watch_event(self, event: events.Event) -> None:
        """Called with every event before the core sees it."""
        if isinstance(event, events.MemoryUpdated):
            held = self._held.get((event.client, event.gpu))
            if held is not None:
                held.released = event.released
                held.resident = event.resident
        elif isinstance(event, (events.ClientRegistered, events.GpuAttached)):
            for gpu in event.gpus:
                self._held[event.client, gpu.gpu] = _Held(gpu.allocated, gpu.resident)
            self._note_sleep(event.client, isinstance(event, events.ClientRegistered) and event.asleep)
        elif isinstance(event, events.SleepEnded):
            self._note_sleep(event.client, event.outcome is Outcome.ASLEEP)
        elif isinstance(event, events.WakeEnded):
            self._note_sleep(event.client, event.error != 0)
        elif isinstance(event, events.ClientGone):
            for key in [key for key in self._held if key[0] == event.client]:
                del self._held[key]

    def watch_command(self, command: commands.Command) -> None:
        """Called with every command that is carried out."""
        if isinstance(command, commands.GrantMemory):
            held = self._held.get((command.client, command.gpu))
            if held is not None:
                held.granted += command.bytes
        elif isinstance(command, commands.GoToSleep):
            self._note_sleep(command.client, True)

    def _note_sleep(self, client: int, asleep: bool) -> None:
        for (owner, _), held in self._held.items():
            if owner == client:
                held.asleep = asleep

    def recorded(self) -> Recorded:
        """What each client has allocated by our record; taken before a sample and given back with it.

        Only of clients that have all of it on the card, and their contexts: while they move, what NVML says proves
        nothing.
        """
        return {key: held.allocated for key, held in self._held.items() if held.is_whole}

    def measured(
        self, now: float, before: Recorded, taken: ProcessMemory, pid_of: Callable[[int], int]
    ) -> Iterable[events.ContextMeasured]:
        """The estimates that changed, after a sample of what processes take by (GPU, pid)."""
        for (client, gpu), held in self._held.items():
            used = taken.get((gpu, pid_of(client)))
            allocated = before.get((client, gpu))
            if not used or allocated is None or not held.is_whole:
                continue
            # Memory may have come or gone while the sample was taken: the larger record keeps the bound.
            held.samples.append(max(0, used - max(allocated, held.allocated)))
            estimate = max(held.samples)
            if abs(estimate - held.reported) >= WORTH_REPORTING:
                held.reported = estimate
                yield events.ContextMeasured(now, client, gpu, estimate)
