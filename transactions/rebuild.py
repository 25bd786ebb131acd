"""Device state of a sequence computed again from its tokens, in canonical form: one prefill from position zero."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txdecode.state.changes import Ids, PerGroup
from txdecode.state.errors import LedgerCorrupt, LedgerExhausted
from txdecode.state.groups import StateGroup, of_kind
from txdecode.state.reservations import Pools, Reservation
from txdecode.transactions.executor import AuditEntry, Executor, PrefillPlan, SequenceView

GHOST = -1
"""Request number of a sequence that no request is: nothing of it is committed."""


@attrs.frozen
class Places:
    """Where a rebuilt sequence lies: a table a page group, two columns a column group, a ring a ring group."""

    pages: PerGroup
    columns: tuple[tuple[int, int], ...]
    slots: Ids


def first_places(groups: tuple[StateGroup, ...], length: int) -> Places:
    """The lowest units of every group, for an executor that holds nothing else."""
    return Places(
        tuple(tuple(range(-(-length // group.granularity))) for group in of_kind(groups, "pages")),
        tuple((0, 1) for _ in of_kind(groups, "column")),
        tuple(0 for _ in of_kind(groups, "ring")),
    )


def spare_places(pools: Pools, groups: tuple[StateGroup, ...], length: int) -> Places | None:
    """Free units, taken out of the pools; ``None``, with nothing taken, where there are not enough."""
    taken: list[tuple[str, Ids]] = []
    wanted = [
        *(("pages", -(-length // group.granularity)) for group in of_kind(groups, "pages")),
        *(("columns", 2) for _ in of_kind(groups, "column")),
        *(("slots", 1) for _ in of_kind(groups, "ring")),
    ]
    members = (*pools.pages, *pools.columns, *pools.slots)
    try:
        for pool, (kind, count) in zip(members, wanted, strict=True):
            taken.append((kind, pool.take(count)))
    except LedgerExhausted:
        for pool, (_, units) in zip(members, taken, strict=False):
            pool.give(units)
        return None
    return Places(
        tuple(units for kind, units in taken if kind == "pages"),
        tuple((units[0], units[1]) for kind, units in taken if kind == "columns"),
        tuple(units[0] for kind, units in taken if kind == "slots"),
    )


def give_back(pools: Pools, places: Places) -> None:
    """Return what ``spare_places`` took."""
    pools.give(Reservation(places.pages, places.columns, tuple((slot,) for slot in places.slots)))


def rebuild(executor: Executor, tokens: Sequence[int], places: Places) -> SequenceView:
    """Consume ``tokens`` from position zero; where the state lies then. Raises ``ExecutorFault``."""
    description = executor.describe()
    page_groups = of_kind(description.groups, "pages")
    length, now = 0, 0
    while True:
        tables = tuple(
            table[: -(-length // group.granularity)]
            for group, table in zip(page_groups, places.pages, strict=True)
        )
        where = SequenceView(
            GHOST, 0, length, tables, tuple(pair[now] for pair in places.columns), places.slots
        )
        if length == len(tokens):
            return where
        chunk = tuple(tokens[length : length + description.prefill_rows_max])
        length += len(chunk)
        tables = tuple(
            table[: -(-length // group.granularity)]
            for group, table in zip(page_groups, places.pages, strict=True)
        )
        # The state moves to the other column: a kernel may read the one while it writes the other.
        now = 1 - now
        executor.prefill([PrefillPlan(where, chunk, tables, tuple(pair[now] for pair in places.columns))])


def compare(request: int, expected: Sequence[AuditEntry], found: Sequence[AuditEntry]) -> None:
    """Raises ``LedgerCorrupt`` naming the first piece of device state that is not what the tokens make it."""
    for wanted, entry in zip(expected, found, strict=False):
        if wanted != entry:
            raise LedgerCorrupt(
                "device", place(request, wanted), f"{wanted.digest:016x}", f"{entry.digest:016x}"
            )
    if len(expected) != len(found):
        raise LedgerCorrupt("device", f"request {request} audit entries", len(expected), len(found))


def place(request: int, entry: AuditEntry) -> str:
    """Where in the device state an entry is, in words."""
    row = "" if entry.row < 0 else f" row {entry.row}"
    return f"request {request} group '{entry.group}' layer {entry.layer} index {entry.index}{row}"
