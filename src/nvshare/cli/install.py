"""``nvshare install``: the scheduler as a service of this machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import click

from nvshare import native
from nvshare.cli.options import PlainCommand, fail

UNIT = "nvshare-scheduler.service"
_UNITS = Path("etc/systemd/system")
_SYSTEMD_RUNS = Path("/run/systemd/system")


def unit_text(program: Path) -> str:
    """The unit of the service that runs this program."""
    quoted = str(program).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return native.deployment_file("systemd", UNIT).read_text().replace("@SCHEDULER@", f'"{quoted}"')


def changeable_part(path: Path) -> Path | None:
    """The part of a path that others than root may change; None when root alone decides what lies there."""
    for part in (path, *path.parents):
        status = part.stat()
        others_write = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or others_write:
            return part
    return None


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--system", is_flag=True, help="The scheduler as a systemd service, for everybody on this machine.")
@click.option("--uninstall", is_flag=True, help="Stop the service and remove it.")
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Into this file tree (of an image) instead of the running system; nothing is started.",
)
def command(system: bool, uninstall: bool, only_print: bool, root: Path | None) -> None:
    """Install the scheduler as a service that starts with the machine.

    \b
    sudo nvshare install --system               install it and start it
    sudo nvshare install --system --uninstall   stop it and remove it
    nvshare install --system --print            look at the unit

    Settings go to /etc/default/nvshare, such as NVSHARE_SCHEDULING_MODE=serial. Without a service `nvshare run` starts
    a scheduler of your own when none answers.
    """
    if not system:
        fail("say what to install: --system, the scheduler as a systemd service", 2)
    if only_print and uninstall:
        fail("--print changes nothing: leave out --uninstall", 2)
    program = Path(sysconfig.get_path("scripts")) / "nvshare-scheduler"
    if only_print:
        click.echo(unit_text(program), nl=False)
        return
    if root is None and not _SYSTEMD_RUNS.is_dir():
        fail("systemd does not run here: see the unit with --print, or name an image's file tree with --root", 1)
    unit = (root or Path("/")) / _UNITS / UNIT
    try:
        if uninstall:
            _remove(unit, root)
        else:
            _add(unit, root, program)
    except PermissionError as error:
        fail(f"{error.filename} cannot be changed: run it as root, with sudo", 1)
    except (OSError, subprocess.CalledProcessError, native.NativeMissing) as error:
        fail(str(error), 1)


def _add(unit: Path, root: Path | None, program: Path) -> None:
    if not program.exists():
        fail(f"there is no {program}: install nvshare with pip first", 1)
    for part in (program, Path(native.__file__), Path(sys.executable)):
        changeable = changeable_part(part.resolve())
        if changeable is not None:
            fail(
                f"the service would run as root, and others than root may change {changeable}: "
                "install nvshare where root alone writes, e.g. in /opt/nvshare",
                1,
            )
    unit.parent.mkdir(parents=True, exist_ok=True)
    temporary = unit.with_name(f".{unit.name}.{os.getpid()}")
    temporary.write_text(unit_text(program))
    temporary.replace(unit)
    _systemctl(root, "enable", UNIT)
    if root is None:
        _systemctl(root, "daemon-reload")
        _systemctl(root, "restart", UNIT)
    click.echo(f"installed {unit}" + (", and it runs; see: nvsharectl status" if root is None else ""))


def _remove(unit: Path, root: Path | None) -> None:
    if not unit.exists():
        fail(f"there is no {unit}: nothing to remove", 1)
    if root is None:
        _systemctl(root, "stop", UNIT)
    _systemctl(root, "disable", UNIT)
    unit.unlink()
    if root is None:
        _systemctl(root, "daemon-reload")
    click.echo(f"removed {unit}")


def _systemctl(root: Path | None, *arguments: str) -> None:
    where = [] if root is None else ["--root", str(root)]
    subprocess.run(["systemctl", "--quiet", *where, *arguments], check=True)
