"""What the commands share: the type of a size, and how to end with one line."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from nvshare import config

INTERRUPTED = 130  # exit code: 128 and the number of SIGINT

if TYPE_CHECKING:
    _Parameter = click.ParamType[int]
else:
    _Parameter = click.ParamType  # generic in newer releases of click only


class _Size(_Parameter):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return config.parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = _Size()


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


class ResultFile(click.Path):
    """A file that will be written at the end: better to know at the beginning that it cannot be."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        parent = path.absolute().parent
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            self.fail(f"{path} cannot be written: {parent} is no directory of yours.", param, ctx)
        return path


class PlainCommand(click.Command):
    """Ends with one line where the surroundings are at fault, and with the shell's own code after Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except config.RuntimeUnusable as error:
            fail(str(error), 2)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


class OneLineCommand(PlainCommand):
    """What cannot be understood is one line too, and nothing has begun by then."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            fail(error.format_message(), 2)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and a polite kill count only afterwards: in the middle of an import they come out as any error or none."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class PlainGroup(PlainCommand, click.Group):
    """The same with subcommands."""


def fail(text: str, code: int) -> NoReturn:
    """End the command with one line on standard error."""
    click.echo(f"[NVSHARE][FATAL]: {text}", err=True)
    raise SystemExit(code)
