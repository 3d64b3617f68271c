"""``nvshare sim``: start, show and end simulated nodes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from nvshare.cli.options import SPEED, PlainGroup, fail
from nvshare.config import format_size
from nvshare.gpu import sim


@click.group(name="sim", cls=PlainGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Simulated nodes: GPUs for driver-API programs on a machine without any.

    \b
    nvshare sim up 2xT4                     make a node of two T4
    nvshare run --sim 2xT4 -- ./program     use it (makes it when it is not there)
    nvshare sim show 2xT4                   what its GPUs did, and who uses them
    nvshare sim down 2xT4                   end it
    """


@command.command()
@click.argument("spec")
@SPEED
def up(spec: str, speed: float | None) -> None:
    """Make the node SPEC (such as 2xT4), or say that it is there."""
    try:
        node = sim.up(spec, speed)
    except ValueError as error:
        fail(str(error), 2)
    except sim.SimError as error:
        fail(str(error), 1)
    click.echo(f"simulated node {node.name}: {len(node.uuids)} x {node.profile.display_name}, speed {node.speed:g}")


@command.command()
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="end all nodes")
def down(name: str | None, every: bool) -> None:
    """End the node NAME and its scheduler; without NAME, the only one there is."""
    try:
        names = sim.names() if every or name is None else [name]
        if not every and name is None and len(names) != 1:
            known = ", ".join(names) or "none"
            raise sim.SimError(f"say which node, or --all (up: {known})")
        for each in names:
            sim.down(each)
            click.echo(f"simulated node {each} is down")
    except sim.SimError as error:
        fail(str(error), 1)


@command.command(name="list")
def list_nodes() -> None:
    """List the nodes that are up."""
    names = sim.names()
    for name in names:
        try:
            node = sim.find(name)
            node.counters()
        except sim.SimError as error:
            click.echo(f"{name}: unusable: {error}")
        else:
            click.echo(f"{name}: {len(node.uuids)} x {node.profile.display_name}, speed {node.speed:g}")
    if not names:
        click.echo("no simulated node is up (make one: nvshare sim up 2xT4)")


@command.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def show(name: str, as_json: bool) -> None:
    """Show what the GPUs of node NAME did so far, and who uses them."""
    try:
        node = sim.find(name)
        gpus = node.counters()
    except sim.SimError as error:
        fail(str(error), 1)
    if as_json:
        click.echo(json.dumps(_as_dict(node, gpus), indent=2))
        return
    click.echo(f"simulated node {node.name}: {node.spec}, speed {node.speed:g}, {node.directory}")
    for gpu in gpus:
        click.echo(f"{gpu['uuid']}")
        total = format_size(node.profile.memory_bytes)
        click.echo(f"  memory   {format_size(gpu['memory_used'])} of {total} in use")
        click.echo(f"  work     {gpu['launches']} launches, busy for {gpu['busy_ns'] / 1e9:.3f} simulated seconds")
        click.echo(f"  copied   {format_size(gpu['bytes_h2d'])} in, {format_size(gpu['bytes_d2h'])} out")
        for context in gpu["contexts"]:
            click.echo(f"  process  {context['pid']}: {format_size(context['bytes'])}")


def _as_dict(node: sim.SimNode, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "simulated": True,
        "name": node.name,
        "spec": node.spec,
        "speed": node.speed,
        "directory": str(node.directory),
        "profile": dataclasses.asdict(node.profile),
        "gpus": gpus,
    }
