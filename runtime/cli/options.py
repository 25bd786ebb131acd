"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def model_option(function: F) -> F:
    """``--model``."""
    return click.option(
        "--model",
        default="smollm2",
        show_default=True,
        metavar="smollm2|FOLDER|FILE.gguf",
        help="A model: the packaged SmolLM2-135M, a folder in Hugging Face layout, or a GGUF file.",
    )(function)


def dtype_option(function: F) -> F:
    """``--dtype``."""
    return click.option(
        "--dtype",
        type=click.Choice(["bf16", "fp32"]),
        default="bf16",
        show_default=True,
        help="Precision of weights, state and computation.",
    )(function)


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")(function)


def threads_option(function: F) -> F:
    """``--threads``."""
    return click.option(
        "--threads", type=click.IntRange(min=1), help="CPU threads (default: torch decides)."
    )(function)
