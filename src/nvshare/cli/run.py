"""``nvshare run``: a command with its GPU shared."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from nvshare import config, native
from nvshare.cli.options import CORES, CORES_HELP, SIZE, SPEED, fail
from nvshare.client.connection import Connection, OtherVersion, RequestRefused, SchedulerError
from nvshare.client.spawn import LOG_NAME, SchedulerNotStarted, ensure_scheduler
from nvshare.cores import Cores
from nvshare.gpu import sim
from nvshare.launch.address import Address, find_address

_PR_SET_CHILD_SUBREAPER = 36
_SI_KERNEL = 0x80
_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
_GRACE = 2.0  # seconds that processes left behind have between SIGTERM and SIGKILL
_RETRY = 0.2  # seconds between attempts to reach a scheduler that went away
_LOOK = 1.0  # seconds that a look at who waits may take
_END_GRACE = 5.0  # seconds that a command which Ctrl-C does not reach has between SIGTERM and SIGKILL


def say(text: str) -> None:
    """One line for the user, on standard error."""
    click.echo(f"[NVSHARE][INFO]: {text}", err=True)


def scheduler_address(spec: str | None, speed: float | None) -> Address:
    """The machine's own GPUs, or a simulated node (made when it is not there); ends the command when it cannot be."""
    try:
        return find_address(spec, speed)
    except (ValueError, sim.SimError) as error:
        fail(str(error), 2)


def start_scheduler(address: Address, card_memory: int | None = None, mode: str | None = None) -> None:
    """Make sure that a scheduler answers there, and say so when it was started for this."""
    env = address.environment
    try:
        started = ensure_scheduler(address.socket, env, card_memory, mode)
    except SchedulerNotStarted as error:
        fail(str(error), 2)
    what = f"simulated node {address.simulated}" if address.simulated else "your user"
    if started:
        log = address.socket.parent / LOG_NAME
        say(f"started a scheduler for {what} on {address.socket} (log: {log})")
        _warn_of_unusable(env)
    elif card_memory is not None or mode is not None:
        say(
            f"a scheduler runs on {address.socket} already: --card-memory and --mode count for a new one only "
            "(change the mode with: nvsharectl set --mode)"
        )


def _warn_of_unusable(env: Mapping[str, str]) -> None:
    """Settings that a scheduler started for this cannot use: it says so in its log, which nobody looks at."""
    environment = config.Environment(env)
    config.scheduler_config(environment)
    for warning in environment.warnings:
        click.echo(f"[NVSHARE][WARN]: {warning}", err=True)


class RunGroup:
    """The group that the command's processes belong to; opened again whenever the scheduler comes back."""

    def __init__(self, socket: Path, quotas: Mapping[str, Any]) -> None:
        """Open it; ``SchedulerError`` when the scheduler refuses."""
        self._socket = socket
        self._quotas = quotas
        self._stop = threading.Event()
        self.inside: str | None = None  # the outermost run that we are in ourselves, whose quotas count
        self._name: str | None = None
        self._connection = self._open()
        self._thread = threading.Thread(target=self._keep_open, daemon=True)

    def start(self) -> None:
        """Begin to watch the connection. Not before the command has been started: a fork copies no threads."""
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._connection.interrupt()
        self._thread.join()
        self._connection.close()

    def waits(self) -> bool:
        """Whether a task of this run waits for its turn or for memory: in a call to the driver, where a language's own
        answer to Ctrl-C comes only after it."""
        try:
            with Connection(self._socket, _LOOK) as connection:
                clients = connection.status()["clients"]
        except SchedulerError:
            return False  # without a scheduler nobody waits for long
        group = f"run:{self.inside or self._name}"
        return any(client["group"] == group and _is_waiting(client) for client in clients)

    def _open(self) -> Connection:
        connection = Connection(self._socket)
        try:
            answer = connection.request("run", **self._quotas)
            self._name, self.inside = answer.get("run"), answer.get("inside")
        except SchedulerError:
            connection.close()
            raise
        return connection

    def _keep_open(self) -> None:
        while not self._stop.is_set():
            self._connection.wait_for_end()
            self._connection.close()
            while not self._stop.is_set():
                try:
                    self._connection = self._open()
                    break
                except (RequestRefused, OtherVersion) as error:
                    click.echo(f"[NVSHARE][WARN]: the scheduler takes this run no more: {error}", err=True)
                    return
                except SchedulerError:
                    self._stop.wait(_RETRY)


def _is_waiting(client: Mapping[str, Any]) -> bool:
    return client["state"] == "waiting" or any(gpu["waiting_for"] for gpu in client["gpus"])


