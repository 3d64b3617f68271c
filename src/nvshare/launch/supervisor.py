"""The process between a launcher and one worker: holds the lease, starts the worker, and lets nothing of it outlive it.

Run by an interpreter that loads this module and a little of the standard library and no more, so that it costs little
(see ``supervised.py``). It speaks lines of JSON on an inherited socket: first comes the order (``orders.Order``), then
at most a word to end; it answers with what happened. Two processes, each an adopter of orphans (child subreaper):

    launcher ── guard ── keeper ── worker (a session of its own) ── …

The keeper holds the lease's connection and watches launcher, guard and worker. Whoever is killed, the worker's whole
tree ends: launcher or guard: the keeper ends it. Keeper: the kernel kills the worker, the guard what the worker left.
Only guard and keeper killed in the same instant leave the worker's own children behind; the worker itself still dies,
and the scheduler keeps the place of those that are on a card.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import time

from nvshare import procfs

TYPE_CHECKING = False  # the module typing costs more to load than all the rest
if TYPE_CHECKING:
    from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_RETRY = 0.1  # seconds between attempts to reach a scheduler that went away
_KILL_PATIENCE = 5.0  # seconds that killed processes have to disappear
_GONE = "its launcher is gone"
_CAUGHT = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}


class Ended(Exception):
    """There is to be no worker; the text says why, ``kind`` whose fault it is: the lease was refused, or came too late,
    or the command cannot be started, or we were told to end."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class LeaseGone(Exception):
    """The scheduler gives the lease to us no more, or never did."""


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def reap() -> dict[int, int]:
    """Collect children that ended: exit codes, negative for signals."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def end_descendants(grace: float) -> list[int]:
    """SIGTERM to everything below us, SIGKILL after the grace; those that are still there when patience ends.

    Orphans among them are our own children by then, so nothing below us is missed, and nothing else is touched.
    """
    ends = time.monotonic() + grace
    gives_up = ends + _KILL_PATIENCE
    told: set[int] = set()
    pause = 0.001
    while True:
        reap()
        below = procfs.descendants(os.getpid())
        now = time.monotonic()
        if not below or now > gives_up:
            return below
        late = now >= ends
        for pid in below if late else set(below) - told:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                if not late:
                    os.kill(pid, signal.SIGCONT)  # a stopped process would not hear the first
        told.update(below)
        time.sleep(min(pause, max(0.0, (gives_up if late else ends) - now)))
        pause = min(0.02, 2 * pause)


class Lease:
    """The lease's connection. ``fields`` is the scheduler's request, ``wire`` how a frame looks."""

    def __init__(self, path: str, fields: dict[str, Any], wire: dict[str, Any]) -> None:
        self._path = path
        self._fields = fields
        self._wire = wire
        self._header = struct.Struct(wire["header"])
        self._socket: socket.socket | None = None
        self._buffer = b""
        self.id = ""
        self.gpus: list[str] = []
        self.inside: str | None = None

    def fileno(self) -> int:
        return self._socket.fileno() if self._socket is not None else -1

    def ask(self) -> bool:
        """Connect and ask, for the same again where there was one; False when nobody answers."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        again = {"again": {"id": self.id, "gpus": self.gpus}} if self.id else {}
        body = json.dumps({"op": "lease", **self._fields, **again}).encode()
        wire = self._wire
        try:
            connection.connect(self._path)
            connection.sendall(self._header.pack(wire["magic"], wire["version"], wire["control"], len(body), 1) + body)
        except OSError:
            connection.close()
            return False
        connection.setblocking(False)
        self._socket, self._buffer = connection, b""
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def read(self) -> bool:
        """Take in what came; True once the lease is ours. ``LeaseGone`` with the scheduler's reason, ``OSError`` when
        the connection ended."""
        assert self._socket is not None
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionResetError
        self._buffer += data
        size = self._header.size
        while len(self._buffer) >= size:
            _, version, kind, length, _ = self._header.unpack_from(self._buffer)
            if version != self._wire["version"]:
                raise LeaseGone("the scheduler is of another release: use the same nvshare on both sides")
            if len(self._buffer) < size + length:
                return False
            body, self._buffer = self._buffer[size : size + length], self._buffer[size + length :]
            if kind == self._wire["refused"]:
                raise LeaseGone(body[4:].partition(b"\0")[0].decode(errors="replace") or "the scheduler hung up")
            if kind == self._wire["reply"]:
                self._answered(json.loads(body))
                return True
        return False

    def _answered(self, answer: dict[str, Any]) -> None:
        if not answer.get("ok"):
            raise LeaseGone(str(answer.get("error")))
        self.id, self.gpus, self.inside = answer["lease"], answer["gpus"], answer.get("inside")


