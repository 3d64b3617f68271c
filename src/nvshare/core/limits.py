"""Groups and their quotas: who belongs together, what they may have, and telling them when that changes."""

from __future__ import annotations

from collections import Counter

from nvshare.core.commands import Level, Log, SetCoreLimit, SetLimit
from nvshare.core.events import LimitsChanged, Pod
from nvshare.core.floors import Floors
from nvshare.core.memory.headroom import MIB, attainable
from nvshare.core.memory.policy.capacity import is_material
from nvshare.core.policy.membership import pod_group
from nvshare.core.settings import SIZE_MAX, Cores, Priority
from nvshare.core.state import Client, GpuState, Group, Node

FIELDS = frozenset({"mem_limit", "core_limit", "priority"})


class Limits:
    def __init__(self, node: Node, floors: Floors) -> None:
        self.node = node
        self.floors = floors

    def group(self, name: str) -> Group:
        """The group of that name, made where there is none."""
        found = self.node.groups.get(name)
        if found is None:
            found = self.node.groups[name] = Group(name)
        return found

    def join(self, client: Client, mem_limit: int | None, core_limit: Cores | None, priority: Priority) -> None:
        """The client belongs to its group now; what its environment says counts where the group has no value."""
        group = client.group
        group.clients[client.id] = client
        before = self._values(group)
        group.mem_limit.start_with(self._memory(mem_limit, group))
        group.core_limit.start_with(self._cores(core_limit, group))
        group.priority.start_with(priority if priority is not Priority.NORMAL else None)
        self._announce(group, before, but=client)

    def leave(self, client: Client) -> None:
        group = client.group
        del group.clients[client.id]
        group.cards -= Counter(client.gpus.keys())
        self.floors.changed(group)
        self._forget_if_empty(group)

    def open(
        self, name: str, label: str, mem_limit: int | None, core_limit: Cores | None, priority: Priority | None
    ) -> None:
        group = self.group(name)
        before = self._values(group)
        group.opened = True
        group.label = label
        group.mem_limit.opened = self._memory(mem_limit, group)
        group.core_limit.opened = self._cores(core_limit, group)
        group.priority.opened = priority
        self._announce(group, before)

    def pod_seen(self, pod: Pod) -> Group:
        """A pod's names, resources and annotations; where it has no client yet, there is nobody to tell."""
        group = self.group(pod_group(pod.uid))
        before = self._values(group)
        self._forget_name(group)
        group.opened = True
        group.pod = (pod.namespace, pod.name)
        self.node.pods_named["/".join(group.pod)] = group.id
        group.mem_limit.opened = self._memory(pod.gpumem, group)
        group.mem_limit.annotation = self._memory(pod.mem, group)
        group.core_limit.annotation = self._cores(pod.cores, group)
        if group.clients:
            self._announce(group, before)
        return group

    def close(self, name: str) -> None:
        group = self.node.groups.get(name)
        if group is None:
            self.node.commands.append(Log(Level.DEBUG, f"Ignored the end of unknown group {name}"))
            return
        self._forget_name(group)
        group.opened = False
        self.floors.changed(group)
        self._forget_if_empty(group)

    def _forget_name(self, group: Group) -> None:
        """The name may be that of a newer pod by now."""
        title = "/".join(group.pod or ())
        if self.node.pods_named.get(title) == group.id:
            del self.node.pods_named[title]

    def why_unchanged(self, event: LimitsChanged) -> str | None:
        """Why an operator's change is refused as a whole, in words; None: it is not."""
        group = self.node.groups.get(event.group)
        if group is None or event.core_limit is None or not event.core_limit.allowed or event.kept:
            return None
        hidden = group.core_limit.annotation is not None
        return None if hidden else self.floors.problem(group, event.core_limit.floor)

    def change(self, event: LimitsChanged) -> None:
        group, clear = self.node.groups.get(event.group), event.clear
        if group is None:
            self._warn(f"Ignored limits for unknown group {event.group}: it has no process and was not opened")
            return
        reason = self.why_unchanged(event)
        if reason is not None:
            self._warn(f"Limits unchanged: {reason}")
            return
        if clear - FIELDS:
            self._warn(f"Ignored {', '.join(sorted(clear - FIELDS))}: only {', '.join(sorted(FIELDS))} can be cleared")
        before = self._values(group)
        if "mem_limit" in clear:
            group.mem_limit.operator = None
        if "core_limit" in clear:
            group.core_limit.operator = None
        if "priority" in clear:
            group.priority.operator = None
        group.mem_limit.operator = self._memory(event.mem_limit, group) or group.mem_limit.operator
        group.core_limit.operator = self._cores(event.core_limit, group) or group.core_limit.operator
        if event.priority is not None:
            group.priority.operator = event.priority
        self._announce(group, before)

    def announce_card(self, gpu: GpuState) -> None:
        """Tell the clients of a card its size, if it changed enough to matter to them."""
        size = attainable(gpu)
        if is_material(gpu.announced, size, gpu.total, None if gpu.holds_contexts else gpu.declared):
            gpu.announced = size
            for attachment in gpu.attachments.values():
                self.send_memory(attachment.client, gpu)

    def send_memory(self, client: Client, gpu: GpuState) -> None:
        self.node.commands.append(SetLimit(client.id, gpu.uuid, client.group.mem_limit.effective, gpu.announced))

    def send_cores(self, client: Client) -> None:
        self.node.commands.append(SetCoreLimit(client.id, client.group.core_percent))

    def _announce(self, group: Group, before: tuple[int | None, Cores], but: Client | None = None) -> None:
        """Tell log and clients what changed; ``but`` is a newcomer who is told everything anyway."""
        memory, cores = self._values(group)
        if memory != before[0]:
            if before[0] is not None or but is None:
                self._info(f"Memory limit changed for {group.title}: {_megabytes(before[0])} -> {_megabytes(memory)}")
            for client in group.clients.values():
                if client is not but:
                    for attachment in client.gpus.values():
                        self.send_memory(client, attachment.gpu)
        if cores != before[1]:
            if but is None:
                self._info(f"Compute limit changed for {group.title}: {_difference(before[1], cores)}")
            for client in group.clients.values() if cores.cap != before[1].cap else ():
                if client is not but:
                    self.send_cores(client)
            self.floors.changed(group)

    def _values(self, group: Group) -> tuple[int | None, Cores]:
        return group.mem_limit.effective, group.cores

    def _memory(self, value: int | None, group: Group) -> int | None:
        if value is None or 0 < value <= SIZE_MAX:
            return value
        self._warn(f"Ignored memory limit {value} for {group.title}: between 1 byte and {SIZE_MAX} bytes")
        return None

    def _cores(self, value: Cores | None, group: Group) -> Cores | None:
        if value is None or value.allowed:
            return value
        self._warn(f"Ignored compute limit {value}% for {group.title}: between 1% and 100%, the floor at most the cap")
        return None

    def _forget_if_empty(self, group: Group) -> None:
        if not group.clients and not group.opened:
            del self.node.groups[group.id]

    def _info(self, text: str) -> None:
        self.node.commands.append(Log(Level.INFO, text))

    def _warn(self, text: str) -> None:
        self.node.commands.append(Log(Level.WARN, text))


def _megabytes(value: int | None) -> str:
    return "none" if value is None else f"{value // MIB} MB"


def _difference(before: Cores, after: Cores) -> str:
    """For the log; what is guaranteed only where that changed."""
    guaranteed = "" if before.floor == after.floor else f", guaranteed {before.floor}% -> {after.floor}%"
    return f"{before.cap}% -> {after.cap}%{guaranteed}"
