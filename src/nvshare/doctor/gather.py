"""All facts of a machine, or of a simulated node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nvshare import __version__, config
from nvshare.doctor.facts import Facts
from nvshare.doctor.look import driver, host, scheduler, shell

_SCHEDULER_PATIENCE = 5.0  # seconds
PATIENCE = 20.0  # seconds that the driver has to answer: without its persistence daemon it starts every card anew


def gather(variables: Mapping[str, str] | None = None, seconds: float = PATIENCE) -> Facts:
    """Look at everything. ``variables``: those of a simulated node, ``seconds``: how long the driver may take."""
    own = config.child_environment({})
    environ = config.child_environment(variables or {})
    library = shell.library(environ)
    views = driver.look(environ, Path(library.path) if library.path else None, seconds)
    cards = [uuid for device in views.nvml.devices for uuid in (device.instances or (device.uuid,))]
    found, status = scheduler.look(environ, cards, min(seconds, _SCHEDULER_PATIENCE))
    return Facts(
        release=__version__,
        environment=shell.environment(own, environ),
        host=host.look(environ),
        native=views.native,
        here=views.here,
        shared=views.shared,
        nvml=views.nvml,
        library=library,
        scheduler=found,
        holders=scheduler.holders(status, views.nvml),
    )
