"""What a log must say about the run that wrote it, so that it can be read and continued alone."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs

from txdecode.runtime.journal import SEGMENT_BYTES
from txdecode.state.groups import StateGroup
from txdecode.transactions.executor import Description

RNG_LAW = "philox4x32-10/position/1"
"""Name of the law by which random words are addressed (specs/rng.md)."""


@attrs.frozen
class Options:
    """How a runtime was opened; recovery opens the same again. ``pages`` are those that the pool got, since what a
    machine has free differs from day to day. ``eos_ids`` are those of an executor of the caller's own. The log goes
    on in a new file past ``segment_bytes``, and the oldest are deleted past ``keep_segments``."""

    model: str = ""
    dtype: str = "bf16"
    draft: str = "lookup"
    draft_len: int | str = "additive"
    pages: int | None = None
    batch_max: int = 8
    context: int | None = None
    threads: int | None = None
    eos_ids: tuple[int, ...] = ()
    segment_bytes: int = SEGMENT_BYTES
    keep_segments: int | None = None


def code_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("txdecode")
    except PackageNotFoundError:
        return "unknown"


def fingerprint(description: Description, extra: Mapping[str, str]) -> dict[str, str]:
    """What must agree for two runs to be equal to the bit."""
    return {
        "txdecode": code_version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "executor": description.name,
        "numerics": description.capabilities.tolerance,
        "rng": RNG_LAW,
        **description.fingerprint,
        **extra,
    }


def to_data(description: Description, options: Options) -> dict[str, Any]:
    """The configuration of a log header: plain data."""
    return {
        "executor": description.name,
        "vocab_size": description.vocab_size,
        "context": description.context,
        "groups": [list(attrs.astuple(group)) for group in description.groups],
        "options": {**attrs.asdict(options), "eos_ids": list(options.eos_ids)},
    }


def groups_from(data: Mapping[str, Any]) -> tuple[StateGroup, ...]:
    """State groups of a log header. Raises ``KeyError`` or ``TypeError`` where they are malformed."""
    return tuple(StateGroup(*fields) for fields in data["groups"])
