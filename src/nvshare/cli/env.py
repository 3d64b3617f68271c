"""``nvshare env``: what a plain shell or a container needs to take part."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from nvshare import config, native
from nvshare.cli.options import SPEED, PlainCommand, fail
from nvshare.cli.run import scheduler_address, start_scheduler
from nvshare.client.spawn import is_running
from nvshare.launch.address import Address

_LIBRARY_INSIDE = "/usr/local/lib/libnvshare.so"
_SOCKETS_INSIDE = "/var/run/nvshare"


def shell_variables(library: Path, address: Address) -> dict[str, str]:
    """The variables of a shell whose programs share their GPU."""
    return {**address.variables, "NVSHARE_SOCK": str(address.socket), "LD_PRELOAD": config.preload_with(library)}


def container_edits(library: Path, socket: Path) -> tuple[dict[Path, str], dict[str, str]]:
    """What a container needs to take part: mounts, all read-only, and variables. The socket's directory is mounted, not
    the socket itself: a restarted scheduler makes a new one."""
    mounts = {library: _LIBRARY_INSIDE, socket.parent: _SOCKETS_INSIDE}
    variables = {"LD_PRELOAD": _LIBRARY_INSIDE, "NVSHARE_SOCK": f"{_SOCKETS_INSIDE}/{socket.name}"}
    return mounts, variables


def docker_arguments(library: Path, socket: Path) -> list[str]:
    """The same as arguments of ``docker run``."""
    mounts, variables = container_edits(library, socket)
    volumes = [part for outside, inside in mounts.items() for part in ("-v", f"{outside}:{inside}:ro")]
    return [*volumes, *(part for name, value in variables.items() for part in ("-e", f"{name}={value}"))]


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--sim", "spec", metavar="NODE", help="For a simulated node, e.g. 2xT4; starts it.")
@SPEED
@click.option("--docker", is_flag=True, help="Print arguments for docker run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(spec: str | None, speed: float | None, docker: bool, as_json: bool) -> None:
    """Print what a shell or a container needs to take part.

    \b
    eval "$(nvshare env)"               every program of this shell shares its GPU
    docker run --gpus all $(nvshare env --docker) IMAGE
    eval "$(nvshare env --sim 2xT4)"    a simulated node
    """
    if docker and spec is not None:
        fail("a simulated node lives in this machine's processes: --docker and --sim do not go together", 2)
    library = native.interposer()
    address = scheduler_address(spec, speed)
    if address.simulated:
        start_scheduler(address)
    elif not is_running(address.socket):
        click.echo(
            f"[NVSHARE][WARN]: no scheduler answers on {address.socket}; start one with: nvshare-scheduler --user",
            err=True,
        )
    if docker:
        arguments = docker_arguments(library, address.socket)
        click.echo(json.dumps(arguments) if as_json else shlex.join(arguments))
        return
    variables = shell_variables(library, address)
    if as_json:
        click.echo(json.dumps(variables, indent=2))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
