"""What the commands share: JSON on standard output, progress on a terminal, small tables."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

_BAR_WIDTH = 24
_REDRAW_S = 0.1


def print_json(data: Any) -> None:
    """One JSON document on standard output; numbers that JSON does not have are strings (``"-inf"``)."""
    click.echo(json.dumps(_finite(data), ensure_ascii=False, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


class Progress:
    """A bar on standard error, on a terminal only."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = sys.stderr.isatty()
        self._drawn = 0.0

    def __call__(self, done: int, total: int, what: str = "") -> None:
        """Draw, at most ten times a second."""
        now = time.monotonic()
        if not self._shown or (done < total and now - self._drawn < _REDRAW_S):
            return
        self._drawn = now
        filled = _BAR_WIDTH * done // max(total, 1)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        click.echo(f"\r\x1b[K{self._label} [{bar}] {done}/{total} {what}", err=True, nl=False)

    def close(self) -> None:
        """Wipe the bar."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def print_pairs(pairs: Mapping[str, object], *, err: bool = False) -> None:
    """Names and values, aligned."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        click.echo(f"  {name:<{width}}  {value}", err=err)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, err: bool = False) -> None:
    """A table with columns as wide as their content; numbers to the right."""
    texts = [[_text(value) for value in row] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in texts), 0) for i, name in enumerate(header)]
    click.echo(
        "  ".join(
            click.style(f"{name:<{width}}", bold=True) for name, width in zip(header, widths, strict=True)
        ),
        err=err,
    )
    for row, values in zip(texts, rows, strict=True):
        cells = (
            f"{text:>{width}}" if isinstance(value, int | float) else f"{text:<{width}}"
            for text, value, width in zip(row, values, widths, strict=True)
        )
        click.echo("  ".join(cells).rstrip(), err=err)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def human_bytes(count: int) -> str:
    """A size for people."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
