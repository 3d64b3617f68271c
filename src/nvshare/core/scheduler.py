"""The scheduler: ``handle(event)`` is the one door through which its state changes.

It never raises on an event: what concerns an unknown client or card is ignored with a log line, and a client that
breaks the rules is expelled with a reason. ``selection.py`` says whose turn it is, ``turns.py`` carries it out,
``residency.py`` whose memory is on the cards, ``ledger.py`` books it, ``limits.py`` keeps quotas, ``floors.py`` says
what is guaranteed on each card, ``leases.py`` keeps reservations, ``members.py`` who belongs to which group,
``awaited_facts.py`` what waits for facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nvshare.core import events
from nvshare.core.awaited_facts import AwaitedFacts
from nvshare.core.commands import (
    Command,
    Expel,
    Fault,
    GroupAppeared,
    Level,
    Log,
    Refuse,
    Registered,
    RunGranted,
    SchedOff,
    SchedOn,
    WakeAt,
)
from nvshare.core.compute.slices import Slices
from nvshare.core.floors import Floors
from nvshare.core.invariants import check
from nvshare.core.leases import Leases
from nvshare.core.limits import Limits
from nvshare.core.members import Members
from nvshare.core.memory import ledger
from nvshare.core.memory.headroom import MIB
from nvshare.core.memory.policy.demand import measured
from nvshare.core.memory.turns import Turns
from nvshare.core.policy.membership import Process, pod_group, run_group
from nvshare.core.settings import MAX_GPUS, SIZE_MAX, Settings
from nvshare.core.sleep.lifecycle import State
from nvshare.core.sleep.sleepers import Sleepers
from nvshare.core.snapshot import Share, Snapshot, share, take
from nvshare.core.state import Attachment, Client, GpuState, Group, Node

SETTLING_ROUNDS = 8  # at most, of one event; two have always been enough
GRANT_MAX = 1 << 62  # of a claimed grant number; leaves room on the wire for all numbers above it


class Scheduler:
    def __init__(self, settings: Settings = Settings()) -> None:  # noqa: B008 (frozen)
        self._node = Node(settings)
        self._turns = Turns(self._node)
        self._slices = Slices(self._node)
        self._sleepers = Sleepers(self._node, self._turns)
        self._floors = Floors(self._node)
        self._limits = Limits(self._node, self._floors)
        self._wake: float | None = None
        self._members = Members(self._node)
        self._leases = Leases(self._node, self._limits, self._members, self._floors)
        self._awaited = AwaitedFacts(self._node)
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.GpuAdded: self._gpu_added,
            events.ClientRegistered: self._client_registered,
            events.GpuAttached: self._gpu_attached,
            events.ClientGone: self._client_gone,
            events.LockRequested: self._lock_requested,
            events.LockReleased: self._lock_released,
            events.SliceRequested: self._slice_requested,
            events.SliceOver: self._slice_over,
            events.MemoryRequested: self._memory_requested,
            events.MemoryKept: self._memory_kept,
            events.MemoryUpdated: self._memory_updated,
            events.SleepableSaid: self._sleepable_said,
            events.SleepEnded: self._of_client(self._sleepers.ended),
            events.WakeRequested: self._of_client(lambda client, event: self._sleepers.requested(client, event.order)),
            events.WakeEnded: self._of_client(
                lambda client, event: self._sleepers.woken(client, event.order, event.error)
            ),
            events.SleepOrdered: self._of_client(lambda client, event: self._sleepers.order(client)),
            events.WakeOrdered: self._of_client(lambda client, event: self._sleepers.call(client)),
            events.ContextMeasured: self._context_measured,
            events.UnmanagedSeen: self._unmanaged_seen,
            events.UsageReported: self._usage_reported,
            events.SettingsChanged: self._settings_changed,
            events.SettingsReset: self._settings_reset,
            events.CardsSampled: self._cards_sampled,
            events.RunOpened: self._run_opened,
            events.RunAwaited: self._run_awaited,
            events.RunClosed: self._run_closed,
            events.PodSeen: self._pod_seen,
            events.PodGone: self._pod_gone,
            events.PodsListed: self._pods_listed,
            events.LimitsChanged: self._limits_changed,
            events.LeasesAwaited: self._leases.await_holders,
            events.LeaseRequested: self._leases.request,
            events.LeaseReleased: self._leases.release,
            events.TimerFired: self._timer_fired,
        }

    @property
    def settings(self) -> Settings:
        return self._node.settings

    def handle(self, event: events.Event) -> list[Command]:
        """Take in one event; the commands that follow from it, to be carried out in this order."""
        node = self._node
        commands: list[Command] = []
        node.commands = commands
        node.story.append((event, commands))
        node.now = max(node.now, event.now)
        self._handlers[type(event)](event)
        if self._awaited.is_due():
            self._wait_no_longer()
        self._settle_floors()
        self._settle()
        self._set_wake()
        return commands

    def _settle_floors(self) -> None:
        """Bring floors into force where there is room, then serve leases that waited for it."""
        freed = True
        while freed:
            changed, freed = self._floors.settle()
            if changed:
                self._slices.quotas_changed(*changed)
            if freed:
                self._leases.serve()

    def _settle(self) -> None:
        """Compute what follows from the event until nothing changes. Credit is looked at again once turns and slices
        are settled: only then is it known who contends and who owes what."""
        self._spare_memory()
        for _ in range(SETTLING_ROUNDS):
            self._turns.settle()
            self._slices.settle()
            if not (self._sleepers.settle() | self._spare_memory()):
                return

    def _spare_memory(self) -> bool:
        """On an oversubscribed card, end the turn of a client without compute credit while a client with credit waits.
        True: something changed, so turns have to be settled again."""
        acted = False
        for gpu in self._slices.short_of_credit():
            if self._slices.note_throttled(gpu):
                self._turns.reconsider(gpu)
                acted = True
            for client in self._slices.idle_holders(gpu):
                self._turns.cut_short(client)
                acted = True
        return acted

    def _set_wake(self) -> None:
        """One timer for all."""
        alarms = (self._turns.alarms, self._slices.alarms, self._sleepers.alarms)
        due = (*(each.next() for each in alarms), self._awaited.next())
        at = min((at for at in due if at is not None), default=None)
        if at != self._wake:
            self._wake = at
            self._node.commands.append(WakeAt(at))

    def validate(self) -> None:
        """Raise ``InvariantBroken``, with the recent story, when the state contradicts itself or a guarantee."""
        check(self._node, self._turns, self._slices, self._sleepers)

    def why_awake(self, client: int) -> str | None:
        """Why a client cannot be put to sleep, in words; None: it can, or sleeps already."""
        return self._sleepers.why_not(self._node.clients[client])

    def snapshot(self, now: float) -> Snapshot:
        """What ``status`` shows; a query."""
        return take(self._node, now)

    def has_group(self, name: str) -> bool:
        """Whether a group has clients or is open."""
        return name in self._node.groups

    def why_without_floor(self, group: str) -> str | None:
        """Why a group is not guaranteed its floor on all of its cards, in words; None: it is, or is not there."""
        found = self._node.groups.get(group)
        return None if found is None else self._floors.shortage(found)

    def share(self, process: Process, gpu: str) -> Share | None:
        """What the task around a process has of a card; cheap. The process need not be a client."""
        group = self._members.around(process)
        return None if group is None else share(self._node, group, gpu)

    def named(self, kind: str, name: str) -> tuple[str, ...]:
        """The groups that an operator means by ``client``, ``pid``, ``pod``, ``run`` or ``lease`` and a name. More than
        one only where several runs or leases are called so."""
        return self._members.named(kind, name)

    def clients_named(self, kind: str, name: str) -> tuple[int, ...]:
        """The clients that an operator means: one by ``client`` or ``pid``, else all of the groups so named."""
        return self._members.clients_named(kind, name)

    def depends_on_environment(self, process: Process) -> bool:
        """Whether ``Process.lease`` of a process may decide which group it belongs to."""
        return self._members.depends_on_environment(process)

    # --- cards

    def _gpu_added(self, event: events.GpuAdded) -> None:
        node = self._node
        declared = event.total if event.declared is None else event.declared
        if not (0 < event.total <= SIZE_MAX and 0 < declared <= SIZE_MAX):
            self._log(
                Level.WARN,
                f"Ignored GPU {event.gpu} with {event.total} bytes, {declared} of them declared: "
                f"both must be between 1 and {SIZE_MAX}",
            )
            return
        gpu = node.gpus.get(event.gpu)
        if gpu is None:
            gpu = node.gpus[event.gpu] = GpuState(event.gpu, event.total)
            node.gpus = dict(sorted(node.gpus.items()))
        gpu.total, gpu.name, gpu.declared = event.total, event.name, event.declared
        gpu.contexts_inside = event.contexts_inside and event.declared is not None
        self._capacity_changed(gpu)
        self._leases.serve()
        self._turns.reconsider(gpu)

    def _capacity_changed(self, gpu: GpuState) -> None:
        ledger.recompute_capacity(gpu, self._node.settings)
        self._limits.announce_card(gpu)

    def _context_measured(self, event: events.ContextMeasured) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is None:
            return
        if not 0 <= event.bytes <= SIZE_MAX:
            self._log(Level.WARN, f"Ignored a context of {event.bytes} bytes of client {attachment.client.hex}")
            return
        if not attachment.client.sleep.is_here:
            return  # it was measured on its way
        ledger.measure_context(attachment, event.bytes, self._node.settings)
        self._limits.announce_card(attachment.gpu)
        self._turns.reconsider(attachment.gpu)

    def _unmanaged_seen(self, event: events.UnmanagedSeen) -> None:
        gpu = self._node.gpus.get(event.gpu)
        if gpu is None:
            self._log(Level.DEBUG, f"Ignored users of unknown GPU {event.gpu}")
            return
        taken = sum(user.bytes or 0 for user in event.users)
        if any(user.bytes is not None and user.bytes < 0 for user in event.users) or taken > SIZE_MAX:
            self._log(Level.WARN, f"Ignored {taken} bytes outside nvshare on GPU {event.gpu}, which cannot be")
            return
        self._log_newcomers(gpu, event.users)
        gpu.unmanaged, gpu.unmanaged_bytes = event.users, taken
        self._capacity_changed(gpu)
        self._turns.reconsider(gpu)

    def _log_newcomers(self, gpu: GpuState, users: Iterable[events.Unmanaged]) -> None:
        known = {(user.pid, user.name) for user in gpu.unmanaged}
        for user in users:
            if (user.pid, user.name) not in known:
                size = "an unknown amount" if user.bytes is None else f"{user.bytes // MIB} MB"
                self._log(
                    Level.INFO,
                    f"Process {user.pid} ({user.name}) uses {size} of GPU {gpu.uuid} outside nvshare: planned around",
                )

    # --- membership

    def _client_registered(self, event: events.ClientRegistered) -> None:
        node = self._node
        if event.client in node.clients or event.client in node.registering:
            self._expel(event.client, "registered twice; a process registers once and attaches further GPUs")
            return
        problem = self._problem(event.gpus, ())
        if problem is not None:
            self._expel(event.client, *problem)
        elif not self._awaited.holds(event):
            self._register(event)

    def _register(self, event: events.ClientRegistered) -> None:
        node = self._node
        if event.can_swap:
            self._require_turns(event.client, event.gpus, event.asleep)
        name = self._members.of(event.process, event.client)
        is_new = name not in node.groups
        in_pod = event.process.pod is not None
        client = node.clients[event.client] = Client(
            event.client,
            self._limits.group(name),
            event.process,
            event.name,
            event.pod_name if in_pod else "",
            event.pod_namespace if in_pod else "",
            event.can_swap,
            event.can_swap and event.oversize,
        )
        if event.asleep and event.can_swap:
            client.sleep.state = State.ASLEEP
        self._limits.join(client, event.mem_limit, event.core_limit, event.priority)
        self._slices.quotas_changed(client.group)
        node.commands.append(SchedOn(client.id) if node.settings.anti_thrash else SchedOff(client.id))
        self._attach(client, event.gpus)
        self._limits.send_cores(client)
        self._sleepers.joined(client)
        self._resume(client, event.gpus)
        if is_new:
            node.commands.append(GroupAppeared(name, None))
        node.commands.append(Registered(client.id, name))

    def _gpu_attached(self, event: events.GpuAttached) -> None:
        client = self._client(event.client)
        if client is None:
            return
        problem = self._problem(event.gpus, client.gpus)
        if problem is not None:
            self._expel(event.client, *problem)
            return
        if client.can_swap:
            self._require_turns(client.id, event.gpus, not client.sleep.is_here)
        self._attach(client, event.gpus)
        self._sleepers.attached(client)
        self._resume(client, event.gpus)

    def _problem(self, gpus: Iterable[events.HeldGpu], present: Iterable[str]) -> tuple[str, Fault] | None:
        """Why a client cannot have these GPUs beside those it has, in words for its owner."""
        seen = set(present)
        for held in gpus:
            if held.gpu not in self._node.gpus:
                known = ", ".join(self._node.gpus) or "none"
                return f"GPU {held.gpu!r} is not one of this scheduler's ({known})", Fault.UNKNOWN_GPU
            if held.gpu in seen:
                return f"GPU {held.gpu} is attached twice", Fault.MALFORMED
            seen.add(held.gpu)
            if not 0 <= held.resident <= held.allocated <= SIZE_MAX:
                claim = f"{held.resident} of {held.allocated} bytes resident on GPU {held.gpu}"
                return f"claims {claim}, which cannot be", Fault.LIMIT
            if not 0 <= held.grant <= GRANT_MAX:
                return f"claims grant {held.grant} on GPU {held.gpu}, a number that was never given", Fault.LIMIT
        if not 0 < len(seen) <= MAX_GPUS:
            return f"{len(seen)} GPUs, at least 1 and at most {MAX_GPUS} allowed", Fault.MALFORMED
        return None

    def _attach(self, client: Client, gpus: Iterable[events.HeldGpu]) -> None:
        namespace, name = client.pod
        for held in gpus:
            gpu = self._node.gpus[held.gpu]
            attachment = client.gpus[gpu.uuid] = gpu.attachments[client.id] = Attachment(client, gpu)
            client.group.cards[gpu.uuid] += 1
            self._floors.arrive(client.group, gpu)
            attachment.measured_at = client.active(self._node.now)
            attachment.compute.delivered.note(self._node.now, 0.0)
            attachment.asked_memory = held.allocated > 0
            ledger.adopt(attachment, held.allocated, held.resident)
            ledger.expect_context(attachment, self._node.settings)
            self._limits.send_memory(client, gpu)
            self._log(
                Level.INFO,
                f"Registered client {client.hex} on GPU {gpu.uuid} with Pod name = {name or 'none'}, "
                f"Pod namespace = {namespace or 'none'}",
            )
        client.gpus = dict(sorted(client.gpus.items()))
        self._slices.cards_changed(client)
        for attachment in client.gpus.values() if len(client.gpus) > 1 else ():
            attachment.gpu.gangs[client.id] = None

    def _require_turns(self, client: int, gpus: Sequence[events.HeldGpu], asleep: bool) -> None:
        """Memory or a context that is not on its card must wait for a turn there, so there must be turns."""
        away = asleep or any(held.resident < held.allocated for held in gpus)
        if away and not self._node.settings.anti_thrash:
            self._log(Level.WARN, f"Anti-thrash is on again: memory of client {client:016x} is not on its GPU")
            self._change(anti_thrash=True)

    def _resume(self, client: Client, gpus: Sequence[events.HeldGpu]) -> None:
        """What the client held under an earlier scheduler it holds on; new cards join its gang."""
        if self._node.settings.anti_thrash:
            whole = all(attachment.whole for attachment in client.gpus.values())
            for held in gpus:
                if held.grant and whole:
                    self._turns.adopt(client.gpus[held.gpu], held.grant)
                elif held.grant:
                    self._turns.disown(client.gpus[held.gpu], held.grant)
            self._turns.attached(client)
        for held in gpus:
            self._turns.reconsider(self._node.gpus[held.gpu])

    def _client_gone(self, event: events.ClientGone) -> None:
        if event.client in self._node.registering:
            self._awaited.forget(event.client)
            return
        client = self._client(event.client)
        if client is not None:
            self._remove(client)

    def _remove(self, client: Client) -> None:
        self._log(Level.INFO, f"Removing client {client.hex}")
        self._awaited.forget(client.id, client.gpus)
        self._slices.remove(client)
        self._turns.remove(client)
        self._sleepers.remove(client)
        del self._node.clients[client.id]
        for attachment in client.gpus.values():
            ledger.forget(attachment, self._node.settings)
            attachment.gpu.gangs.pop(client.id, None)
            self._limits.announce_card(attachment.gpu)
            self._turns.reconsider(attachment.gpu)
        self._limits.leave(client)
        self._slices.group_left(client.group)

    def _expel(self, client: int, reason: str, fault: Fault = Fault.LIMIT) -> None:
        known = self._node.clients.get(client)
        if known is None:
            self._awaited.forget(client)
            self._node.commands.append(Refuse(client, reason, fault))
            return
        self._node.commands.append(Expel(client, reason, fault))
        self._node.counters.expelled += 1
        self._log(Level.WARN, f"Expelled client {known.hex}: {reason}")
        self._remove(known)

    # --- waiting for facts

    def _wait_no_longer(self) -> None:
        """What has waited long enough goes on with what is known."""
        for registration in self._awaited.registrations_due():
            self._register(registration)
        self._answer_waiting()
        self._leases.wait_no_longer()

    def _answer_waiting(self, sample: int = 0) -> None:
        for waiting in self._awaited.requests_due(sample):
            for event in waiting.events:
                self._request_memory(waiting.attachment, event)

    def _cards_sampled(self, event: events.CardsSampled) -> None:
        self._answer_waiting(event.sample)
        self._awaited.order_again()

    # --- turns

    def _lock_requested(self, event: events.LockRequested) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is None:
            return
        self._sleepers.stir(attachment.client)
        if self._node.settings.anti_thrash:
            self._turns.request(attachment)
        else:
            self._log(Level.DEBUG, f"Ignored REQ_LOCK of client {attachment.client.hex}: anti-thrash is off")

    def _lock_released(self, event: events.LockReleased) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is not None:
            self._turns.release(attachment, event.grant, event.stuck)

    def _timer_fired(self, event: events.TimerFired) -> None:
        self._wake = None  # it is spent, whatever it was set to

    def _slice_requested(self, event: events.SliceRequested) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is not None:
            self._slices.request(attachment)

    def _slice_over(self, event: events.SliceOver) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is not None:
            self._slices.over(attachment, event)

    # --- sleep

    def _sleepable_said(self, event: events.SleepableSaid) -> None:
        client = self._client(event.client)
        if client is None:
            return
        if not 0 <= event.context <= SIZE_MAX:
            self._expel(event.client, f"says its context has {event.context} bytes, which cannot be")
            return
        self._sleepers.said(client, event.bar, event.context)
        for attachment in client.gpus.values():
            self._limits.announce_card(attachment.gpu)

    # --- memory

    def _memory_requested(self, event: events.MemoryRequested) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is None:
            return
        if event.bytes < 0:
            self._expel(event.client, f"asked for {event.bytes} bytes on GPU {event.gpu}")
            return
        self._sleepers.stir(attachment.client)
        for request in self._awaited.requests(attachment, event):
            self._request_memory(attachment, request)

    def _request_memory(self, attachment: Attachment, event: events.MemoryRequested) -> None:
        self._turns.memory.request(attachment, event.request, event.bytes, event.stays)
        self._turns.reconsider(attachment.gpu)

    def _memory_kept(self, event: events.MemoryKept) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is None:
            return
        if not 0 <= event.bytes <= attachment.allocated:
            self._expel(event.client, f"wants to keep {event.bytes} bytes on GPU {event.gpu}, which it has not")
            return
        self._sleepers.stir(attachment.client)
        self._turns.memory.keep(attachment, event.request, event.bytes)
        self._turns.reconsider(attachment.gpu)

    def _memory_updated(self, event: events.MemoryUpdated) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is None:
            return
        problem = _impossible(attachment, event)
        if problem is not None:
            self._expel(event.client, problem)
            return
        foreseen = event.pinned == attachment.pinned
        ledger.report(attachment, event.released, event.resident, event.host, event.pinned, event.applied)
        self._turns.memory_reported(attachment, foreseen)

    def _usage_reported(self, event: events.UsageReported) -> None:
        attachment = self._attachment(event.client, event.gpu)
        if attachment is None:
            return
        out, into = event.swapped_out, event.swapped_in
        if not (0 <= out <= SIZE_MAX and 0 <= into <= SIZE_MAX):
            self._expel(event.client, f"says it moved {max(out, into)} bytes of GPU {event.gpu}, which cannot be")
            return
        moved = max(0, out - attachment.swapped_out) + max(0, into - attachment.swapped_in)
        self._node.counters.swapped_bytes += moved
        attachment.swapped_out, attachment.swapped_in = out, into
        if event.occupied > attachment.occupied or event.submissions > attachment.submissions:
            self._sleepers.measured(attachment.client)
        self._slices.used(attachment, event.occupied)
        if (
            event.occupied > attachment.occupied or event.submissions == attachment.submissions
        ):  # else it is not measured yet
            active = attachment.client.active(event.now) - attachment.compute.waiting(event.now)
            demand = measured(attachment.demand, event.occupied - attachment.occupied, active - attachment.measured_at)
            attachment.measured_at = active
            self._turns.demand_changed(attachment, demand)
        attachment.occupied, attachment.submissions, attachment.window = event.occupied, event.submissions, event.window

    # --- settings and quotas

    def _settings_changed(self, event: events.SettingsChanged) -> None:
        reason = self.why_unchanged(event)
        if reason is None:
            self._change(**_changes(event))
        else:
            self._log(Level.WARN, f"Settings unchanged: {reason}")

    def _settings_reset(self, event: events.SettingsReset) -> None:
        settings = self._node.settings.as_started(self._node.configured)
        try:
            self._check_anti_thrash(settings.anti_thrash)
        except ValueError as error:
            self._log(Level.WARN, f"Settings unchanged: {error}")
        else:
            self._use(settings)

    def why_unchanged(self, event: events.SettingsChanged | events.LimitsChanged) -> str | None:
        """Why the settings or limits would stay as they are, all of them, for whoever wants to change them; None: they
        would not. Changes nothing."""
        if isinstance(event, events.LimitsChanged):
            return self._limits.why_unchanged(event)
        try:
            self._node.settings.changed(**_changes(event))
            self._check_anti_thrash(event.anti_thrash)
        except ValueError as error:
            return str(error)
        return None

    def _check_anti_thrash(self, wanted: bool | None) -> None:
        """Who runs without turns needs all of its memory on the card."""
        if wanted is not False:
            return
        for gpu in self._node.gpus.values():
            if gpu.lacking or gpu.pending:
                raise ValueError(
                    f"anti-thrash stays on while memory of tasks waits for GPU {gpu.uuid} "
                    f"({gpu.demand // MIB} MB for {gpu.capacity // MIB} MB); end some first"
                )

    def _change(self, **changes: Any) -> None:
        """``ValueError`` when they cannot be."""
        self._use(self._node.settings.changed(**changes))

    def _use(self, settings: Settings) -> None:
        node = self._node
        before = node.settings
        node.settings = settings
        if node.settings.anti_thrash is not before.anti_thrash:
            if not node.settings.anti_thrash:
                self._turns.suspend()
            answer = SchedOn if node.settings.anti_thrash else SchedOff
            node.commands.extend(answer(client) for client in node.clients)
        if node.settings != before:
            self._turns.settings_changed()
            self._slices.quotas_changed()

    def _run_opened(self, event: events.RunOpened) -> None:
        pid, name = event.process.pid, run_group(event.process.pid)
        self._limits.open(name, event.label, event.mem_limit, event.core_limit, event.priority)
        self._quotas_changed()
        self._members.open_run(event.process)
        self._node.commands += (RunGranted(pid, self._members.instead_of_run(pid)), GroupAppeared(name, pid))
        self._members.gather(pid)

    def _run_awaited(self, event: events.RunAwaited) -> None:
        self._members.open_run(event.process)

    def _run_closed(self, event: events.RunClosed) -> None:
        self._members.close_run(event.pid)
        self._close_group(run_group(event.pid))

    def _pod_seen(self, event: events.PodSeen) -> None:
        is_new = not self._node.knows_pod(pod_group(event.pod.uid))
        group = self._limits.pod_seen(event.pod)
        self._quotas_changed(group)
        if is_new:
            self._node.commands.append(GroupAppeared(group.id, None))
        for registration in self._awaited.registrations_of(event.pod.uid):
            self._register(registration)

    def _pod_gone(self, event: events.PodGone) -> None:
        self._close_group(pod_group(event.uid))

    def _pods_listed(self, event: events.PodsListed) -> None:
        self._node.pods_listed = True

    def _close_group(self, name: str) -> None:
        group = self._node.groups.get(name)
        self._limits.close(name)
        if group is not None:
            self._slices.group_left(group)

    def _limits_changed(self, event: events.LimitsChanged) -> None:
        self._limits.change(event)
        self._quotas_changed()

    def _quotas_changed(self, *groups: Group) -> None:
        """Of these groups, or of any: turns follow them, and requests that wait may be over them now."""
        self._slices.quotas_changed(*groups)
        for gpu in self._node.gpus.values():
            if gpu.pending:
                self._turns.reconsider(gpu)

    # --- looking things up

    def _client(self, client: int) -> Client | None:
        found = self._node.clients.get(client)
        if found is None:
            self._log(Level.DEBUG, f"Ignored a message of unknown client {client:016x}")
        return found

    def _of_client(self, handler: Callable[[Client, Any], None]) -> Callable[[Any], None]:
        """A handler of events that name a client."""

        def handle(event: Any) -> None:
            client = self._client(event.client)
            if client is not None:
                handler(client, event)

        return handle

    def _attachment(self, client: int, gpu: str) -> Attachment | None:
        found = self._client(client)
        if found is None:
            return None
        attachment = found.gpus.get(gpu)
        if attachment is None:
            self._log(Level.DEBUG, f"Ignored a message of client {found.hex} about GPU {gpu}: it never attached it")
        return attachment

    def _log(self, level: Level, text: str) -> None:
        self._node.commands.append(Log(level, text))


def _changes(event: events.SettingsChanged) -> dict[str, Any]:
    return {name: value for name, value in vars(event).items() if name != "now" and value is not None}


def _impossible(attachment: Attachment, event: events.MemoryUpdated) -> str | None:
    """Why a client's report about its memory cannot be true."""
    if not attachment.released <= event.released <= attachment.granted:
        return (
            f"says it released {event.released} bytes on GPU {event.gpu}, after {attachment.released} before "
            f"and with {attachment.granted} granted"
        )
    allocated = attachment.granted - event.released
    if not 0 <= event.resident <= allocated:
        return f"says {event.resident} bytes are resident on GPU {event.gpu}, with {allocated} allocated"
    if event.applied > attachment.number:
        return (
            f"says it keeps to target {event.applied} on GPU {event.gpu}, after {attachment.number} targets; "
            f"their numbers begin anew with each registration"
        )
    if not (0 <= event.host <= SIZE_MAX and 0 <= event.pinned <= SIZE_MAX):
        return f"says {max(event.host, event.pinned)} bytes are on the host or pinned, which cannot be"
    return None
