"""Whether the kernels at hand are those that wrote a log: to the bit, in their class, or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from txdecode.runtime.configuration import Options, differing, fingerprint
from txdecode.runtime.drafters.spelling import learned_part
from txdecode.runtime.execution.errors import ExecutionRefused
from txdecode.runtime.journal import Header
from txdecode.runtime.opening import Opened, open_model
from txdecode.transactions.executor import Executor

IGNORED = frozenset({"txdecode", "python"})
"""Another release of this code or of Python computes the same."""

CLASS = frozenset(
    {
        "machine",
        "cpu",
        "threads",
        "torch",
        "numerics",
        "kernels",
        "triton",
        "flashinfer",
        "device",
        "driver",
        "cuda",
    }
)
"""What may change how the same model is computed. Anything else in a fingerprint says which model it is."""


@attrs.frozen
class Agreement:
    """``numerics`` is ``exact`` where bits must be equal, else the class that the executor declares; ``differs`` are
    then the fields of the fingerprint that are not what they were, as pairs recorded and found."""

    numerics: str
    differs: Mapping[str, tuple[str | None, str | None]]

    @property
    def exact(self) -> bool:
        """Whether bits must be equal."""
        return not self.differs

    @property
    def note(self) -> str:
        """For the message of a divergence."""
        if self.exact:
            return ""
        return (
            f" (run in class '{self.numerics}': the fingerprints differ in {', '.join(sorted(self.differs))})"
        )


def open_again(
    options: Options, model: str | os.PathLike[str] | Executor | None, threads: int | None
) -> Opened:
    """The model that a log was written with, or ``model``. Host drafters are not needed: drafts are in the log."""
    return open_model(
        options.model if model is None else model,
        options.dtype,
        "none",
        options.pages,
        options.batch_max,
        options.context,
        options.threads if threads is None else threads,
        rollback=options.rollback,
        learned=learned_part(options.draft) == "executor",
        draft_model=options.draft_model,
    )


def agree(header: Header, opened: Opened, options: Options) -> Agreement:
    """How far execution can be compared with the log. Raises ``ExecutionRefused`` for another model."""
    description = opened.executor.describe()
    at = differing(header.configuration, description, options)
    if at is not None:
        raise ExecutionRefused(*at)
    now = fingerprint(description, opened.fingerprint)
    differs: dict[str, tuple[str | None, str | None]] = {}
    for field, value in header.fingerprint.items():
        if field in IGNORED or now.get(field) == value:
            continue
        # Those of a second model that drafts mean the same.
        if field.removeprefix("draft.") not in CLASS:
            raise ExecutionRefused(f"fingerprint '{field}'", value, now.get(field))
        differs[field] = value, now.get(field)
    declared = description.capabilities.tolerance
    # An executor that is exact with itself says nothing of other kernels.
    return Agreement(("unspecified" if declared == "exact" else declared) if differs else "exact", differs)
