"""The ``nvshare`` command. Subcommands live in a module each and are imported only when used."""

from __future__ import annotations

import importlib

import click

from nvshare import __version__
from nvshare.cli.interrupts import uninterrupted
from nvshare.cli.options import PlainGroup

SUBCOMMANDS = {
    "run": "run a command with its GPU shared",
    "launch": "run a command on many workers, each with its GPU or its part of one",
    "stress": "prove leases, launches and shutdown, on real or simulated GPUs",
    "verify": "prove that sharing works here, or tell from logs whether it did",
    "doctor": "find out what keeps this machine from sharing, and what to do about it",
    "env": "print what a shell or container needs to take part",
    "cdi": "write what gives a container its share, for Docker and Podman",
    "install": "install the scheduler as a service of this machine",
    "sim": "start, show and end simulated nodes",
    "demo": "a short demonstration on the real or a simulated GPU",
    "bench": "measure: the scenarios of the published table",
    "report": "show or compare what was measured, as tables and a page",
    "kube-test": "prove sharing on a Kubernetes cluster",
}


class _Lazy(PlainGroup):
    """Imports a subcommand's module only when it is asked for, so that ``nvshare run`` starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        with uninterrupted():
            command: click.Command = importlib.import_module(f"nvshare.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nvshare")
def main() -> None:
    """Several processes share one NVIDIA GPU, each as if it owned the card.

    \b
    nvshare demo                               see it work, with or without a GPU
    nvshare run -- python train.py             share the GPU
    nvshare run --mem 4GiB -- python train.py  ... with a memory quota
    nvshare run --sim 2xT4 -- ./program        on a simulated node
    nvsharectl status --watch                  who runs, who waits
    """


if __name__ == "__main__":
    main()
