"""Arguments of the commands that look into logs. What they cannot take is one line, as every other bad input."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from txdecode.runtime.replay import InvalidArgument

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def number_option(*names: str, least: int = 0, **more: Any) -> Option:
    """An option with a whole number of at least ``least``. The command line raises ``InvalidArgument`` for others."""

    def convert(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        if re.fullmatch(r"-?[0-9]{1,18}", value, re.ASCII) and int(value) >= least:
            return int(value)
        raise InvalidArgument(
            f"{param.opts[0]} must be a whole number of at least {least}, found {value!r:.60}; give another"
        )

    return click.option(*names, type=str, callback=convert, **more)


def word_option(*names: str, words: Sequence[str], **more: Any) -> Option:
    """An option with one of ``words``. The command line raises ``InvalidArgument`` for others."""

    def convert(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is None or value in words:
            return value
        raise InvalidArgument(
            f"{param.opts[0]} must be one of {', '.join(words)}, found {value!r:.60}; give one of them"
        )

    return click.option(*names, type=str, callback=convert, metavar="|".join(words), **more)


def log_argument(name: str = "log", metavar: str = "LOG") -> Option:
    """The path of a log."""
    return click.argument(name, metavar=metavar, type=click.Path(path_type=Path))
