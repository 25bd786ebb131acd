"""The random-number ledger: whose draws a sequence takes, and the output position that each role has reached.

Draws are addressed by position (specs/rng.md), so the ledger holds positions, not counts of draws: a round
reserves [P, P+W) and commits P+t, and what a rejected row would have drawn is drawn again, the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from txdecode.state.changes import Advance, Change, Close, Ids, Submit
from txdecode.state.digest import mix
from txdecode.state.errors import LedgerCorrupt

POSITION, SEED, LAW = 0x50, 0x51, 0x52
ROLES = ("target", "accept", "residual", "draft")
"""Roles in the order of the recorded positions. A law uses the first few."""

LAWS = ("greedy", "coupled", "chain")
"""Acceptance laws in the order of their numbers."""

ROLES_OF_LAW = (1, 1, 4)
"""How many roles a law uses: the greedy one keeps the position alone, the coupled one takes every draw from
``target``, the chain takes all."""


@attrs.frozen
class Stream:
    """The draws of one sequence: law and seed are fixed for its life, ``positions`` are by role."""

    law: int
    seed: int
    positions: Ids


def _cells(request: int, stream: Stream) -> Iterator[tuple[int, int, int, int]]:
    # Zeros have no cell: a greedy sequence without a seed is its positions alone.
    if stream.law:
        yield LAW, request, 0, stream.law
    if stream.seed:
        yield SEED, request, 0, stream.seed
    for role, position in enumerate(stream.positions):
        yield POSITION, request, role, position


class RngLedger:
    """Streams by request. Positions outlive a preemption: draws are never repeated."""

    name = "rng"
    fields: ClassVar[dict[int, str]] = {POSITION: "position", SEED: "seed", LAW: "law"}

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}

    def get(self, request: int) -> Stream:
        """The stream of a known sequence; raises ``LedgerCorrupt`` where an event names an unknown one."""
        stream = self.streams.get(request)
        if stream is None:
            raise LedgerCorrupt(self.name, f"request {request}", "a known sequence", "none")
        return stream

    def delta(self, change: Change) -> int:
        """Digest increment of ``change``; pure. Raises ``LedgerCorrupt`` where it contradicts the ledger."""
        r = change.request
        if type(change) is Advance:
            stream = self.get(r)
            moved = self._moved(change, stream.positions) if change.round else 0
            return -sum(mix(*cell) for cell in _cells(r, stream)) if change.close else moved
        if type(change) is Submit:
            _check(r, change.law, change.seed, change.roles)
            fresh = Stream(change.law, change.seed, (len(change.prompt),) * change.roles)
            return sum(mix(*cell) for cell in _cells(r, fresh))
        if type(change) is Close:
            return -sum(mix(*cell) for cell in _cells(r, self.get(r)))
        return 0

    def _moved(self, change: Advance, before: Ids) -> int:
        r, after, count = change.request, change.rng, len(change.emitted)
        if len(after) != len(before):
            raise LedgerCorrupt(self.name, f"request {r} roles", len(before), len(after))
        total = 0
        for role, (old, new) in enumerate(zip(before, after, strict=True)):
            if new != old + count:
                raise LedgerCorrupt(self.name, f"request {r} role '{ROLES[role]}' position", old + count, new)
            total += mix(POSITION, r, role, new) - mix(POSITION, r, role, old)
        return total

    def apply(self, change: Change) -> None:
        """Perform ``change``, which ``delta`` has checked against this very state."""
        r = change.request
        if type(change) is Advance:
            if change.close:
                del self.streams[r]
            elif change.round:
                stream = self.streams[r]
                self.streams[r] = Stream(stream.law, stream.seed, change.rng)
        elif type(change) is Submit:
            self.streams[r] = Stream(change.law, change.seed, (len(change.prompt),) * change.roles)
        elif type(change) is Close:
            del self.streams[r]

    def cells(self) -> Iterator[tuple[int, int, int, int]]:
        """Every cell (tag, a, b, value)."""
        for r, stream in self.streams.items():
            yield from _cells(r, stream)

    def check(self) -> None:
        """Every invariant within this ledger; raises ``LedgerCorrupt``."""
        for r, stream in self.streams.items():
            _check(r, stream.law, stream.seed, len(stream.positions))

    def snapshot(self) -> dict[str, Any]:
        """Plain data, from which ``restore`` builds an equal ledger."""
        return {str(r): [s.law, s.seed, list(s.positions)] for r, s in self.streams.items()}

    def restore(self, data: dict[str, Any]) -> None:
        """Replace the content by that of a snapshot."""
        self.streams = {
            int(key): Stream(law, seed, tuple(positions)) for key, (law, seed, positions) in data.items()
        }


def _check(request: int, law: int, seed: int, roles: int) -> None:
    where = f"request {request}"
    if not 0 <= law < len(LAWS):
        raise LedgerCorrupt(RngLedger.name, f"{where} law", f"0..{len(LAWS) - 1}", law)
    if not 0 <= seed < 1 << 64:
        raise LedgerCorrupt(RngLedger.name, f"{where} seed", "64 bits", seed)
    if roles != ROLES_OF_LAW[law]:
        raise LedgerCorrupt(RngLedger.name, f"{where} roles", ROLES_OF_LAW[law], roles)
