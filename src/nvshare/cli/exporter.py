"""``nvshare-exporter``: metrics of a scheduler, for Prometheus. A process of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from nvshare import __version__, config
from nvshare.cli.options import PlainCommand, Seconds, fail
from nvshare.client.connection import Connection
from nvshare.gpu import sim
from nvshare.gpu.cards import NoCards, NvmlCards
from nvshare.gpu.reading import Reading

_NICENESS = 5  # the scheduler and its tasks go first
_PATIENCE = 2.0  # seconds that the scheduler may take to answer


def _address(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    """``HOST:PORT``, ``[ADDRESS]:PORT`` or ``:PORT``."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9402, [::1]:9402 or :9402")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)  # noqa: S104 (where it is asked for)


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--listen",
    default="127.0.0.1:9402",
    show_default=True,
    callback=_address,
    metavar="HOST:PORT",
    help="Where metrics are served; :9402 for all addresses, port 0 for a free one.",
)
@click.option("--socket", type=click.Path(path_type=Path), help="The scheduler's socket. Default: as the library does.")
@click.option("--sim", "node", metavar="NODE", help="The scheduler of this simulated node, e.g. 2xT4.")
@click.option(
    "--period",
    type=Seconds(min=1, max=60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often the scheduler and NVML are asked, however often metrics are scraped.",
)
@click.option("--debug", is_flag=True, help="Log more (NVSHARE_DEBUG).")
@click.version_option(__version__, prog_name="nvshare-exporter")
def main(listen: tuple[str, int], socket: Path | None, node: str | None, period: float, debug: bool) -> None:
    """Serves the metrics of a scheduler, its cards and its tasks to Prometheus, at /metrics.

    \b
    nvshare-exporter
    nvshare-exporter --listen :9402      to other machines too
    nvshare-exporter --sim 2xT4          of a simulated node
    curl http://127.0.0.1:9402/metrics

    Without a scheduler it serves nvshare_up 0 and waits for one. Stop it with Ctrl-C or SIGTERM.
    """
    if socket is not None and node is not None:
        fail("--socket and --sim do not go together: choose one", 2)
    if node is not None:
        _enter(node)
    log = config.configure_logging(debug or config.Environment().get(config.DEBUG))
    try:
        from nvshare.observe.exporter import Exporter, PageServer, Readings, every
    except ImportError as error:
        fail(f"{error.name or error} is missing; metrics need: pip install 'nvshare[metrics]'", 2)
    path = socket or config.find_socket()

    def ask() -> dict[str, Any]:
        with Connection(path, _PATIENCE) as connection:
            return connection.status()

    readings = Readings(_Nvml().read)
    exporter = Exporter(ask, readings)
    host, port = listen
    try:
        server = PageServer(host, port, lambda: exporter.page)
    except OSError as error:
        fail(f"--listen {_shown(host, port)}: {error.strerror or error}; choose another HOST:PORT", 2)
    os.nice(_NICENESS)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # nothing is left to do
    every(period, readings.look)
    every(period, exporter.look)
    log.info("nvshare-exporter: http://%s/metrics shows the scheduler on %s", _shown(host, server.server_port), path)
    server.serve_forever()


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Nvml:
    """NVML, as soon as it answers."""

    def __init__(self) -> None:
        self._cards: NvmlCards | None = None

    def read(self) -> dict[str, Reading]:
        try:
            self._cards = self._cards or NvmlCards()
        except NoCards:
            return {}
        return self._cards.readings()


def _enter(name: str) -> None:
    """Go on as a process of this simulated node: its driver is found by the loader alone, when a process starts."""
    try:
        variables = sim.find(name).env()
    except sim.SimError as error:
        fail(str(error), 2)
    if os.environ.get("NVSHARE_SIM_NODE") != variables["NVSHARE_SIM_NODE"]:
        _again({**os.environ, **variables})


def _again(environment: dict[str, str]) -> NoReturn:
    os.execve(sys.executable, [sys.executable, "-m", "nvshare.cli.exporter", *sys.argv[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    main()
