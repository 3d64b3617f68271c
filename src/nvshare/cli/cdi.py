"""``nvshare cdi``: a specification of the Container Device Interface, by which Docker and Podman give out shares."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from nvshare import config, native
from nvshare.cli.env import container_edits
from nvshare.cli.options import PlainCommand, fail

KIND, DEVICE = "nvshare.com/gpu", "shared"


def specification(library: Path, socket: Path) -> dict[str, Any]:
    """What a container gets with ``--device nvshare.com/gpu=shared``, beside its GPU."""
    mounts, variables = container_edits(library, socket)
    edits = {
        "env": [f"{name}={value}" for name, value in variables.items()],
        "mounts": [
            {"hostPath": str(outside), "containerPath": inside, "options": ["ro", "nosuid", "nodev", "rbind"]}
            for outside, inside in mounts.items()
        ],
    }
    return {"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": DEVICE, "containerEdits": edits}]}


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write this file; Docker and Podman read those in /etc/cdi.",
)
def command(output: Path | None) -> None:
    """Print a CDI specification that gives a container its share of a GPU.

    \b
    sudo nvshare cdi --output /etc/cdi/nvshare.json
    docker run --device nvidia.com/gpu=0 --device nvshare.com/gpu=shared IMAGE
    podman run --device nvidia.com/gpu=0 --device nvshare.com/gpu=shared IMAGE

    The GPU itself comes from NVIDIA's specification (nvidia-ctk cdi generate). The scheduler is that of the machine:
    sudo nvshare install --system.
    """
    try:
        text = json.dumps(specification(native.built_interposer(), config.scheduler_socket(user=False)), indent=2)
    except native.NativeMissing as error:
        fail(str(error), 1)
    if output is None:
        click.echo(text)
        return
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text + "\n")
        temporary.replace(output)
    except OSError as error:
        fail(f"{output} cannot be written ({error.strerror}): run it as root, with sudo, or name another file", 1)
    click.echo(f"wrote {output}")
