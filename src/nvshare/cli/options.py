"""What the commands share: the type of a size, and how to end with one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import click

from nvshare import config

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


def fail(text: str, code: int) -> NoReturn:
    """End the command with one line on standard error."""
    click.echo(f"[NVSHARE][FATAL]: {text}", err=True)
    raise SystemExit(code)
