"""Which cells of one ledger an event changed, at the cost of what it changed and not of the whole ledger."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from txdecode.runtime.history import known_ledger
from txdecode.state.ledgers import Ledgers
from txdecode.state.pages import LENGTH, REFERENCES, TABLE
from txdecode.state.tokens import COUNT, GENERATED, PROGRESS
from txdecode.transactions.events import Event, PrefillCommitted, RoundCommitted, Snapshot

Address = tuple[int, int, int]

# specs/ledgers.md: the second part of a table cell's key is the group number above the index in the table.
_GROUP_SHIFT = 32


@attrs.frozen
class CellChange:
    """A cell before and after an event; ``None`` where it was or is absent. ``key`` as in ``state.ledgers.Cell``."""

    field: str
    key: tuple[int, int]
    before: int | None
    after: int | None


class Watch:
    """Compares the cells of ``ledger`` around an event: ``before`` it is folded, then ``changed``.

    Raises ``InvalidArgument`` for a ledger that does not exist.
    """

    def __init__(self, ledger: str) -> None:
        known_ledger(ledger)
        self.ledger = ledger
        self._generated = 0
        self._tables: tuple[int, ...] = ()
        self._cells: dict[Address, int] = {}

    def before(self, ledgers: Ledgers, event: Event) -> None:
        """Take down what ``event`` may change."""
        request = getattr(event, "request", -1)
        self._generated, self._tables = 0, ()
        if _moves(event):
            # An advance only adds to what is there.
            if request in ledgers.tokens.sequences:
                self._generated = len(ledgers.tokens.sequences[request].generated)
            self._tables = tuple(map(len, ledgers.pages.tables.get(request, ())))
        self._cells = dict(self._touched(ledgers, event))

    def changed(self, ledgers: Ledgers, event: Event) -> list[CellChange]:
        """The cells that differ now, in a fixed order."""
        old, new = self._cells, dict(self._touched(ledgers, event))
        fields = getattr(ledgers, self.ledger).fields
        return [
            CellChange(fields[address[0]], address[1:], old.get(address), new.get(address))
            for address in sorted({*old, *new})
            if old.get(address) != new.get(address)
        ]

    def _touched(self, ledgers: Ledgers, event: Event) -> Iterator[tuple[Address, int]]:
        request = getattr(event, "request", None)
        if request is None and type(event) is not Snapshot:
            return
        if request is not None and self.ledger == "tokens" and _moves(event):
            yield from self._tokens(ledgers, request, event)
        elif request is not None and self.ledger == "pages":
            yield from self._pages(ledgers, request, event)
        else:
            for tag, a, b, value in getattr(ledgers, self.ledger).cells():
                if request is None or a == request:
                    yield (tag, a, b), value

    def _tokens(self, ledgers: Ledgers, request: int, event: Event) -> Iterator[tuple[Address, int]]:
        state = ledgers.tokens.sequences.get(request)
        if state is None:
            return
        yield (PROGRESS, request, state.rounds), state.consumed
        for index in range(self._generated, len(state.generated)):
            yield (GENERATED, request, index), state.generated[index]
        for token in getattr(event, "emitted", ()):
            if token in state.counts:
                yield (COUNT, request, token), state.counts[token]

    def _pages(self, ledgers: Ledgers, request: int, event: Event) -> Iterator[tuple[Address, int]]:
        pages = ledgers.pages
        if request in pages.lengths:
            yield (LENGTH, request, 0), pages.lengths[request]
        for g, table in enumerate(pages.tables.get(request, ())):
            for index in range(self._tables[g] if self._tables else 0, len(table)):
                yield (TABLE, request, (g << _GROUP_SHIFT) + index), table[index]
        for groups in (getattr(event, "adopted", ()), getattr(event, "released", ())):
            for g, units in enumerate(groups[: len(pages.groups)]):
                for page in units:
                    if 0 <= page < len(pages.references[g]) and pages.references[g][page]:
                        yield (REFERENCES, g, page), pages.references[g][page]


def _moves(event: Event) -> bool:
    return (type(event) is RoundCommitted and not event.clip) or type(event) is PrefillCommitted