def _adopt_orphans() -> None:
    """Descendants whose parent ends become our children, so that the kernel's parent chain still leads to us."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _heard() -> set[signal.Signals]:
    """What is passed on: not what was ignored when we came, as under nohup or in a script's background; that stays so
    for the command too."""
    return {number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}


def _start(command: tuple[str, ...], env: Mapping[str, str]) -> int:
    try:
        return os.posix_spawnp(command[0], command, env, setsigmask=[], setsigdef=_heard() | _IGNORED_BY_PYTHON)
    except (FileNotFoundError, ValueError):  # the latter for an empty name
        fail(f"{command[0] or repr('')}: command not found", 127)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}", 126)


def _await(child: int, waits: Callable[[], bool]) -> int:
    """Wait for the command, passing signals on; its exit code, 128 + n when signal n ended it.

    ``waits`` tells whether it can react to Ctrl-C at all. Where it cannot, the second one ends it, the third at once:
    a session that reacts, such as an interpreter, may be interrupted as often as one likes.
    """
    unheard = 0
    kill_at: float | None = None
    while True:
        info = _next_signal(kill_at)
        if info is not None and info.si_signo == signal.SIGCHLD:
            code = _reap(child)
            if code is not None:
                return code
            continue
        if kill_at is not None and (info is None or info.si_signo == signal.SIGINT):
            os.kill(child, signal.SIGKILL)
            kill_at = None
            continue
        assert info is not None  # without a deadline there is one
        if info.si_signo == signal.SIGINT:
            unheard = unheard + 1 if waits() else 0
            if unheard == 2:
                say("the task waits inside the GPU driver and does not react; ending it")
                os.kill(child, signal.SIGTERM)
                kill_at = time.monotonic() + _END_GRACE
                continue
        if info.si_code != _SI_KERNEL:  # one from the terminal has reached the command already
            os.kill(child, info.si_signo)


def _next_signal(deadline: float | None) -> signal.struct_siginfo | None:
    awaited = _FORWARDED | {signal.SIGCHLD}
    if deadline is None:
        return signal.sigwaitinfo(awaited)
    return signal.sigtimedwait(awaited, max(0.0, deadline - time.monotonic()))


def _reap(child: int) -> int | None:
    """Collect whoever ended; the command's exit code when it is among them."""
    code = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return code
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                code = 128 - code if code < 0 else code
    except ChildProcessError:
        return code


def _children() -> set[int]:
    me = os.getpid()
    try:
        return {int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()}
    except FileNotFoundError:
        return set()  # a kernel built without it


def _end_leftovers() -> None:
    """End what the command left running: what it leaves would run on with its quota gone."""
    deadline = time.monotonic() + _GRACE
    told: set[int] = set()
    beyond_us: set[int] = set()  # changed their user
    while children := _children() - beyond_us:
        late = time.monotonic() > deadline
        for pid in children if late else children - told:
            try:
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            except PermissionError:
                beyond_us.add(pid)
            told.add(pid)
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
        _reap(0)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
@click.option("--mem", type=SIZE, help="Memory quota of the command and all its processes together, e.g. 4GiB.")
@click.option("--sim", "spec", metavar="NODE", help="On a simulated node, e.g. 2xT4.")
@SPEED
@click.option("--card-memory", type=SIZE, help="When a scheduler is started: bytes all tasks may allocate on a card.")
@click.option("--mode", type=click.Choice(config.MODES), help="When a scheduler is started: how tasks share a card.")
@click.option(
    "--cores",
    type=CORES,
    help=f"Compute quota of all its processes together, {CORES_HELP}.",
)
@click.option("--priority", type=click.Choice(config.PRIORITIES), help="high for latency-critical tasks.")
@click.option("--name", "label", help="How nvsharectl status calls this run. Default: the command's name.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    mem: int | None,
    spec: str | None,
    speed: float | None,
    card_memory: int | None,
    mode: str | None,
    cores: Cores | None,
    priority: str | None,
    label: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with its GPU shared.

    \b
    nvshare run -- python train.py
    nvshare run --mem 4GiB --cores 30 --name trial-7 -- python train.py
    nvshare run --sim 2xT4 --speed 10 -- ./program

    Talks to the scheduler of this machine, or starts one for you when none answers. All processes below the command
    share its quota; those it leaves running when it ends are ended too.
    """
    library = native.interposer()
    if not os.path.dirname(command[0]) and shutil.which(command[0]) is None:
        fail(f"{command[0] or repr('')}: command not found", 127)
    address = scheduler_address(spec, speed)
    start_scheduler(address, card_memory, mode)
    quotas = {
        "label": label or os.path.basename(command[0]),
        "mem": mem,
        "cores": None if cores is None else cores.plain,
        "priority": priority,
    }
    variables = {**address.variables, "NVSHARE_SOCK": str(address.socket), "LD_PRELOAD": config.preload_with(library)}
    raise SystemExit(_run(command, variables, address.socket, quotas))


def _quota_variables(quotas: Mapping[str, Any]) -> dict[str, str]:
    """The quotas as a task may look them up."""
    names = {"mem": "NVSHARE_GPU_MEMORY_LIMIT", "cores": "NVSHARE_GPU_CORE_LIMIT", "priority": "NVSHARE_PRIORITY"}
    return {names[name]: str(value) for name, value in quotas.items() if name in names and value is not None}


def _run(command: tuple[str, ...], variables: Mapping[str, str], socket: Path, quotas: Mapping[str, Any]) -> int:
    try:
        group = RunGroup(socket, quotas)
    except SchedulerError as error:
        fail(str(error), 1)
    asked = _quota_variables(quotas)
    if group.inside is not None and asked:
        click.echo(f"[NVSHARE][WARN]: inside run {group.inside}: its quotas count", err=True)
        asked = {}
    env = config.child_environment({**variables, **asked})
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _heard() | {signal.SIGCHLD})
    child = _start(command, env)
    group.start()
    code = _await(child, group.waits)
    _end_leftovers()
    group.close()
    return code
