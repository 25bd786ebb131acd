"""The recurrent ledger: one current checkpoint column a sequence and group, moved only by a commit.

A round writes the state after row i to its i-th reserved column and never to the current one, so a rejected
round leaves nothing to undo, and a plain step is a round of width one like any other.
"""

from __future__ import annotations

from typing import ClassVar

from txdecode.state.changes import Admit, Advance, Ids
from txdecode.state.holdings import HoldingsLedger


class RecurrentLedger(HoldingsLedger):
    """Current column and position of every resident sequence, for groups of kind ``column``."""

    name = "recurrent"
    unit = "column"
    UNIT, POSITION = 0x30, 0x31
    fields: ClassVar[dict[int, str]] = {UNIT: "column", POSITION: "position"}

    def granted(self, change: Admit) -> Ids:
        """The columns that hold the zero state."""
        return change.columns

    def moved(self, change: Advance, units: Ids) -> Ids:
        """The columns that the commit made current."""
        return change.columns
