"""The random-number ledger: the output position reached by each role of a sequence.

Draws are addressed by position (specs/rng.md), so the ledger is a position, not a count of draws: a round
reserves [P, P+W) and commits P+t, and what a rejected row would have drawn is drawn again, the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from txdecode.state.changes import Advance, Change, Close, Ids, Submit
from txdecode.state.digest import mix
from txdecode.state.errors import LedgerCorrupt

POSITION = 0x50
ROLES = ("target", "accept", "residual", "draft")
"""Roles in the order of the recorded positions. A law uses the first few: greedy the first alone."""


class RngLedger:
    """Positions reached, by request and role. They outlive a preemption: draws are never repeated."""

    name = "rng"
    fields: ClassVar[dict[int, str]] = {POSITION: "position"}

    def __init__(self) -> None:
        self.positions: dict[int, Ids] = {}

    def _positions(self, request: int) -> Ids:
        positions = self.positions.get(request)
        if positions is None:
            raise LedgerCorrupt(self.name, f"request {request}", "a known sequence", "none")
        return positions

    def delta(self, change: Change) -> int:
        """Digest increment of ``change``; pure. Raises ``LedgerCorrupt`` where it contradicts the ledger."""
        r = change.request
        if type(change) is Advance:
            before = self._positions(r)
            if change.close:
                return -sum(mix(POSITION, r, role, p) for role, p in enumerate(before))
            if not change.round:
                return 0
            after = change.rng
            if len(after) != len(before):
                raise LedgerCorrupt(self.name, f"request {r} roles", len(before), len(after))
            total = 0
            for role, (old, new) in enumerate(zip(before, after, strict=True)):
                if new != old + len(change.emitted):
                    where = f"request {r} role '{ROLES[role]}' position"
                    raise LedgerCorrupt(self.name, where, old + len(change.emitted), new)
                total += mix(POSITION, r, role, new) - mix(POSITION, r, role, old)
            return total
        if type(change) is Submit:
            if not 1 <= change.roles <= len(ROLES):
                raise LedgerCorrupt(self.name, f"request {r} roles", f"1..{len(ROLES)}", change.roles)
            return sum(mix(POSITION, r, role, len(change.prompt)) for role in range(change.roles))
        if type(change) is Close:
            return -sum(mix(POSITION, r, role, p) for role, p in enumerate(self._positions(r)))
        return 0

    def apply(self, change: Change) -> None:
        """Perform ``change``, which ``delta`` has checked against this very state."""
        r = change.request
        if type(change) is Advance:
            if change.close:
                del self.positions[r]
            elif change.round:
                self.positions[r] = change.rng
        elif type(change) is Submit:
            self.positions[r] = (len(change.prompt),) * change.roles
        elif type(change) is Close:
            del self.positions[r]

    def cells(self) -> Iterator[tuple[int, int, int, int]]:
        """Every cell (tag, a, b, value)."""
        for r, positions in self.positions.items():
            for role, position in enumerate(positions):
                yield POSITION, r, role, position

    def check(self) -> None:
        """Every invariant within this ledger; raises ``LedgerCorrupt``."""
        for r, positions in self.positions.items():
            if not 1 <= len(positions) <= len(ROLES):
                raise LedgerCorrupt(self.name, f"request {r} roles", f"1..{len(ROLES)}", len(positions))

    def snapshot(self) -> dict[str, Any]:
        """Plain data, from which ``restore`` builds an equal ledger."""
        return {str(r): list(positions) for r, positions in self.positions.items()}

    def restore(self, data: dict[str, Any]) -> None:
        """Replace the content by that of a snapshot."""
        self.positions = {int(key): tuple(positions) for key, positions in data.items()}
