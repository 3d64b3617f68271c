"""Where measurements run: the options that choose a node, and what can go wrong there, in one line."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import click

from nvshare.bench import mission
from nvshare.bench.compute.bench import NoTorch
from nvshare.bench.linkspeed import NotCalibrated
from nvshare.bench.team import TeamStalled
from nvshare.cli.interrupts import code_of, ended_by
from nvshare.cli.options import fail
from nvshare.client.connection import SchedulerError
from nvshare.gpu.cards import NoCards
from nvshare.gpu.profiles import parse_node
from nvshare.gpu.sim import SimError

_OUTSIDE = (SchedulerError, SimError, NoTorch, TeamStalled, NotCalibrated, mission.BaselineFailed)


def node_spec(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """``2xT4``, if there is such a node."""
    if value is not None:
        try:
            parse_node(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


MODEL = click.option(
    "--model",
    "model_spec",
    callback=node_spec,
    metavar="NODE",
    help="In virtual time, exact and deterministic, e.g. 2xT4.",
)
SIM = click.option(
    "--sim",
    "sim_spec",
    callback=node_spec,
    metavar="NODE",
    help="Real processes on a simulated node of its own, e.g. 2xT4.",
)


@contextlib.contextmanager
def plain_errors(advised_node: str = "2xT4", modelled: bool = True) -> Iterator[None]:
    """What can go wrong outside of us, as one line and an exit code; ``advised_node`` is for those without a GPU.

    A polite kill, or the end of the terminal, ends us as cleanly as Ctrl-C.
    """
    with ended_by(signal.SIGTERM, signal.SIGHUP):
        try:
            yield
        except NoCards as error:
            or_computed = f" or --model {advised_node} (computed)" if modelled else ""
            fail(f"{error}. Without a GPU use --sim {advised_node} (simulated){or_computed}", 2)
        except _OUTSIDE as error:
            fail(str(error), 1)
        except KeyboardInterrupt as ending:
            fail("interrupted; nothing was left running", code_of(ending))
