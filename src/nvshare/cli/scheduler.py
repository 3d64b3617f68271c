"""``nvshare-scheduler``: the daemon of a node, or of one user."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click

from nvshare import __version__, config
from nvshare.cli.options import SIZE, SLEEP_AFTER, PlainCommand, Seconds, fail
from nvshare.daemon.exclusive import Unavailable
from nvshare.daemon.serve import Listening, serve
from nvshare.gpu.cards import Card, NoCards, NvmlCards, ProcessMemory

_LOOK_AGAIN = 10.0  # seconds between two looks for a GPU on a node that has none


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="Listen here. Default: NVSHARE_SOCK, else the system's socket.",
)
@click.option("--user", is_flag=True, help="A scheduler for yourself alone: your own socket, closed to others.")
@click.option(
    "--card-memory",
    type=SIZE,
    help="Bytes all tasks together may allocate on a card, e.g. 16GiB (NVSHARE_CARD_MEMORY).",
)
@click.option("--contexts-inside", is_flag=True, help="These bytes hold the contexts too (NVSHARE_CONTEXTS_INSIDE).")
@click.option(
    "--sleep-after",
    type=SLEEP_AFTER,
    metavar="WHEN",
    help="auto: contexts of tasks leave a card where room is needed; 10m: also after so long without work; off "
    "(NVSHARE_SLEEP_AFTER).",
)
@click.option("--mode", type=click.Choice(config.MODES), help="How tasks share a card (NVSHARE_SCHEDULING_MODE).")
@click.option(
    "--tq",
    type=click.IntRange(*config.QUANTUM_BOUNDS),
    metavar="SECONDS",
    help="Fixed quantum; default: from what a switch costs.",
)
@click.option("--debug", is_flag=True, help="Log every decision (NVSHARE_DEBUG).")
@click.option("--ready-fd", type=int, metavar="N", help="Write a byte to this descriptor when listening.")
@click.option(
    "--idle-exit",
    type=Seconds(min=0),
    default=0.0,
    metavar="SECONDS",
    help="End after so long without a connection; 0: never.",
)
@click.option("--without-gpus", is_flag=True, help="Where there is no GPU, say so and stay until there is one.")
@click.option("--detach", is_flag=True, help="Go on in the background.")
@click.version_option(__version__, prog_name="nvshare-scheduler")
def main(
    socket_path: Path | None,
    user: bool,
    card_memory: int | None,
    contexts_inside: bool,
    sleep_after: config.SleepAfter | None,
    mode: str | None,
    tq: int | None,
    debug: bool,
    ready_fd: int | None,
    idle_exit: float,
    without_gpus: bool,
    detach: bool,
) -> None:
    """Schedules the tasks that share the GPUs of this node. One per node; no GPU has two.

    \b
    nvshare-scheduler                       for everybody on this machine, as root
    nvshare-scheduler --user                for yourself, no root needed
    nvshare-scheduler --card-memory 16GiB   tasks share 16 GiB of each card
    nvshare-scheduler --mode serial --tq 30 one task at a time, 30 s each
    nvshare-scheduler --sleep-after 10m     idle tasks leave nothing on their card

    `nvshare run` starts one by itself when none answers. Stop it with Ctrl-C or SIGTERM: tasks keep running.
    """
    if detach:
        _go_to_background()
    environment = config.Environment()
    settings = config.scheduler_config(
        environment,
        mode=mode,
        quantum=tq,
        card_memory=card_memory,
        contexts_inside=contexts_inside,
        sleep_after=sleep_after,
        debug=debug,
    )
    log = config.configure_logging(settings.debug)
    for warning in environment.warnings:
        log.warning("%s", warning)
    listening = Listening(
        socket_path or config.scheduler_socket(user), private=user or os.getuid() != 0, idle_exit=idle_exit
    )
    descriptors = iter([ready_fd])  # told once, however often we begin

    def ready() -> None:
        _signal_ready(next(descriptors, None))

    try:
        while (source := _find_cards(without_gpus)) is None:
            log.warning("No GPU on this node: no task can run here")
            if not _await_cards(lambda: serve(settings, listening, _Nothing(), ready)):
                return
        try:
            serve(settings, listening, source, ready)
        finally:
            source.close()
    except Unavailable as error:
        fail(str(error), 2)


def _find_cards(without: bool) -> NvmlCards | None:
    """None where there are none and that is all right."""
    try:
        return NvmlCards()
    except NoCards as error:
        if without:
            return None
        fail(f"{error}. Try a simulated card instead: nvshare run --sim 2xT4 -- COMMAND", 2)


class _Nothing:
    """What a node without GPUs has."""

    def cards(self) -> list[Card]:
        return []

    def process_memory(self) -> ProcessMemory:
        return {}


def _await_cards(serve_nobody: Callable[[], None]) -> bool:
    """Serve nobody until there is a GPU; False: told to end before that."""
    ended, found = threading.Event(), threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_AGAIN):
            cards = _find_cards(without=True)
            if cards is not None:
                cards.close()
                found.set()
                os.kill(os.getpid(), signal.SIGTERM)
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        serve_nobody()
    finally:
        ended.set()
        looking.join()
    return found.is_set()


def _go_to_background() -> None:
    """Become a child of init in a session of our own, before anything that a fork would not survive."""
    if os.fork():
        os._exit(0)
    os.setsid()


def _signal_ready(descriptor: int | None) -> None:
    if descriptor is None:
        return
    try:
        os.write(descriptor, b"\n")
        os.close(descriptor)
    except BrokenPipeError:
        fail(f"--ready-fd {descriptor}: whoever started this scheduler waits for it no more", 1)
    except OSError as error:
        print(f"--ready-fd {descriptor}: {error.strerror}", file=sys.stderr)


if __name__ == "__main__":
    main()
