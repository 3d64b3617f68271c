"""``nvsharectl``: look at a running scheduler and change its settings."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from nvshare import __version__, config
from nvshare.cli.options import CORES_HELP, PlainGroup, fail
from nvshare.cli.status import describe_settings, status_view
from nvshare.client.connection import Connection, RequestRefused, SchedulerError
from nvshare.cores import Cores
from nvshare.gpu import sim

_PERIOD = 1.0  # seconds between two looks of --watch
_WIDE = 1000  # columns of what is no terminal: one line per task, as programs that read it like it
_ORIGINS = {
    "annotation": " (from its annotation {annotation}, which counts before what is set here)",
    "gpumem": " (from its nvshare.com/gpumem)",
    "run": " (from nvshare run {option})",
    "environment": " (from its {variable})",
}
_ASLEEP = {"asleep": "sleeps", "called": "sleeps, and is about to wake", "waking": "wakes"}
_AWAKE = {"awake": "is awake", "leaving": "is awake", "ordered": "falls asleep: ask again", "waking": "wakes"}
_ON_OFF = {"on": True, "off": False}


def _ask(socket: Path, op: str, **fields: Any) -> dict[str, Any]:
    """One request on a connection of its own; ends the command when it fails."""
    with _plain_refusals(), Connection(socket) as connection:
        answer = connection.request(op, **fields)
    if answer.get("unkept") is not None:
        said = f"in force, but not kept for a restart of the scheduler: {answer['unkept']}"
        click.echo(f"[NVSHARE][WARN]: {said}", err=True)
    return answer


def _status(socket: Path) -> dict[str, Any]:
    with _plain_refusals(), Connection(socket) as connection:
        return connection.status()


@contextlib.contextmanager
def _plain_refusals() -> Iterator[None]:
    try:
        yield
    except RequestRefused as error:
        fail(str(error), 2)
    except SchedulerError as error:
        fail(str(error), 1)


@click.group(cls=PlainGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--socket", type=click.Path(path_type=Path), help="The scheduler's socket. Default: as the library finds it."
)
@click.option("--sim", "node", metavar="NODE", help="The scheduler of this simulated node, e.g. 2xT4.")
@click.option(
    "-T", "--set-tq", type=click.IntRange(*config.QUANTUM_BOUNDS), metavar="N", help="Set a fixed quantum of N seconds."
)
@click.option("-S", "--anti-thrash", type=click.Choice(["on", "off"]), help="off: everybody runs freely.")
@click.version_option(__version__, prog_name="nvsharectl")
@click.pass_context
def main(
    ctx: click.Context, socket: Path | None, node: str | None, set_tq: int | None, anti_thrash: str | None
) -> None:
    """Looks at and configures a running nvshare-scheduler.

    \b
    nvsharectl status --watch
    nvsharectl set --mode serial
    nvsharectl set --pid 4711 --mem 4GiB --cores 30
    nvsharectl -T 30                     fixed quantum of 30 seconds
    nvsharectl -S off                    no turns at all
    nvsharectl reset --all               as the scheduler was started
    nvsharectl sleep --pid 4711          off its GPUs until it wants them

    What is set here outlives a restart of the scheduler, until reset takes it back.
    """
    if socket is not None and node is not None:
        fail("--socket and --sim do not go together: choose one", 2)
    ctx.obj = _node_socket(node) if node is not None else socket or config.find_socket()
    changes: dict[str, Any] = {}
    if set_tq is not None:
        changes["quantum"] = set_tq
    if anti_thrash is not None:
        changes["anti_thrash"] = _ON_OFF[anti_thrash]
    if changes:
        click.echo(describe_settings(_ask(ctx.obj, "set", **changes)["settings"]))
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _node_socket(node: str) -> Path:
    try:
        return sim.find(node).socket
    except sim.SimError as error:
        fail(str(error), 2)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="The whole snapshot as JSON (with --watch: one line a second).")
@click.option("--watch", is_flag=True, help="Again every second, until Ctrl-C.")
@click.pass_obj
def status(socket: Path, as_json: bool, watch: bool) -> None:
    """Show the GPUs, who runs, who waits and for what, what they hold and where it is.

    \b
    nvsharectl status
    nvsharectl status --watch
    nvsharectl --sim 2xT4 status --json
    """
    if not watch:
        snapshot = _status(socket)
        if as_json:
            click.echo(json.dumps(snapshot, indent=2))
        else:
            _console().print(status_view(snapshot))
    elif as_json:
        while True:
            click.echo(json.dumps(_status(socket)))
            time.sleep(_PERIOD)
    else:
        _watch(socket)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def _watch(socket: Path) -> None:
    _status(socket)  # a scheduler that is not there is an error at first, later only news
    console = _console()
    with Live(console=console, auto_refresh=False) if console.is_terminal else contextlib.nullcontext() as live:
        while True:
            try:
                with Connection(socket) as connection:
                    view: RenderableType = status_view(connection.status())
            except SchedulerError as error:
                view = Text(str(error))
            if live is not None:
                live.update(view, refresh=True)
            else:  # a file or a pipe: one below the other
                console.print(view)
                console.file.flush()
            time.sleep(_PERIOD)


_TARGETS = ("client", "pid", "pod", "run")
_NONE = "none: back to what the run, the pod or its environment says"


def _whose(command: Callable[..., None]) -> Callable[..., None]:
    """Options that name a group."""
    return _naming(command, "Whose quota: ", "the group of ")


def _whom(command: Callable[..., None]) -> Callable[..., None]:
    """Options that name one client, or all of a group."""
    return _naming(command, "Whom: ", "")


def _naming(command: Callable[..., None], asked: str, of: str) -> Callable[..., None]:
    for option in (
        click.option("--run", metavar="RUN", help=f"{asked}this `nvshare run` or lease, by number or name."),
        click.option("--pod", metavar="NAMESPACE/NAME", help=f"{asked}this pod."),
        click.option("--pid", type=int, help=f"{asked}{of}this process."),
        click.option("--client", metavar="ID", help=f"{asked}{of}this client (16 hex digits)."),
    ):
        command = option(command)
    return command


def _target(options: dict[str, Any]) -> dict[str, Any]:
    """The one that is named."""
    targets = {name: options[name] for name in _TARGETS if options[name] is not None}
    if len(targets) != 1:
        fail("give one of --client, --pid, --pod, --run", 2)
    return targets


@main.command("set")
@click.option("--mode", type=click.Choice(config.MODES), help="How tasks share a card.")
@_whose
@click.option("--mem", metavar="SIZE", help=f"Memory quota, e.g. 4GiB; {_NONE}.")
@click.option("--cores", metavar="PERCENT", help=f"Compute quota {CORES_HELP}; {_NONE}.")
@click.option("--priority", type=click.Choice(config.PRIORITIES), help="high for latency-critical tasks.")
@click.pass_obj
def set_command(socket: Path, /, mode: str | None, **options: Any) -> None:
    """Change the scheduling mode, or the quotas of one client's group.

    \b
    nvsharectl set --mode concurrent
    nvsharectl set --pod default/notebook-3 --mem 4GiB --cores 30
    nvsharectl set --pid 4711 --cores 20..50   20 % guaranteed, at most 50 %
    nvsharectl set --run 4711 --mem none
    nvsharectl set --run trial-7 --priority high
    """
    targets = {name: options[name] for name in _TARGETS if options[name] is not None}
    limits = _limits(options["mem"], options["cores"], options["priority"])
    if len(targets) > 1 or bool(targets) != bool(limits) or not (mode or limits):
        fail("give --mode, or one of --client, --pid, --pod, --run together with any of --mem, --cores, --priority", 2)
    if limits:  # before the mode: of the two only this can be refused, and then nothing is to change
        click.echo(_describe_group(_ask(socket, "limit", target=targets, **limits)["group"]))
    if mode:
        click.echo(describe_settings(_ask(socket, "set", mode=mode)["settings"]))


@main.command()
@_whose
@click.option("--settings", is_flag=True, help="Mode, quantum and anti-thrash: as the scheduler was started.")
@click.option("--all", "everything", is_flag=True, help="These, and the quotas of everybody.")
@click.pass_obj
def reset(socket: Path, /, settings: bool, everything: bool, **options: Any) -> None:
    """Take back what was set with nvsharectl: the quotas of one group, the settings, or all of it.

    \b
    nvsharectl reset --pid 4711
    nvsharectl reset --settings
    nvsharectl reset --all
    """
    targets = {name: options[name] for name in _TARGETS if options[name] is not None}
    if len(targets) + settings + everything != 1:
        fail("give --settings, --all, or one of --client, --pid, --pod, --run", 2)
    asked = {"target": targets} if targets else {"scope": "settings" if settings else "everything"}
    answer = _ask(socket, "reset", **asked)
    if not targets:
        click.echo(describe_settings(answer["settings"]))
    for group in answer["groups"]:
        click.echo(_describe_group(group) if "priority" in group else f"{group['id']}: not here, forgotten")


@main.command()
@_whom
@click.pass_obj
def sleep(socket: Path, /, **options: Any) -> None:
    """Put a task to sleep: its memory and its contexts leave its GPUs. It wakes by itself when it wants them.

    A user may do this to his own tasks, an operator to all.

    \b
    nvsharectl sleep --pid 4711
    nvsharectl sleep --run notebook
    """
    for client in _ask(socket, "sleep", target=_target(options))["clients"]:
        click.echo(f"client {client['id']} (pid {client['pid']}) {_ASLEEP.get(client['sleep'], _sleeps_soon(client))}")


@main.command()
@_whom
@click.pass_obj
def wake(socket: Path, /, **options: Any) -> None:
    """Wake a task that sleeps, as soon as there is room for its contexts; also one that could not be woken before.

    \b
    nvsharectl wake --pid 4711
    """
    for client in _ask(socket, "wake", target=_target(options))["clients"]:
        click.echo(f"client {client['id']} (pid {client['pid']}) {_AWAKE.get(client['sleep'], 'waits for room')}")


def _sleeps_soon(client: dict[str, Any]) -> str:
    reason = client["cannot_sleep"]
    return "sleeps when its memory has left its GPUs" if reason is None else f"stays awake: {reason}"


def _limits(mem: str | None, cores: str | None, priority: str | None) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if mem is not None:
        try:
            limits["mem"] = None if mem == "none" else config.parse_size(mem)
        except ValueError as error:
            raise click.BadParameter(f"{error}; or none", param_hint="--mem") from error
    if cores is not None:
        try:
            limits["cores"] = None if cores == "none" else Cores.parse(cores).plain
        except ValueError as error:
            raise click.BadParameter(f"{error}, or none", param_hint="--cores") from error
    if priority is not None:
        limits["priority"] = priority
    return limits


def _describe_group(group: dict[str, Any]) -> str:
    mem = group.get("mem_limit")
    quota = Cores(group.get("core_floor", 0), group.get("core_limit", Cores().cap))
    memory_from = _origin(group, "mem_limit", config.MEMORY_ANNOTATION, "--mem", config.GPU_MEMORY_LIMIT.name)
    cores_from = _origin(group, "core_limit", config.CORES_ANNOTATION, "--cores", config.GPU_CORE_LIMIT.name)
    return (
        f"{group['id']}: memory {config.format_size(mem) if mem else 'without limit'}{memory_from}, "
        f"cores {'without limit' if quota == Cores() else f'{quota} %'}{cores_from}{_unmet(group)}, "
        f"priority {group.get('priority') or 'normal'}"
    )


def _unmet(group: dict[str, Any]) -> str:
    """Where it is not guaranteed what it should be."""
    floor = group.get("core_floor", 0)
    cards = [uuid for uuid, held in group.get("core_floor_in_force", {}).items() if held < floor]
    return f" (not guaranteed yet on {', '.join(cards)}, where other floors leave no room)" if cards else ""


def _origin(group: dict[str, Any], field: str, annotation: str, option: str, variable: str) -> str:
    """Who set what is in force, where it was not set here."""
    text = _ORIGINS.get(group.get(f"{field}_from") or "", "")
    return text.format(annotation=annotation, option=option, variable=variable)


if __name__ == "__main__":
    main()
