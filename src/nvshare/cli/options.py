"""What the commands share: types of options, and how to end with one line, whatever is wrong."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from nvshare import config, native
from nvshare.cli.interrupts import INTERRUPTED, code_of, ended_by
from nvshare.cores import Cores
from nvshare.gpu.sim import SPEED_BOUNDS

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # what a full or broken output answers
_HELP_ASKED_FOR = getattr(click.exceptions, "NoArgsIsHelpError", ())  # in newer releases of click only

if TYPE_CHECKING:
    _Value = click.ParamType[Any]
    _Names = click.ParamType[tuple[str, ...]]
else:
    _Value = _Names = click.ParamType  # generic in newer releases of click only


class _Parsed(_Value):
    """What ``parse`` makes of the text; its ``ValueError`` names what is allowed."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = _Parsed("size", config.parse_size)
SLEEP_AFTER = _Parsed("when", config.parse_sleep_after)
CORES = _Parsed("percent", Cores.parse)
CORES_HELP = "in percent of one GPU (60 caps, 30..60 also guarantees 30, 30.. only guarantees), 1 to 99; 100: no quota"


class Finite(click.FloatRange):
    """A number; neither infinite nor no number at all."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number{' of seconds' if self.name == 'seconds' else ''}.", param, ctx)
        return number


class Seconds(Finite):
    name = "seconds"


SPEED = click.option(
    "--speed",
    type=Finite(*SPEED_BOUNDS),
    help="How many times as fast as life the simulated node runs. Default: as it does if it is up, else 1.",
)


class _SomeOf(_Names):
    """``parallel,survivor``: names of things that there are."""

    name = "names"

    def __init__(self, what: str, there_are: Sequence[str]) -> None:
        self.what = what
        self.there_are = there_are

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        for name in names:
            if name not in self.there_are:
                self.fail(f"there is no {self.what} {name!r}: allowed are {', '.join(self.there_are)}", param, ctx)
        return names


def only(what: str, there_are: Iterable[str]) -> Callable[[Any], Any]:
    """The option ``--only a,b``, given as ``checks`` where ``what`` is a check."""
    names = tuple(there_are)
    return click.option(
        "--only",
        f"{what}s",
        type=_SomeOf(what, names),
        default=",".join(names),
        metavar=f"{what.upper()}S",
        help=f"Of {', '.join(names)}; e.g. {','.join(names[:2])}. Default: all.",
    )


class ResultFile(click.Path):
    """A file that will be written at the end: better to know at the beginning that it cannot be. What is there stays
    until then."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            _try_to_write(path)
        except OSError as error:
            self.fail(f"{path} cannot be written ({error.strerror})", param, ctx)
        return path


def _try_to_write(path: Path) -> None:
    """Without leaving a trace; a pipe or a device is not opened, which might wait for a reader."""
    there = path.exists()
    if there and not path.is_file():
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    with path.open("a"):
        pass
    if not there:
        path.unlink()


class PlainCommand(click.Command):
    """Ends with one line where what was typed or the surroundings are at fault, and with the shell's own code after
    Ctrl-C. Of nested commands the outermost does it for all."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        _show_something_for_every_character()
        try:
            with ended_by(signal.SIGINT):
                code = super().main(args, prog_name, complete_var, False, **extra)
        except _HELP_ASKED_FOR as asked:
            asked.show()
            raise SystemExit(asked.exit_code) from None
        except click.ClickException as error:
            fail(_in_words(error), error.exit_code)
        except click.Abort:
            raise SystemExit(INTERRUPTED) from None
        except OSError as error:
            if error.filename is None and "temporary directory" in str(error):  # as the standard library says it
                fail("there is no directory for temporary files: set TMPDIR to one that can be written", 2)
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            give_up_output()
            fail(f"the output cannot be written: {error.strerror}", 1)
        raise SystemExit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (config.RuntimeUnusable, native.NativeMissing) as error:
            fail(str(error), 2)
        except KeyboardInterrupt as ending:
            raise SystemExit(code_of(ending)) from None


def _in_words(error: click.ClickException) -> str:
    """The option and what is wrong with it; else what is wrong, and where to read what is right."""
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        return _one_line(f"{_name(error)}: {error.message}")
    said = _one_line(error.format_message())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return said if context is None else f"{said}; see {context.command_path} --help"


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _name(error: click.BadParameter) -> str:
    if error.param is None:
        return str(error.param_hint or "")
    if isinstance(error.param, click.Option):
        return max(error.param.opts, key=len)
    return error.param.human_readable_name.strip("[]")


def _show_something_for_every_character() -> None:
    """In the user's encoding, which may have neither arrows nor bars, nor all that file names may hold."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def give_up_output() -> None:
    """Nothing is shown any more. What is left in the buffer would be tried once more at the very end, and complain
    again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class PlainGroup(PlainCommand, click.Group):
    """The same with subcommands."""


def fail(text: str, code: int) -> NoReturn:
    """End the command with one line on standard error, if that can be written."""
    with contextlib.suppress(OSError):
        click.echo(f"[NVSHARE][FATAL]: {text}", err=True)
    raise SystemExit(code)
