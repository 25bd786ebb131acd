"""What a log must say about the run that wrote it, so that it can be read and continued alone."""

from __future__ import annotations

import contextlib
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
    on in a new file past ``segment_bytes``, and the oldest are deleted past ``keep_segments``. ``rollback``: the form
    of recurrent state that was asked for. ``draft_depth``: most drafts a round of the executor's own drafter.
    ``draft_model``: the second model that drafts, by the name that was given. ``spec_fallback``: how
    many times as fast as plain a round of ``goodput`` must be expected to be."""

    model: str = ""
    dtype: str = "bf16"
    draft: str = "lookup"
    draft_len: int | str = "goodput"
    pages: int | None = None
    batch_max: int = 8
    context: int | None = None
    threads: int | None = None
    eos_ids: tuple[int, ...] = ()
    segment_bytes: int = SEGMENT_BYTES
    keep_segments: int | None = None
    rollback: str | None = None
    draft_depth: int | None = None
    draft_model: str | None = None
    spec_fallback: float = 1.0


def code_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("txdecode")
    except PackageNotFoundError:
        return "unknown"


def fingerprint(description: Description, extra: Mapping[str, str]) -> dict[str, str]:
    """What must agree for two runs to be equal to the bit. The geometry of the state is in the configuration, as
    groups; the form of recurrent state, which two equal groups may differ in, is here."""
    form = description.capabilities.rollback
    return {
        "txdecode": code_version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "executor": description.name,
        "numerics": description.capabilities.tolerance,
        "rng": RNG_LAW,
        **({"rollback": form} if form else {}),
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


def differing(
    recorded: Mapping[str, Any], description: Description, options: Options
) -> tuple[str, object, object] | None:
    """The first field of a log's configuration that is not that of ``description``, with what was recorded and what
    is here; ``None`` where all that matters agrees. Groups of an older log get the fields that it lacks."""
    here = to_data(description, options)
    for field in ("executor", "vocab_size", "context", "groups"):
        found = recorded.get(field)
        if field == "groups":
            with contextlib.suppress(KeyError, TypeError, AssertionError):
                found = [list(attrs.astuple(group)) for group in groups_from(recorded)]
        if found != here[field]:
            return field, recorded.get(field), here[field]
    return None


def groups_from(data: Mapping[str, Any]) -> tuple[StateGroup, ...]:
    """State groups of a log header. Raises ``KeyError`` or ``TypeError`` where they are malformed."""
    return tuple(StateGroup(*fields) for fields in data["groups"])
