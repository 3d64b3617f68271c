"""From a configuration to a running scheduler, and back to nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshare.config import SchedulerConfig, host_memory_budget
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Mode, Settings, SwitchTime
from nvshare.daemon.admission import MAX_CONNECTIONS
from nvshare.daemon.connection import ClientConnection
from nvshare.daemon.exclusive import GpuClaims, listen_at, remove_own
from nvshare.daemon.server import Daemon, about
from nvshare.gpu.cards import CardSource

_LOG = logging.getLogger("nvshare")

_OTHER_DESCRIPTORS = 64  # beside two for each client
_SWITCH_INTERVAL = 0.0005  # seconds; a thread that samples the cards must not keep a decision waiting


@dataclass(frozen=True)
class Listening:
    """Where a scheduler listens and how long it stays."""

    socket: Path
    private: bool = False  # for its own user only
    idle_exit: float = 0.0  # seconds without any connection after which it ends; 0: never


def core_settings(config: SchedulerConfig) -> Settings:
    """The core's settings from a configuration."""
    return Settings(
        mode=Mode(config.mode),
        switch_time=SwitchTime(config.switch_time),
        quantum=float(config.quantum),
        multiplier=config.multiplier,
        max_runtime=float(config.max_runtime),
        reserve_percent=config.reserve_percent,
        compute_window=config.compute_window,
        sleeps=config.sleep_after.room,
        sleep_after=config.sleep_after.idle,
        host_budget=config.host_memory or host_memory_budget(),
    )


def serve(
    config: SchedulerConfig,
    listening: Listening,
    source: CardSource,
    ready: Callable[[], None] = lambda: None,
    pod_of: Callable[[int], str | None] | None = None,
) -> None:
    """Run a scheduler until SIGTERM, idleness or SIGINT (KeyboardInterrupt, when all is closed).
    ``exclusive.Unavailable`` when it may not start.

    ``pod_of`` says which pod a process is in; None: the kernel does.
    """
    if asyncio.run(_serve(config, listening, source, ready, pod_of)) == signal.SIGINT:
        raise KeyboardInterrupt


async def _serve(
    config: SchedulerConfig,
    listening: Listening,
    source: CardSource,
    ready: Callable[[], None],
    pod_of: Callable[[int], str | None] | None,
) -> int | None:
    """The signal that ended it."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_report)
    claims = GpuClaims(card.uuid for card in source.cards())
    try:
        listener = listen_at(listening.socket, private=listening.private)
        inode = listening.socket.lstat().st_ino
        try:
            me = about(str(listening.socket.absolute()))
            claims.answer(loop, me)
            _log_start(config, listening, source)
            sys.setswitchinterval(_SWITCH_INTERVAL)
            daemon = Daemon(
                Scheduler(core_settings(config)),
                source,
                loop,
                card_memory=config.card_memory,
                contexts_inside=config.contexts_inside,
                max_connections=_affordable_connections(),
                about=me,
                lease_marker=listening.socket.with_suffix(".leases"),
                pods_file=listening.socket.with_suffix(".pods"),
                kept_file=listening.socket.with_suffix(".kept"),
                pod_of=pod_of,
            )
            server = await loop.create_unix_server(lambda: ClientConnection(daemon), sock=listener)
            gc.freeze()  # what lives until the end need not be looked at again
            told = _to_be_told(loop)
            ready()
            told_by = await _until(told, daemon, listening.idle_exit)
            server.close()
            daemon.close(needed_no_more=told_by is None)
        finally:
            remove_own(listening.socket, listener, inode)
    finally:
        claims.close(loop)
    _LOG.info("Scheduler stopped; tasks go on by themselves")
    return told_by


def _to_be_told(loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
    """Will have the signal that tells us to end."""
    told: asyncio.Future[int] = loop.create_future()

    def tell(number: int) -> None:
        if not told.done():
            told.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell, number)
    return told


async def _until(told: asyncio.Future[int], daemon: Daemon, idle_exit: float) -> int | None:
    """The signal that told us to end; None: nobody needs us any more."""
    while not told.done():
        left = idle_exit - daemon.admission.idle_for() if idle_exit else None
        if left is not None and left <= 0:
            _LOG.info("No connection for %g seconds, ending", idle_exit)
            return None
        await asyncio.wait([told], timeout=left)
    return told.result()


def _affordable_connections() -> int:
    """Raise the limit of open files as far as we may, and take no more clients than it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wanted = soft
    return max(1, min(MAX_CONNECTIONS, (wanted - _OTHER_DESCRIPTORS) // 2))


def _log_start(config: SchedulerConfig, listening: Listening, source: CardSource) -> None:
    def default(name: str) -> str:
        return " (default)" if name in config.defaulted else ""

    _LOG.info("nvshare-scheduler (process %d) listens on %s", os.getpid(), listening.socket)
    for card in source.cards():
        _LOG.info("GPU %s: %s, %d MiB", card.uuid, card.name, card.total >> 20)
    if config.card_memory is not None:
        inside = ", contexts inside" if config.contexts_inside else ""
        _LOG.info("Declared memory per card: %d MiB%s", config.card_memory >> 20, inside)
    _LOG.info("Sleep after: %s", config.sleep_after)
    _LOG.info("Scheduling mode: %s%s", config.mode.upper(), default("mode"))
    if config.switch_time == SwitchTime.FIXED.value:
        _LOG.info("Switch time mode: FIXED (%d seconds)", config.quantum)
    else:
        _LOG.info("Switch time mode: AUTO")
    _LOG.info("Max runtime per task: %d seconds%s", config.max_runtime, default("max_runtime"))


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What went wrong inside the event loop: the connection it happened on is closed, the others never notice."""
    _LOG.warning("internal error: %s", context.get("message"), exc_info=context.get("exception"))
