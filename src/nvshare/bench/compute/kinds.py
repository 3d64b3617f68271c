"""What the workers compute. The names are those of the rows; how a step is made differs by driver API and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

ADD = "add"  # one kernel that reads and writes memory
MATMUL = "matmul"  # cuBLAS, one kernel
SHORT = "short"  # one kernel of 0.2 ms
LONG = "long"  # a matmul of 3 to 4 ms
GRAPH = "graph"  # a CUDA graph of some twenty kernels
TRAINING = "training"  # forward, backward and optimizer of a small model
RESNET, TRANSFORMER = "resnet-50", "transformer"  # a training step of each, by PyTorch
SPIN, BURN = "spin", "burn"  # one kernel of a length that is set: on simulated cards, on real ones
LAUNCH = "launch-bound"  # tiny kernels back to back
BURSTY = "mostly idle"  # some work, some sleep
IRREGULAR = "mostly idle, irregular"  # the same, no two sleeps are equally long
FILLING = "launch-bound, while the core is free"  # the same, where nobody else wants the core
PAUSING = {quota: f"launch-bound, {quota} % of the time" for quota in (25, 50, 75)}  # then it sleeps
INTERACTIVE = "interactive"  # a little work every now and then; how long each takes counts

PAUSING_CYCLE = 0.18  # seconds, as of turns where there are quotas
MARK_SECONDS = 0.0015  # of work between two marks, or one step


@dataclass(frozen=True)
class Kind:
    """``steps`` names what one step is; ``work`` seconds of steps make a burst, ``sleep`` seconds follow it, or one
    begins every ``period`` seconds. Without, steps follow each other without end."""

    name: str
    steps: str
    work: float = 0.0
    sleep: float = 0.0
    irregular: bool = False  # sleeps are that long on average
    period: float = 0.0
    gives_way: bool = False  # to everybody else on its core

    @property
    def in_bursts(self) -> bool:
        return self.work > 0

    def batch(self, step_seconds: float) -> int:
        """Steps between two marks: a burst, or enough for a mark not to cost anything."""
        return max(1, round((self.work or MARK_SECONDS) / step_seconds))


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *(Kind(name, name) for name in (ADD, MATMUL, SHORT, LONG, GRAPH, TRAINING, LAUNCH)),
        Kind(FILLING, LAUNCH, gives_way=True),
        Kind(BURSTY, MATMUL, work=0.010, sleep=0.100),
        Kind(IRREGULAR, MATMUL, work=0.010, sleep=0.100, irregular=True),
        Kind(INTERACTIVE, MATMUL, work=0.005, period=0.100),
        *(
            Kind(name, LAUNCH, work=PAUSING_CYCLE * quota / 100, sleep=PAUSING_CYCLE * (1 - quota / 100))
            for quota, name in PAUSING.items()
        ),
    )
}
