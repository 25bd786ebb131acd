"""The history ledger: where conv windows, token contexts and selector rings of a sequence end.

A ring keeps its rows by position, so its committed content is fixed by its end; the ledger holds the ring's
number and that end. It moves together with the recurrent ledger, in one commit.
"""

from __future__ import annotations

from typing import ClassVar

from txdecode.state.changes import Admit, Advance, Ids
from txdecode.state.holdings import HoldingsLedger


class HistoryLedger(HoldingsLedger):
    """Ring and end position of every resident sequence, for groups of kind ``ring`` and ``tokens``."""

    name = "history"
    unit = "ring"
    UNIT, POSITION = 0x40, 0x41
    fields: ClassVar[dict[int, str]] = {UNIT: "ring", POSITION: "position"}

    def granted(self, change: Admit) -> Ids:
        """The rings that the sequence keeps until it leaves."""
        return change.slots

    def moved(self, change: Advance, units: Ids) -> Ids:
        """Rings stay; only their end moves."""
        return units
