"""The root of every operating error, and those that the ledgers raise.

The whole hierarchy is drawn in ``txdecode.runtime.errors``.
"""

from __future__ import annotations


class TxDecodeError(Exception):
    """Root of all operating errors. The message says what was expected, what was found, what to do."""


class LedgerExhausted(TxDecodeError):
    """A reservation did not fit. Nothing was reserved.

    ``ledger`` names the state group, ``wanted`` and ``free`` count pages, columns or rings.
    """

    def __init__(self, ledger: str, wanted: int, free: int) -> None:
        super().__init__(
            f"ledger '{ledger}' is exhausted: {wanted} wanted, {free} free; "
            f"finish or preempt a request, or open the runtime with a larger pool"
        )
        self.ledger = ledger
        self.wanted = wanted
        self.free = free


class LedgerCorrupt(TxDecodeError):
    """A ledger contradicts itself, an event, or a recorded digest.

    ``ledger`` and ``field`` name the place, ``expected`` and ``found`` hold both values.
    """

    def __init__(self, ledger: str, field: str, expected: object, found: object) -> None:
        super().__init__(f"ledger '{ledger}', {field}: expected {expected!r}, found {found!r}")
        self.ledger = ledger
        self.field = field
        self.expected = expected
        self.found = found
