"""All ledgers together: one delta, one apply, and the invariants that cross them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from txdecode.state.changes import Change
from txdecode.state.digest import LEDGERS, MASK, ZERO, Digests, add, mix
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.groups import StateGroup, of_kind
from txdecode.state.history import HistoryLedger
from txdecode.state.pages import PagesLedger
from txdecode.state.recurrent import RecurrentLedger
from txdecode.state.rng import RngLedger
from txdecode.state.tokens import TokensLedger


@attrs.frozen
class Delta:
    """A change with the digest increments that it brings, and the digests that result from it."""

    change: Change
    increments: Digests
    digests: Digests


@attrs.frozen
class Cell:
    """One named value of a ledger, for inspection and comparison."""

    ledger: str
    field: str
    key: tuple[int, int]
    value: int


class Ledgers:
    """The committed state. ``apply`` is its only mutator, the same in the live runtime and in replay."""

    def __init__(self, groups: tuple[StateGroup, ...]) -> None:
        columns = of_kind(groups, "column")
        rings = of_kind(groups, "ring")
        self.groups = groups
        self.tokens = TokensLedger()
        self.pages = PagesLedger(of_kind(groups, "pages"))
        self.recurrent = RecurrentLedger(columns, active=bool(columns))
        self.history = HistoryLedger(rings, active=bool(rings or of_kind(groups, "tokens")))
        self.rng = RngLedger()
        self.digests: Digests = ZERO

    def delta(self, change: Change, base: Digests | None = None) -> Delta:
        """What ``change`` does to the digests; pure.

        ``base`` are the digests that it comes after: by default the committed ones, for a later record of
        a batch those of the record before it (the records of a batch touch distinct sequences). Raises
        ``LedgerCorrupt`` where the change contradicts the ledgers.
        """
        increments: Digests = (
            self.tokens.delta(change),
            self.pages.delta(change),
            self.recurrent.delta(change),
            self.history.delta(change),
            self.rng.delta(change),
        )
        return Delta(change, increments, add(self.digests if base is None else base, increments))

    def apply(self, delta: Delta) -> None:
        """Perform a delta computed on this state, or on this state and the deltas before it in a batch."""
        change = delta.change
        self.tokens.apply(change, delta.increments[0])
        self.pages.apply(change)
        self.recurrent.apply(change)
        self.history.apply(change)
        self.rng.apply(change)
        self.digests = add(self.digests, delta.increments)

    def cells(self) -> Iterator[Cell]:
        """Every cell of every ledger, named."""
        for ledger in (self.tokens, self.pages, self.recurrent, self.history, self.rng):
            for tag, a, b, value in ledger.cells():
                yield Cell(ledger.name, ledger.fields[tag], (a, b), value)

    def recompute(self) -> Digests:
        """The digests summed over all cells; equal to ``digests`` unless something wrote past ``apply``."""
        t, p, c, h, r = (
            sum(mix(*cell) for cell in ledger.cells()) & MASK
            for ledger in (self.tokens, self.pages, self.recurrent, self.history, self.rng)
        )
        return (t, p, c, h, r)

    def check(self) -> None:
        """Every invariant, within and across ledgers; raises ``LedgerCorrupt``. For idle moments."""
        for ledger in (self.tokens, self.pages, self.recurrent, self.history, self.rng):
            ledger.check()
        self._check_across()
        for name, expected, found in zip(LEDGERS, self.recompute(), self.digests, strict=True):
            if expected != found:
                raise LedgerCorrupt(name, "digest", expected, found)

    def _check_across(self) -> None:
        sequences = self.tokens.sequences
        if self.rng.streams.keys() != sequences.keys():
            raise LedgerCorrupt("rng", "requests", sorted(sequences), sorted(self.rng.streams))
        for request, state in sequences.items():
            where = f"request {request}"
            for position in self.rng.streams[request].positions:
                if position != state.known:
                    raise LedgerCorrupt("rng", f"{where} position", state.known, position)
        resident = {request for request, state in sequences.items() if state.resident}
        for name, lengths, kept in (
            ("pages", self.pages.lengths, bool(self.pages.groups)),
            ("recurrent", self.recurrent.positions, self.recurrent.active),
            ("history", self.history.positions, self.history.active),
        ):
            holders = resident if kept else set()
            if lengths.keys() != holders:
                raise LedgerCorrupt(name, "resident requests", sorted(holders), sorted(lengths))
            for request, length in lengths.items():
                if length != sequences[request].consumed:
                    where = f"request {request} position"
                    raise LedgerCorrupt(name, where, sequences[request].consumed, length)

    def snapshot(self) -> dict[str, Any]:
        """Plain data (maps, lists, integers) with the law: fold of all == fold of snapshot and tail."""
        return {
            "tokens": self.tokens.snapshot(),
            "pages": self.pages.snapshot(),
            "recurrent": self.recurrent.snapshot(),
            "history": self.history.snapshot(),
            "rng": self.rng.snapshot(),
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Replace all content by that of a snapshot taken over the same groups, and check it."""
        self.tokens.restore(data["tokens"])
        self.pages.restore(data["pages"])
        self.recurrent.restore(data["recurrent"])
        self.history.restore(data["history"])
        self.rng.restore(data["rng"])
        self.digests = self.recompute()
        self.check()
