"""The page ledger: which pages hold the rows of which sequence, for every group of kind ``pages``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from txdecode.state.changes import Admit, Advance, Change, Close, Evict, PerGroup
from txdecode.state.digest import mix
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.groups import StateGroup

TABLE, REFERENCES, LENGTH = range(0x20, 0x23)
_GROUP_SHIFT = 32


class PagesLedger:
    """Page tables, logical lengths and reference counts.

    ``tables[request][g]`` lists the pages of group g in row order; ``lengths[request]`` is the number of
    committed rows, the same in every group (a drafter's pair for position i sits in slot i too). Rows past
    the length are scratch. ``references[g][page]`` counts the tables that hold a page; a page is free iff
    that is zero.
    """

    name = "pages"
    fields: ClassVar[dict[int, str]] = {TABLE: "table", REFERENCES: "references", LENGTH: "length"}

    def __init__(self, groups: tuple[StateGroup, ...]) -> None:
        self.groups = groups
        self.references: list[list[int]] = [[0] * group.capacity for group in groups]
        self.tables: dict[int, PerGroup] = {}
        self.lengths: dict[int, int] = {}

    def needed(self, group: int, length: int) -> int:
        """Pages that ``length`` rows of group number ``group`` take."""
        return -(-length // self.groups[group].granularity)

    def _table(self, request: int) -> PerGroup:
        table = self.tables.get(request)
        if table is None:
            raise LedgerCorrupt(self.name, f"request {request}", "a resident sequence", "none")
        return table

    def delta(self, change: Change) -> int:
        """Digest increment of ``change``; pure. Raises ``LedgerCorrupt`` where it contradicts the ledger."""
        if not self.groups:
            return 0
        if type(change) is Advance and not change.close:
            return self._advance(change)
        if type(change) is Admit:
            if change.request in self.tables:
                raise LedgerCorrupt(self.name, f"request {change.request}", "not resident", "resident")
            return mix(LENGTH, change.request, 0, 0)
        if type(change) is Evict or type(change) is Close or type(change) is Advance:
            if type(change) is Advance and any(change.adopted):
                raise LedgerCorrupt(
                    self.name, f"request {change.request} adopted at its end", (), change.adopted
                )
            return self._release(change.request, change.released, known=type(change) is Close)
        return 0

    def _advance(self, change: Advance) -> int:
        r = change.request
        table = self._table(r)
        length = self.lengths[r]
        after = length + change.consumed
        total = mix(LENGTH, r, 0, after) - mix(LENGTH, r, 0, length)
        if any(change.released):
            raise LedgerCorrupt(self.name, f"request {r} released before its end", (), change.released)
        if len(change.adopted) != len(self.groups):
            raise LedgerCorrupt(self.name, f"request {r} groups", len(self.groups), len(change.adopted))
        for g, pages in enumerate(change.adopted):
            count = len(table[g])
            if count + len(pages) != self.needed(g, after):
                where = f"request {r} group '{self.groups[g].name}' pages"
                raise LedgerCorrupt(self.name, where, self.needed(g, after), count + len(pages))
            for index, page in enumerate(pages, start=count):
                self._check_free(g, page, pages)
                total += mix(TABLE, r, (g << _GROUP_SHIFT) + index, page) + mix(REFERENCES, g, page, 1)
        return total

    def _check_page(self, g: int, page: int) -> None:
        if not 0 <= page < self.groups[g].capacity:
            where = f"group '{self.groups[g].name}' page {page}"
            raise LedgerCorrupt(self.name, where, f"a page below {self.groups[g].capacity}", page)

    def _check_free(self, g: int, page: int, pages: tuple[int, ...]) -> None:
        self._check_page(g, page)
        where = f"group '{self.groups[g].name}' page {page}"
        if self.references[g][page]:
            raise LedgerCorrupt(self.name, where, "free", f"{self.references[g][page]} references")
        if pages.count(page) > 1:
            raise LedgerCorrupt(self.name, where, "adopted once", "adopted twice")

    def _release(self, r: int, released: PerGroup, known: bool) -> int:
        table = self.tables.get(r) if known else self._table(r)
        if table is None:
            if any(released):
                raise LedgerCorrupt(self.name, f"request {r} released", "nothing held", released)
            return 0
        if released != table:
            raise LedgerCorrupt(self.name, f"request {r} released", table, released)
        total = -mix(LENGTH, r, 0, self.lengths[r])
        for g, pages in enumerate(table):
            references = self.references[g]
            for index, page in enumerate(pages):
                count = references[page]
                total -= mix(TABLE, r, (g << _GROUP_SHIFT) + index, page) + mix(REFERENCES, g, page, count)
                if count > 1:
                    total += mix(REFERENCES, g, page, count - 1)
        return total

    def apply(self, change: Change) -> None:
        """Perform ``change``, which ``delta`` has checked against this very state."""
        if not self.groups:
            return
        r = change.request
        if type(change) is Advance and not change.close:
            self.lengths[r] += change.consumed
            if any(change.adopted):
                table = self.tables[r]
                self.tables[r] = tuple(old + new for old, new in zip(table, change.adopted, strict=True))
                for references, pages in zip(self.references, change.adopted, strict=True):
                    for page in pages:
                        references[page] += 1
        elif type(change) is Admit:
            self.tables[r] = ((),) * len(self.groups)
            self.lengths[r] = 0
        elif type(change) is Evict or type(change) is Close or type(change) is Advance:
            for references, pages in zip(self.references, self.tables.pop(r, ()), strict=False):
                for page in pages:
                    references[page] -= 1
            self.lengths.pop(r, None)

    def cells(self) -> Iterator[tuple[int, int, int, int]]:
        """Every cell (tag, a, b, value)."""
        for r, table in self.tables.items():
            yield LENGTH, r, 0, self.lengths[r]
            for g, pages in enumerate(table):
                for index, page in enumerate(pages):
                    yield TABLE, r, (g << _GROUP_SHIFT) + index, page
        for g, references in enumerate(self.references):
            for page, count in enumerate(references):
                if count:
                    yield REFERENCES, g, page, count

    def check(self) -> None:
        """Every invariant within this ledger; raises ``LedgerCorrupt``."""
        if self.tables.keys() != self.lengths.keys():
            raise LedgerCorrupt(self.name, "requests", sorted(self.tables), sorted(self.lengths))
        for g, group in enumerate(self.groups):
            owners = [0] * group.capacity
            for r, table in self.tables.items():
                if len(table[g]) != self.needed(g, self.lengths[r]):
                    where = f"request {r} group '{group.name}' pages"
                    raise LedgerCorrupt(self.name, where, self.needed(g, self.lengths[r]), len(table[g]))
                for page in table[g]:
                    owners[page] += 1
            if owners != self.references[g]:
                page = next(p for p in range(group.capacity) if owners[p] != self.references[g][p])
                where = f"group '{group.name}' page {page} references"
                raise LedgerCorrupt(self.name, where, owners[page], self.references[g][page])

    def free(self, group: int) -> list[int]:
        """Free pages of group number ``group``, ascending."""
        return [page for page, count in enumerate(self.references[group]) if not count]

    def snapshot(self) -> dict[str, Any]:
        """Plain data, from which ``restore`` builds an equal ledger."""
        return {
            str(r): [[list(pages) for pages in table], self.lengths[r]] for r, table in self.tables.items()
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Replace the content by that of a snapshot; reference counts are recomputed.

        Raises ``LedgerCorrupt`` where it names groups or pages that are not there.
        """
        self.references = [[0] * group.capacity for group in self.groups]
        self.tables = {}
        self.lengths = {}
        for key, (table, length) in data.items():
            self.tables[int(key)] = tuple(tuple(pages) for pages in table)
            self.lengths[int(key)] = length
            if len(table) != len(self.groups):
                raise LedgerCorrupt(self.name, f"request {key} groups", len(self.groups), len(table))
            for g, pages in enumerate(table):
                for page in pages:
                    self._check_page(g, page)
                    self.references[g][page] += 1
