"""The one list of metrics: name, type, help and labels. ``docs/monitoring.md`` shows it."""

from __future__ import annotations

from dataclasses import dataclass

CARD = ("gpu", "gpu_index")
TASK = (*CARD, "namespace", "pod", "run")


@dataclass(frozen=True)
class Family:
    """All series of one name. A gauge, unless it is a subclass."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    kind = "gauge"


class Count(Family):
    kind = "counter"


class Histogram(Family):
    kind = "histogram"


UP = Family("nvshare_up", "Whether the scheduler answered the last request for its status.")
BUILD = Family("nvshare_build_info", "The release of this exporter; always 1.", ("version",))
STATUS_REQUESTS = Count("nvshare_exporter_status_requests_total", "Requests for the scheduler's status.")
STATUS_FAILURES = Count(
    "nvshare_exporter_status_failures_total", "Requests for the scheduler's status that had no usable answer."
)
LEFT_OUT = Count("nvshare_exporter_left_out_series_total", "Series beyond the limit, added up over all looks.")

SCHEDULER_BUILD = Family("nvshare_scheduler_build_info", "The release of the scheduler; always 1.", ("version",))
STARTED = Family("nvshare_scheduler_start_time_seconds", "When the scheduler started, in seconds since 1970.")
CLIENTS = Family("nvshare_scheduler_clients", "Processes that are registered.")
CONNECTIONS = Family("nvshare_scheduler_connections", "Connections to the scheduler's socket.")
LEASES = Family("nvshare_scheduler_leases", "Leases, by state: waiting, held or quarantined.", ("state",))
POD_WATCH = Family("nvshare_scheduler_pod_watch_connected", "Whether a pod watch tells of the pods of this node.")
EVENTS = Count("nvshare_scheduler_events_total", "Events that the scheduler's core handled.")
OFFENCES = Count("nvshare_scheduler_offences_total", "What peers did wrong on the scheduler's socket.")
EXPELLED = Count("nvshare_scheduler_expelled_total", "Clients that were expelled.")
GRANTS = Count("nvshare_scheduler_grants_total", "Grants of a card to a client.")
DROPS = Count("nvshare_scheduler_drops_total", "Turns that the scheduler ended.")
LATENESS = Histogram(
    "nvshare_scheduler_loop_latency_seconds", "How late timers of the scheduler's event loop fired, in seconds."
)

CARD_INFO = Family("nvshare_card_info", "A card and its model; always 1.", (*CARD, "model"))
CARD_MEMORY = Family("nvshare_card_memory_total_bytes", "Memory that processes can have on the card.", CARD)
CARD_DECLARED = Family(
    "nvshare_card_memory_declared_bytes", "Memory that all tasks together may allocate, where it was declared.", CARD
)
CARD_CAPACITY = Family(
    "nvshare_card_memory_capacity_bytes", "Memory that all tasks together may have allocated now.", CARD
)
CARD_ALLOCATED = Family("nvshare_card_memory_allocated_bytes", "Memory that tasks have allocated.", CARD)
CARD_RESIDENT = Family("nvshare_card_memory_resident_bytes", "Memory of tasks that is on the card.", CARD)
CARD_CONTEXTS = Family("nvshare_card_memory_contexts_bytes", "Memory that the contexts of tasks take.", CARD)
CARD_UNMANAGED = Family(
    "nvshare_card_memory_unmanaged_bytes", "Memory of processes that are not under nvshare, as far as known.", CARD
)
CARD_OUTSIDERS = Family("nvshare_card_unmanaged_processes", "Processes on the card that are not under nvshare.", CARD)
CARD_RUNNING = Family("nvshare_card_running_clients", "Clients that hold a grant.", CARD)
CARD_WAITING = Family("nvshare_card_waiting_clients", "Clients that wait for their turn.", CARD)
CARD_TURNS = Family("nvshare_card_in_turns", "Whether clients take memory turns here (1) or run freely (0).", CARD)
CARD_QUANTUM = Family("nvshare_card_quantum_seconds", "Quantum of a turn that would begin now.", CARD)
CARD_STALL = Family("nvshare_card_stall_seconds", "Time for which a typical switch keeps the card from working.", CARD)
CARD_UTILIZATION = Family("nvshare_card_utilization_ratio", "Part of the time in which the card worked, by NVML.", CARD)
CARD_TEMPERATURE = Family("nvshare_card_temperature_celsius", "Temperature of the card, by NVML.", CARD)
CARD_POWER = Family("nvshare_card_power_watts", "Power that the card draws, by NVML.", CARD)

TASK_PROCESSES = Family("nvshare_task_processes", "Processes of the task on the card.", TASK)
TASK_ASLEEP = Family("nvshare_task_asleep_processes", "Processes of the task whose context is off the card.", TASK)
TASK_ALLOCATED = Family("nvshare_task_memory_allocated_bytes", "Memory that the task has allocated.", TASK)
TASK_RESIDENT = Family("nvshare_task_memory_resident_bytes", "Memory of the task that is on the card.", TASK)
TASK_HOST = Family("nvshare_task_memory_host_bytes", "Memory of the task that is in host memory.", TASK)
TASK_QUOTA = Family("nvshare_task_memory_quota_bytes", "Memory quota of the task on each card, where it has one.", TASK)
TASK_DELIVERED = Family(
    "nvshare_task_delivered_ratio", "Part of the last 10 s in which the task had unfinished work on the card.", TASK
)
TASK_FLOOR = Family("nvshare_task_floor_ratio", "Part of the card's time that the task is guaranteed now.", TASK)
TASK_CAP = Family("nvshare_task_cap_ratio", "Part of the card's time that the task may have; 1 without a quota.", TASK)
TASK_GPU_SECONDS = Count(
    "nvshare_task_gpu_seconds_total", "Seconds in which the task had unfinished work on the card.", TASK
)
TASK_WAITED = Count(
    "nvshare_task_waited_seconds_total",
    "Seconds that processes of the task waited, by reason: memory (their turn), slice, or quota (no credit).",
    (*TASK, "reason"),
)
TASK_SWITCHES = Count(
    "nvshare_task_switches_total", "How often the task took the card over from another client, in turns.", TASK
)
TASK_MOVED = Count(
    "nvshare_task_moved_bytes_total",
    "Memory of the task that was moved, by direction: in (to the card) or out.",
    (*TASK, "direction"),
)
TASK_DENIED = Count("nvshare_task_out_of_memory_total", "Requests of the task for memory that were refused.", TASK)
TASK_TIMEOUTS = Count("nvshare_task_drain_timeouts_total", "Drains of the task that passed their deadline.", TASK)

FAMILIES = tuple(family for family in list(globals().values()) if isinstance(family, Family))
