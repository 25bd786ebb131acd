"""Live allocation: what is free, and what open rounds have taken. Never part of committed state.

    committed (references, owners)  |  reserved by open rounds  |  free in the pools

Each unit is in exactly one of the three. A pool hands out its lowest free unit first, so that a run
is the same run again; replay takes the units from the events instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import attrs

from txdecode.state.changes import Ids, PerGroup
from txdecode.state.errors import LedgerCorrupt, LedgerExhausted
from txdecode.state.ledgers import Ledgers


class Pool:
    """Free units of one group."""

    def __init__(self, name: str, free: Iterable[int]) -> None:
        self.name = name
        self._heap = list(free)
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def take(self, count: int) -> Ids:
        """The ``count`` lowest free units, ascending; raises ``LedgerExhausted`` and takes none."""
        if not count:
            return ()
        if count > len(self._heap):
            raise LedgerExhausted(self.name, count, len(self._heap))
        return tuple(heapq.heappop(self._heap) for _ in range(count))

    def give(self, units: Iterable[int]) -> None:
        """Return units."""
        for unit in units:
            heapq.heappush(self._heap, unit)

    def free(self) -> list[int]:
        """Free units, ascending."""
        return sorted(self._heap)


@attrs.frozen
class Reservation:
    """Units by group, in the order of use: ``pages[g]``, ``columns[g]``, ``slots[g]``."""

    pages: PerGroup = ()
    columns: PerGroup = ()
    slots: PerGroup = ()


NOTHING = Reservation()


class Pools:
    """A pool for every pooled group, in the order of the ledgers' groups."""

    def __init__(self, ledgers: Ledgers) -> None:
        pages, recurrent, history = ledgers.pages, ledgers.recurrent, ledgers.history
        self.ledgers = ledgers
        self.pages = [Pool(g.name, pages.free(i)) for i, g in enumerate(pages.groups)]
        self.columns = [Pool(g.name, recurrent.free(i)) for i, g in enumerate(recurrent.groups)]
        self.slots = [Pool(g.name, history.free(i)) for i, g in enumerate(history.groups)]
        self.reserved = 0

    def reserve(self, request: int, rows: int, columns: int) -> Reservation:
        """Pages that ``rows`` more rows of ``request`` can touch and ``columns`` columns of every group that
        takes one a row, one of every other.

        All or nothing; raises ``LedgerExhausted`` naming the group. The boundary page is the sequence's
        own already, so only pages past its table are taken.
        """
        taken: list[Ids] = []
        taken_columns: list[Ids] = []
        ledger = self.ledgers.pages
        try:
            if self.pages:
                length = ledger.lengths[request] + rows
                for g, pool in enumerate(self.pages):
                    taken.append(pool.take(ledger.needed(g, length) - len(ledger.tables[request][g])))
            for group, pool in zip(self.ledgers.recurrent.groups, self.columns, strict=True):
                taken_columns.append(pool.take(group.reserved_columns(columns)))
        except LedgerExhausted:
            for pool, units in zip(self.pages, taken, strict=False):
                pool.give(units)
            for pool, units in zip(self.columns, taken_columns, strict=False):
                pool.give(units)
            raise
        self.reserved += 1
        return Reservation(tuple(taken), tuple(taken_columns))

    def admit(self) -> tuple[Ids, Ids]:
        """One column a column group and one ring a ring group for a new resident sequence.

        All or nothing; raises ``LedgerExhausted`` naming the group. They are not counted as an open
        reservation: the caller commits the admission at once or gives them back.
        """
        taken: list[tuple[Pool, Ids]] = []
        try:
            for pool in (*self.columns, *self.slots):
                taken.append((pool, pool.take(1)))
        except LedgerExhausted:
            for pool, units in taken:
                pool.give(units)
            raise
        units = tuple(unit for _, (unit,) in taken)
        return units[: len(self.columns)], units[len(self.columns) :]

    def close(self, reservation: Reservation, kept: Reservation) -> None:
        """End a reservation; what is in ``kept`` became committed state, the rest is free again."""
        self.reserved -= 1
        for pools, taken, keep in (
            (self.pages, reservation.pages, kept.pages),
            (self.columns, reservation.columns, kept.columns),
        ):
            for g, units in enumerate(taken):
                if units:
                    held = keep[g] if keep else ()
                    pools[g].give(unit for unit in units if unit not in held)

    def give(self, freed: Reservation) -> None:
        """Return units that committed state let go."""
        for pools, groups in (
            (self.pages, freed.pages),
            (self.columns, freed.columns),
            (self.slots, freed.slots),
        ):
            for pool, units in zip(pools, groups, strict=False):
                pool.give(units)

    def holdings(self, request: int) -> Reservation:
        """All that committed state holds for ``request``: what an eviction or close will free."""
        ledgers = self.ledgers
        return Reservation(
            ledgers.pages.tables.get(request, ()),
            tuple((unit,) for unit in ledgers.recurrent.units.get(request, ())),
            tuple((unit,) for unit in ledgers.history.units.get(request, ())),
        )

    def check(self, reserved: Sequence[Reservation] = (), retired: Sequence[Reservation] = ()) -> None:
        """Every unit is in one place: what is free here, in the open reservations and in ``retired`` (let go by
        committed state while a program still writes to it) is what is free in committed state, each once.

        Without arguments: nothing is reserved. Raises ``LedgerCorrupt`` naming the group.
        """
        if self.reserved != len(reserved):
            field = "open" if reserved else "open when idle"
            raise LedgerCorrupt("reservations", field, len(reserved), self.reserved)
        held = (*reserved, *retired)
        ledgers = self.ledgers
        for pools, committed, taken in (
            (self.pages, ledgers.pages.free, [r.pages for r in held]),
            (self.columns, ledgers.recurrent.free, [r.columns for r in held]),
            (self.slots, ledgers.history.free, [r.slots for r in held]),
        ):
            for g, pool in enumerate(pools):
                found = sorted([*pool.free(), *(unit for groups in taken if groups for unit in groups[g])])
                if found != committed(g):
                    raise LedgerCorrupt("reservations", f"group '{pool.name}' free", committed(g), found)
