"""Who a client is, asked of the kernel and never of the client."""

from __future__ import annotations

import os
import re
import select
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from nvshare.core.policy.membership import Process

_UCRED = struct.Struct("3i")
_SO_PEERPIDFD = 77  # Linux 6.5; not named by the socket module of our oldest Python
_MAX_ANCESTORS = 1024
T = TypeVar("T")


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a connection when it connected. ``pid`` is 0 when it is outside our namespace."""

    pid: int
    uid: int

    def __str__(self) -> str:
        return f"process {self.pid} (uid {self.uid})"


def peer_of(connection: socket.socket) -> Peer:
    """SO_PEERCRED."""
    pid, uid, _gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid)


def peer_pidfd(connection: socket.socket, peer: Peer) -> int | None:
    """A descriptor that becomes readable when the peer's process ends; None when the kernel gives none.

    ``ProcessLookupError``: it has ended already.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except ProcessLookupError:
        raise
    except OSError:
        pass  # an older kernel: by number, which the connection keeps meaningful in all but the rarest race
    try:
        return os.pidfd_open(peer.pid) if peer.pid else None
    except ProcessLookupError:
        raise
    except OSError:
        return None


def while_alive(connection: socket.socket, peer: Peer, look: Callable[[int], T]) -> T | None:
    """What ``look`` finds out of the process that connected; None when it has ended, for its number may be another's by
    now."""
    try:
        pidfd = peer_pidfd(connection, peer)
    except ProcessLookupError:
        return None
    found = look(peer.pid)
    if pidfd is None:
        return found
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        return None if ended.poll(0) else found
    finally:
        os.close(pidfd)


def namespace_of(pid: int) -> int:
    """The pid namespace of a process, as a number; 0 where it may not be looked at."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def own_namespace() -> int:
    return namespace_of(os.getpid())


_POD_UID = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
# cgroupfs driver: .../pod<uid>/<container>
_CGROUPFS_POD = re.compile(rf"pod{_POD_UID}")
# systemd driver: [prefix-]kubepods[-class]-pod<uid>.slice, with the dashes of the uid written as underscores;
# containerd without a systemd parent appends ":cri-containerd:<id>" to the same segment.
_SYSTEMD_POD = re.compile(rf"(?:[a-z0-9]+-)*kubepods(?:-[a-z]+)?-pod{_POD_UID}\.slice(?::.*)?")
_CGROUPFS_PARENTS = re.compile(r"kubepods|burstable|besteffort|\.\.")


def pod_uid(cgroup_file: str) -> str | None:
    """The uid of the Kubernetes pod that a ``/proc/<pid>/cgroup`` names, in its usual form, or None.

    Knows cgroup v1 and v2, the systemd and cgroupfs drivers, and a reader in a cgroup namespace of its own (paths that
    start with ``/..``). The outermost match counts, so that a pod cannot pass for another by nesting groups; groups
    that a user's own session may create are not believed at all.
    """
    for line in cgroup_file.splitlines():
        _hierarchy, _, rest = line.partition(":")
        _controllers, _, path = rest.partition(":")
        segments = path.strip("/").split("/")
        outermost = next((segment for segment in segments if segment != ".."), "")
        if outermost == "user.slice":
            continue
        for parent, segment in zip(["", *segments], segments, strict=False):
            match = _SYSTEMD_POD.fullmatch(segment)
            if match is None and _CGROUPFS_PARENTS.fullmatch(parent):
                match = _CGROUPFS_POD.fullmatch(segment)
            if match:
                return _with_dashes(match[1])
    return None


def _with_dashes(uid: str) -> str:
    return uid.replace("_", "-")


def parent_pid(stat_file: str) -> int:
    """The parent in a ``/proc/<pid>/stat``; the command name in it may hold any character, brackets too."""
    return int(stat_file.rpartition(")")[2].split()[1])


def read(path: str) -> str | None:
    """A file of ``/proc``; None when there is none, or it is not ours to read."""
    try:
        with open(path, errors="replace") as text:
            return text.read()
    except OSError:
        return None


def pod_of(pid: int) -> str | None:
    """The pod that a live process belongs to."""
    text = read(f"/proc/{pid}/cgroup") if pid else None
    return pod_uid(text) if text else None


def _parent_of(pid: int) -> int:
    text = read(f"/proc/{pid}/stat")
    return parent_pid(text) if text else 0


def ancestry(pid: int, parent_of: Callable[[int], int] = _parent_of) -> Iterator[int]:
    """The process itself, its parent, and so on up to init."""
    for _ in range(_MAX_ANCESTORS):
        if pid <= 0:
            return
        yield pid
        pid = parent_of(pid)


def pid_seen_by(viewer: int, pid: int) -> int:
    """The number of a process in the pid namespace of another; 0 where it has none there, or we cannot tell."""
    if not viewer or not pid:
        return 0
    try:
        of_viewer, of_process = (os.stat(f"/proc/{one}/ns/pid").st_ino for one in (viewer, pid))
        own = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return pid  # another user's: an ordinary user's scheduler serves its own namespace
    if of_viewer == own:
        return pid
    return innermost_pid(read(f"/proc/{pid}/status") or "") if of_viewer == of_process else 0


def innermost_pid(status_file: str) -> int:
    """The number that a process has for itself, in a ``/proc/<pid>/status``."""
    for line in status_file.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def is_operator(peer: Peer, pod: str | None, own_pod: str | None) -> bool:
    """Whether a peer, in this pod, may change settings: root or our own user, and not in somebody else's container.

    A container's root has uid 0 as well, so the number alone proves nothing; ours shares our pid namespace or our pod.
    """
    if peer.uid not in (0, os.geteuid()) or not peer.pid:
        return False
    if pod is not None:
        return pod == own_pod
    try:
        return os.stat(f"/proc/{peer.pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
    except PermissionError:
        return True  # we are an ordinary user's scheduler and the peer is the machine's root
    except OSError:
        return False


@dataclass(frozen=True)
class Origin:
    """Where a peer comes from, found out when it connected: later its number may be that of another process."""

    operator: bool  # may change settings
    crowd: tuple[int, int]  # user and pid namespace, which share a bound on connections


class Kernel:
    """What the kernel says of processes, as this scheduler sees them. ``pod_of`` None: their cgroups name their pods.

    A scheduler inside a pod that serves that pod sees nobody in a pod: being in its own tells nobody apart.
    """

    def __init__(self, pod_of_process: Callable[[int], str | None] | None) -> None:
        self._pod_of = pod_of_process or pod_of
        self._own_pod = self._pod_of(os.getpid())

    def process(self, pid: int) -> Process:
        """All but what its environment says."""
        pod = self._pod_of(pid)
        return Process(pid, tuple(ancestry(pid)), None if pod == self._own_pod else pod)

    def origin(self, connection: socket.socket, peer: Peer) -> Origin:
        """Asked once, when a peer connects."""

        def look(pid: int) -> Origin:
            return Origin(is_operator(peer, self._pod_of(pid), self._own_pod), (peer.uid, namespace_of(pid)))

        return while_alive(connection, peer, look) or Origin(False, (peer.uid, 0))
