"""What running a log again can end with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import attrs

from txdecode.state.errors import TxDecodeError

Phase = Literal["draft", "accept", "audit"]


class ExecutionRefused(TxDecodeError):
    """A log that these kernels cannot run again: it is of another model or configuration. ``field`` names what
    differs."""

    def __init__(self, field: str, recorded: object, found: object) -> None:
        super().__init__(
            f"the log cannot be executed again: {field} was {_short(recorded)} when it was written and is "
            f"{_short(found)} now; open the model and configuration that the log's header names"
        )
        self.field = field
        self.recorded = recorded
        self.found = found


@attrs.frozen
class Difference:
    """One place where the log and its execution part.

    ``ledger`` is ``tokens``, ``logprobs`` or, in an audit, the name of a device state group. ``layer``, ``index``
    (page ordinal, or 0) and ``row`` (position, or -1 for all of the piece) are of a device state, else ``None``.
    """

    phase: Phase
    ledger: str
    field: str
    expected: object
    found: object
    layer: int | None = None
    index: int | None = None
    row: int | None = None


class ExecutionDivergence(TxDecodeError):
    """The log and its execution part.

    ``sequence`` is the record, ``event`` its kind, ``request``, ``epoch`` and ``ordinal`` the round, ``phase`` where
    in it: ``draft``, ``accept`` or ``audit``. The rest is as in ``Difference``; ``expected`` is what the log says,
    ``found`` what the kernels say now. ``command`` shows it again.
    """

    def __init__(
        self,
        path: Path,
        sequence: int,
        event: str,
        request: int,
        epoch: int,
        ordinal: int,
        at: Difference,
        note: str = "",
    ) -> None:
        self.sequence = sequence
        self.event = event
        self.request = request
        self.epoch = epoch
        self.ordinal = ordinal
        self.difference = at
        self.phase = at.phase
        self.ledger = at.ledger
        self.field = at.field
        self.layer = at.layer
        self.index = at.index
        self.row = at.row
        self.expected = at.expected
        self.found = at.found
        self.command = again(path, sequence)
        super().__init__(
            f"record {sequence} ({event}, request {request}, epoch {epoch}, round {ordinal}) diverges in {at.phase}: "
            f"ledger '{at.ledger}', {at.field}: expected {_short(at.expected)} (recorded), found "
            f"{_short(at.found)} (executed){note}; see it again with: {self.command}"
        )


def again(path: Path, sequence: int) -> str:
    """The command that executes a log up to a record."""
    return f"txdecode replay {path} --execute --until {sequence}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."
