"""The audits of a log: where they are, and by binary search the first that the tokens contradict.

A state that went wrong stays wrong, since every later row, column and ring is computed from it, until the request
is evicted: so the audits of one epoch are right up to some point and wrong from there on.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txdecode.state.ledgers import Ledgers
from txdecode.transactions.audit import Entries, as_recorded, entries, entries_from, has_draft_model
from txdecode.transactions.events import (
    Event,
    RequestFinished,
    RequestSubmitted,
    RoundCommitted,
    Snapshot,
    StateAudited,
)
from txdecode.transactions.executor import AuditEntry, Executor
from txdecode.transactions.rebuild import GHOST, first_places, rebuild

Key = tuple[int, int]
"""Request and epoch."""


@attrs.frozen
class Mark:
    """One audit in the log. ``digest`` stands for all its entries, which may be many, within this process; ``rows``
    and ``drafts`` say whether any is of a row, and whether any is of a second model that drafts."""

    sequence: int
    ordinal: int
    consumed: int
    rows: bool
    drafts: bool
    digest: int


@attrs.define
class Survey:
    """What a log says of its audits: those of each epoch of each request in order, the first round of each such
    epoch, the texts that they are about, and the seeds of all requests."""

    marks: dict[Key, list[Mark]] = attrs.Factory(dict)
    starts: dict[Key, int] = attrs.Factory(dict)
    texts: dict[int, tuple[int, ...]] = attrs.Factory(dict)
    seeds: dict[int, int] = attrs.Factory(dict)
    audits: int = 0
    rounds: int = 0

    def take(self, sequence: int, event: Event | None, ledgers: Ledgers) -> None:
        """Follow an event; ``ledgers`` are those before it."""
        if isinstance(event, RequestSubmitted):
            self.seeds[event.request] = event.seed
        elif isinstance(event, Snapshot):
            self.seeds.update((item.submitted.request, item.submitted.seed) for item in event.unfinished)
        elif isinstance(event, RoundCommitted):
            self.rounds += 1
            self.starts.setdefault((event.request, event.epoch), event.ordinal)
            if event.clip:
                self._keep(event.request, ledgers, event.emitted)
        elif isinstance(event, RequestFinished):
            self._keep(event.request, ledgers)
        elif isinstance(event, StateAudited):
            self.audits += 1
            state = ledgers.tokens.sequences.get(event.request)
            if state is None or (state.epoch, state.consumed) != (event.epoch, event.consumed):
                # Execution names it; no text is known that it could be compared with.
                return
            rows = any(entry[3] >= 0 for entry in event.entries)
            drafts = has_draft_model(entry[0] for entry in event.entries)
            mark = Mark(sequence, event.ordinal, event.consumed, rows, drafts, hash(event.entries))
            self.marks.setdefault((event.request, event.epoch), []).append(mark)

    def _keep(self, request: int, ledgers: Ledgers, emitted: tuple[int, ...] = ()) -> None:
        state = ledgers.tokens.sequences.get(request)
        if state is not None and any((request, epoch) in self.marks for epoch in range(state.epoch + 1)):
            self.texts[request] = (*state.ids(), *emitted)

    def close(self, ledgers: Ledgers) -> None:
        """The log is over."""
        for request in list(ledgers.tokens.sequences):
            self._keep(request, ledgers)


@attrs.frozen
class Wrong:
    """An audit that the tokens contradict. ``since`` is the ordinal of the last round of the epoch whose audit is
    right, ``None`` where there is none."""

    key: Key
    mark: Mark
    since: int | None


@attrs.define
class Search:
    """Looks for the first wrong audit by building device state again from tokens. It leaves nothing of use on the
    executor. ``rebuilt`` counts how often."""

    executor: Executor
    survey: Survey
    rebuilt: int = 0

    def first(self) -> Wrong | None:
        """The wrong audit with the lowest sequence number."""
        best: Wrong | None = None
        for key, marks in sorted(self.survey.marks.items(), key=lambda item: item[1][0].sequence):
            found = self._within(key, marks if best is None else _before(marks, best.mark.sequence))
            best = found or best
        return best

    def next_wrong(self, key: Key, sequence: int) -> Wrong | None:
        """The next audit of an epoch after a record, if it is wrong."""
        marks = self.survey.marks.get(key, [])
        later = [mark for mark in marks if mark.sequence > sequence]
        if not later or self.right(key[0], later[0]):
            return None
        earlier = _before(marks, sequence)
        return Wrong(key, later[0], earlier[-1].ordinal if earlier else None)

    def _within(self, key: Key, marks: Sequence[Mark]) -> Wrong | None:
        if not marks or self.right(key[0], marks[-1]):
            return None
        low, high = -1, len(marks) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.right(key[0], marks[middle]):
                low = middle
            else:
                high = middle
        return Wrong(key, marks[high], marks[low].ordinal if low >= 0 else None)

    def right(self, request: int, mark: Mark) -> bool:
        """Whether an audit says what the tokens do."""
        return hash(self.entries(request, mark)) == mark.digest

    def entries(self, request: int, mark: Mark) -> Entries:
        """What the tokens say of an audit, in its form."""
        return entries(self.audited(request, mark))

    def audited(self, request: int, mark: Mark) -> tuple[AuditEntry, ...]:
        """The same as the executor says it."""
        self.rebuilt += 1
        tokens = self.survey.texts[request][: mark.consumed]
        groups = self.executor.describe().groups
        where = rebuild(self.executor, tokens, first_places(groups, mark.consumed))
        found = self.executor.audit(where, True) if mark.rows else self.executor.audit(where)
        self.executor.drop(GHOST)
        return as_recorded(groups, mark.drafts, found)


def _before(marks: Sequence[Mark], sequence: int) -> Sequence[Mark]:
    return [mark for mark in marks if mark.sequence < sequence]


__all__ = ["Entries", "Key", "Mark", "Search", "Survey", "Wrong", "entries_from"]
