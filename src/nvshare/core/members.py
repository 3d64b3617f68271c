"""Which groups there are because somebody opened them, who belongs to them, and who must register again to belong.

``policy/membership.py`` says which group a process belongs to. Whoever asks about groups asks here.
"""

from __future__ import annotations

from dataclasses import replace

from nvshare.core.commands import RegisterAgain
from nvshare.core.policy.membership import Opened, Process, around, group_of, lease_group, run_group, shared_group
from nvshare.core.state import Client, Lease, Node


class Members:
    def __init__(self, node: Node) -> None:
        self.node = node

    # --- what is opened

    def open_run(self, process: Process) -> None:
        """A process has a run, or is known to have had one before the scheduler was restarted."""
        self._change(replace(self._opened(process), process=process, run=True))

    def close_run(self, pid: int) -> None:
        found = self.node.opened.get(pid)
        if found is not None:
            self._change(replace(found, run=False))

    def open_lease(self, lease: Lease) -> None:
        found = self._opened(lease.holder)
        self._change(replace(found, leases=(*found.leases, lease.id)))

    def close_lease(self, lease: Lease) -> None:
        found = self._opened(lease.holder)
        self._change(replace(found, leases=tuple(one for one in found.leases if one != lease.id)))

    def _opened(self, process: Process) -> Opened:
        return self.node.opened.get(process.pid) or Opened(process)

    def _change(self, to: Opened) -> None:
        if to.run or to.leases:
            self.node.opened[to.process.pid] = to
        else:
            self.node.opened.pop(to.process.pid, None)

    def gather(self, pid: int) -> None:
        """Clients below this process that registered before its run or lease was there register again."""
        for client in self.node.clients.values():
            if pid in client.process.ancestors and client.group.id != self.of(client.process, client.id):
                self.node.commands.append(RegisterAgain(client.id))

    # --- who belongs where

    def of(self, process: Process, client: int) -> str:
        """The group of a client's process."""
        return group_of(process, client, self.node.opened)

    def around(self, process: Process) -> str | None:
        """The group of a process that need not be a client: its pod, run or lease, else that of the nearest client
        above it."""
        shared = shared_group(process, self.node.opened)
        if shared is not None:
            return shared
        groups = {client.process.pid: client.group.id for client in self.node.clients.values()}
        return next((groups[ancestor] for ancestor in process.ancestors if ancestor in groups), None)

    def instead_of_run(self, pid: int) -> str | None:
        """The group whose quotas count for the processes of a run because the run is inside of it. None: the run's own
        do."""
        group = self._outermost(pid)
        return None if group == run_group(pid) else group

    def instead_of_lease(self, lease: Lease) -> str | None:
        """The same of a lease. The leases of one holder do not count as around each other."""
        group = shared_group(lease.holder, self.node.opened)
        own = [lease_group(one) for one in self.node.opened[lease.pid].leases]
        return None if group in own else group

    def depends_on_environment(self, process: Process) -> bool:
        """Whether the environment of a process may decide between several leases of one holder."""
        above = (self.node.opened.get(ancestor) for ancestor in process.ancestors)
        return any(found is not None and found.leases for found in above)

    # --- what operators name

    def named(self, kind: str, name: str) -> tuple[str, ...]:
        """The groups that an operator means by ``client``, ``pid``, ``pod``, ``run`` or ``lease`` and a name. More than
        one only where several runs or leases are called so."""
        if kind == "run":
            found = self._runs_named(name)
        elif kind == "lease":
            lease = self.node.leases.get(name)
            found = [lease.group] if lease is not None and lease.held else []
        else:
            known = self.node.pods_named.get(name) if kind == "pod" else None
            found = [known or self._client_named(kind, name)]
        return tuple(group for group in found if group in self.node.groups)

    def clients_named(self, kind: str, name: str) -> tuple[int, ...]:
        """The clients that an operator means: one by ``client`` or ``pid``, else all of the groups so named."""
        if kind in ("client", "pid"):
            return tuple(client.id for client in self.node.clients.values() if _names(client).get(kind) == name)
        return tuple(client for group in self.named(kind, name) for client in self.node.groups[group].clients)

    def _client_named(self, kind: str, name: str) -> str:
        for client in self.node.clients.values():
            if _names(client).get(kind) == name:
                return client.group.id
        return ""

    def _runs_named(self, name: str) -> list[str]:
        """A run by its number, a lease by its own, or either by its label. A run inside another one is that one."""
        if name.isdecimal() and int(name) in self.node.opened:
            return [self._outermost(int(name))]
        found = []
        for group in self.node.groups.values():
            kind, _, key = group.id.partition(":")
            if (kind == "run" and name == group.label) or (kind == "lease" and name in (group.label, key)):
                found.append(group.id)
        runs = [int(group.removeprefix("run:")) for group in found if group.startswith("run:")]
        is_one_run = len(found) == len(runs) == 1 and runs[0] in self.node.opened
        return [self._outermost(runs[0])] if is_one_run else found

    def _outermost(self, pid: int) -> str:
        return around(self.node.opened[pid].process, self.node.opened) or ""


def _names(client: Client) -> dict[str, str]:
    """How a client can be named. The name that it claims for its pod counts until the Kubernetes API has told it."""
    names = {"client": client.hex, "pid": str(client.process.pid)}
    return names if client.group.known else {**names, "pod": "/".join((client.pod_namespace, client.pod_name))}