class Keeper:
    def __init__(self, lifeline: socket.socket, order: dict[str, Any], guard: int) -> None:
        self._lifeline = lifeline
        self._order = order
        self._poll = select.poll()
        self._guard = guard  # readable when the guard is gone
        self._launcher = _pidfd(order["launcher"])
        self._told_to_end = "" if os.path.exists(f"/proc/{order['launcher']}") else _GONE
        self._signals = _signal_pipe()
        self._heard = b""
        self._lease: Lease | None = None
        self._holds = False
        self._retry_at: float | None = None
        for fd in (lifeline.fileno(), guard, self._launcher, self._signals):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)

    def run(self) -> dict[str, Any]:
        """From the order to the end; what to tell the launcher last."""
        try:
            began = time.monotonic()
            self._get_lease(began)
            child = self._start(time.monotonic() - began)
        except Ended as reason:
            return {"state": "refused", "error": str(reason), "kind": reason.kind}
        code, why = self._await(child)
        left = end_descendants(self._order["grace"])
        if self._lease is not None:
            self._lease.close()
        return {"state": "ended", "code": code, "why": why, "left": left}

    # --- the lease

    def _get_lease(self, began: float) -> None:
        order = self._order
        if order["socket"] is None:
            return
        self._lease = Lease(order["socket"], order["request"], order["wire"])
        self._retry_at = began
        deadline = None if order["timeout"] is None else began + order["timeout"]
        while not self._holds:
            self._wait(None, deadline)
            if self._told_to_end:
                raise Ended("ended", self._told_to_end)
            if deadline is not None and time.monotonic() >= deadline and not self._holds:
                raise Ended("late", f"no lease within {order['timeout']:g} s")

    def _ask(self) -> None:
        assert self._lease is not None
        if self._lease.ask():
            self._retry_at = None
            self._poll.register(self._lease.fileno(), select.POLLIN)
        else:
            self._retry_at = time.monotonic() + _RETRY

    def _listen(self) -> None:
        lease = self._lease
        assert lease is not None
        try:
            self._holds = lease.read() or self._holds
        except BlockingIOError:
            return
        except OSError:
            self._poll.unregister(lease.fileno())
            lease.close()
            self._retry_at = time.monotonic()
        except LeaseGone as error:
            if not self._holds:
                raise Ended("refused", str(error)) from None
            self._poll.unregister(lease.fileno())
            lease.close()
            self._told_to_end = f"the lease is lost: {error}"

    # --- the worker

    def _start(self, waited: float) -> int:
        order, lease = self._order, self._lease
        gpus = lease.gpus if lease is not None else []
        env = dict(order["env"])
        if lease is not None:
            env.update({"CUDA_VISIBLE_DEVICES": ",".join(gpus), order["lease_variable"]: lease.id})
        places = [str(order["index"].get(uuid, uuid)) for uuid in gpus]
        words = {"{gpu}": ",".join(places) or "cpu", "{uuid}": ",".join(gpus)}
        argv = [_filled(text, words) for text in order["argv"]]
        granted = {"lease": lease.id, "gpus": gpus, "inside": lease.inside} if lease is not None else {"gpus": []}
        self._tell({"state": "granted", "waited": waited, **granted})
        child = _spawn(argv, env, order)
        for fd in order["fds"]:
            os.close(fd)
        self._tell({"state": "started", "pid": child})
        return child

    def _await(self, child: int) -> tuple[int | None, str]:
        """The worker's exit code (negative: the signal), and why it had to end if it did."""
        ended = _pidfd(child)
        if ended >= 0:  # else SIGCHLD tells
            self._poll.register(ended, select.POLLIN)
        while True:
            self._wait(ended, None)
            codes = reap()
            if child in codes:
                return codes[child], ""
            if self._told_to_end:
                return self._end(child), self._told_to_end

    def _end(self, child: int) -> int | None:
        """The worker is told first and has its time; what it leaves goes with the rest."""
        deadline = time.monotonic() + self._order["grace"]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGTERM)
            os.killpg(child, signal.SIGCONT)
        while True:
            codes = reap()
            if child in codes:
                return codes[child]
            now = time.monotonic()
            if now >= deadline + _KILL_PATIENCE:
                return None
            if now >= deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            time.sleep(0.002)

    # --- waiting

    def _wait(self, child: int | None, deadline: float | None) -> None:
        """Until something happened that concerns us, or time is up."""
        times = [time_ for time_ in (deadline, self._retry_at) if time_ is not None]
        timeout = None if not times else max(0.0, (min(times) - time.monotonic()) * 1000 + 1)
        for fd, _events in self._poll.poll(timeout):
            if fd == self._lifeline.fileno():
                self._hear()
            elif fd in (self._guard, self._launcher):
                self._told_to_end = self._told_to_end or _GONE
            elif fd == self._signals:
                self._signalled()
            elif fd != child and self._lease is not None and fd == self._lease.fileno():
                self._listen()
        if self._retry_at is not None and time.monotonic() >= self._retry_at:
            self._ask()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = self._lifeline.recv(4096)
            self._heard += data
            if not data:
                self._told_to_end = self._told_to_end or _GONE
            elif b"\n" in self._heard:
                self._told_to_end = self._told_to_end or str(json.loads(self._heard.split(b"\n")[0])["end"])

    def _signalled(self) -> None:
        numbers = os.read(self._signals, 512)
        if any(number in numbers for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
            self._told_to_end = self._told_to_end or "its supervisor was told to end"

    def _tell(self, news: dict[str, Any]) -> None:
        tell(self._lifeline, news)


def tell(lifeline: socket.socket, news: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        lifeline.setblocking(True)
        lifeline.sendall(json.dumps(news).encode() + b"\n")
        lifeline.setblocking(False)


def _filled(text: str, words: dict[str, str]) -> str:
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # gone already (its pipe tells), or a kernel without them
        return -1


def _signal_pipe() -> int:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (*_CAUGHT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    return reader


def _spawn(argv: list[str], env: dict[str, str], order: dict[str, Any]) -> int:
    """Start the worker; ``Ended`` when that cannot be."""
    broken, told = os.pipe2(os.O_CLOEXEC)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _become(argv, env, order, keeper)
        except OSError as error:
            os.write(told, str(error.errno).encode())
        os._exit(127)
    os.close(told)
    problem = os.read(broken, 16)
    os.close(broken)
    if problem:
        reap()
        raise Ended("command", f"{argv[0] or repr('')}: {os.strerror(int(problem))}")
    return child


def _become(argv: list[str], env: dict[str, str], order: dict[str, Any], keeper: int) -> NoReturn:
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(127)
    signal.set_wakeup_fd(-1)
    for number in (*_CAUGHT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for fd in order["fds"]:
        os.set_inheritable(fd, True)
    if order["cwd"]:
        os.chdir(order["cwd"])
    if not argv[0]:
        raise FileNotFoundError(errno.ENOENT, "")
    os.execvpe(argv[0], argv, env)  # noqa: S606


def _watch_keeper(keeper: int, lifeline: socket.socket, order: dict[str, Any]) -> int:
    """The guard: wait for the keeper, and end what it could not."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_CAUGHT, signal.SIGCHLD})
    while True:
        number = signal.sigwait({*_CAUGHT, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, number)
            continue
        codes = reap()
        if keeper in codes:
            break
    left = end_descendants(0.0)
    if codes[keeper] != 0:
        tell(lifeline, {"state": "ended", "code": None, "why": "its supervisor was killed", "left": left})
    return 1 if left else 0


def _read_order(lifeline: socket.socket) -> dict[str, Any]:
    """The first line and no more: what follows it is for the keeper."""
    text = b""
    while not text.endswith(b"\n"):
        waiting = lifeline.recv(1 << 16, socket.MSG_PEEK)
        data = lifeline.recv(waiting.find(b"\n") + 1 or len(waiting)) if waiting else b""
        if not data:
            sys.exit(0)
        text += data
    order: dict[str, Any] = json.loads(text)
    return order


def main(descriptor: int) -> int:
    lifeline = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    order = _read_order(lifeline)
    for fd in order["fds"]:
        os.set_inheritable(fd, False)
    alive, guard = os.pipe2(os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_CAUGHT, signal.SIGCHLD})
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.fork()
    if keeper:
        os.close(alive)
        for fd in order["fds"]:
            os.close(fd)
        return _watch_keeper(keeper, lifeline, order)
    os.close(guard)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    lifeline.setblocking(False)
    tell(lifeline, Keeper(lifeline, order, alive).run())
    return 0


def start() -> NoReturn:
    """The descriptor is the last word of the command line. Nothing is left to tidy up at the end."""
    os._exit(main(int(sys.argv[-1])))
