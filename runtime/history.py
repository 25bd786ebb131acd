"""Moving through a log: forward, back, to any record, with all ledgers at each.

Going on costs one record a step. Going back starts from a checkpoint, a copy of the ledgers:

::

    grid   |-----N-----|-----N-----|-----N-----|-----   at most GRID_MAX of them: when they are more, every
                                                        second one goes and N doubles
    path                     |-----|---|--|-^           laid while the gap before the target is folded again,
                                                        each at half of what is left

so stepping back through a gap of N records costs N folded records for the first step and log2(N) on average for
each step, and memory holds GRID_MAX + PATH_MAX packed copies of the ledgers whatever the length of the log. A copy
costs time and memory in proportion to the tokens of the unfinished requests (about three bytes a token).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import attrs
import msgspec

from txdecode.runtime.journal import Header, JournalCorrupt, Record, iterate
from txdecode.runtime.journal.segments import open_for_reading
from txdecode.runtime.journal.source import Cursor, Source
from txdecode.runtime.replay import (
    Folder,
    Histories,
    InvalidArgument,
    NotInLog,
    RequestHistory,
    decoded,
    not_negative,
)
from txdecode.state.digest import LEDGERS
from txdecode.state.errors import TxDecodeError
from txdecode.state.ledgers import Cell, Ledgers
from txdecode.transactions.events import Event, RequestSubmitted, Snapshot

GRID_MAX = 64
PATH_MAX = 64
GRID_STEP = 256

# Closer together, a copy of the ledgers costs more than folding the records again.
_PATH_GAP_MIN = 8


@attrs.frozen
class _Place:
    """Where reading goes on after record ``sequence``."""

    sequence: int
    segment: int
    offset: int
    chain: bytes


@attrs.frozen
class _Checkpoint:
    """``ledgers`` packed after the record of ``place``; ``highest`` is the highest request number so far."""

    place: _Place
    record: Record | None
    ledgers: bytes
    highest: int


class Replay:
    """The ledgers of a log at one of its records; at first before all of them.

    ``sequence`` is the record just applied (one below the first, so -1 in most logs, before any), ``event`` its
    event (``None`` before any, and for a record of an unknown kind), ``ledgers`` what they led to. Another object
    stands in ``ledgers`` after each step back. Changing it breaks the replay.

    The log is checked as it is read: a step raises ``JournalCorrupt``, ``EventUndecodable`` or ``Divergence`` as
    ``replay`` does, and leaves the replay before the record that could not be taken. What a live writer appends
    after opening is not seen.
    """

    def __init__(self, log: str | os.PathLike[str], grid_step: int = GRID_STEP) -> None:
        assert grid_step >= 1, grid_step
        self.path = Path(log)
        self._reader = iterate(self.path)
        self._folder = Folder(self._reader.header, self.path)
        self.first = self._folder.first
        self.event: Event | None = None
        self.record: Record | None = None
        self._segments = [self._reader.segment]
        self._place = _Place(self.first - 1, 0, self._reader.offset, self._reader.chain)
        self._frontier = self.first - 1
        self._failure: TxDecodeError | None = None
        self._again: Iterator[tuple[int, Record]] | None = None
        self._highest = -1
        self._step = grid_step
        self._grid = [self._checkpoint()]
        self._path: deque[_Checkpoint] = deque(maxlen=PATH_MAX)

    @classmethod
    def open(cls, log: str | os.PathLike[str]) -> Replay:
        """Stand before the first record. Raises ``JournalError`` for a file that is no log."""
        return cls(log)

    @property
    def header(self) -> Header:
        """The header of the lowest segment that is there."""
        return self._reader.header

    @property
    def sequence(self) -> int:
        """Sequence number of the record just applied; one below the first before any."""
        return self._place.sequence

    @property
    def ledgers(self) -> Ledgers:
        """All ledgers here."""
        return self._folder.ledgers

    # Moving.

    def forward(self, n: int = 1) -> int:
        """Apply ``n`` more records, fewer at the end of the log; how many."""
        not_negative(n=n)
        start = self.sequence
        while self.sequence < start + n and self._advance():
            pass
        return self.sequence - start

    def back(self, n: int = 1) -> int:
        """Take back ``n`` records, fewer at the beginning of the log; how many. Costs as the module says."""
        not_negative(n=n)
        start = self.sequence
        self._return_to(max(start - n, self.first - 1))
        return start - self.sequence

    def to(self, sequence: int) -> Event | None:
        """Go to just after record ``sequence``; its event. One below the first goes before all.

        Raises ``NotInLog`` where there is no such record; after one past the end the replay stands at the end.
        """
        if sequence < self.first - 1:
            raise NotInLog(
                f"'{self.path}' begins with record {self.first}, found {sequence}; ask for a later one"
            )
        if sequence < self.sequence:
            self._return_to(sequence)
        else:
            nearest = self._nearest(min(sequence, self._frontier))
            if nearest.place.sequence > self.sequence:
                self._restore(nearest)
            self.forward(sequence - self.sequence)
        if self.sequence != sequence:
            raise NotInLog(
                f"'{self.path}' ends with record {self.sequence}, found {sequence}; ask for one before"
            )
        return self.event

    def __iter__(self) -> Iterator[Event]:
        """Step to the end, giving each event; records of unknown kinds are passed over."""
        while self._advance():
            if self.event is not None:
                yield self.event

    # Looking.

    def cells(self, ledger: str | None = None, request: int | None = None) -> Iterator[Cell]:
        """Named cells of all ledgers or of one, of all requests or of one; reference counts of pages belong to none.

        Raises ``InvalidArgument`` for a ledger that does not exist.
        """
        if ledger is not None:
            known_ledger(ledger)
        not_negative(request=request)
        return (
            cell
            for cell in self.ledgers.cells()
            if (ledger is None or cell.ledger == ledger)
            and (request is None or (cell.key[0] == request and cell.field != "references"))
        )

    def request(self, number: int) -> RequestHistory:
        """What the log has said of a request up to here, its ids included.

        Reads the records since before its submission again, without folding them. Raises ``NotInLog`` where it was
        not submitted yet.
        """
        not_negative(number=number)
        histories = Histories(number)
        index = bisect_right(self._grid, number - 1, key=lambda mark: mark.highest) - 1
        for _, record in self._records(self._grid[index].place, self.sequence):
            event = decoded(record, self.path)
            if event is not None:
                histories.take(event)
            history = histories.requests.get(number)
            if history is not None and history.finish is not None:
                break
        if number not in histories.requests:
            raise NotInLog(
                f"'{self.path}' has no request {number} up to record {self.sequence}; ask for another"
            )
        return histories.requests[number]

    def close(self) -> None:
        """Close the log. May be called more than once."""
        self._reader.close()
        self._jump()

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Within.

    def _advance(self) -> bool:
        """One record on; false at the end."""
        if self.sequence < self._frontier:
            if self._again is None:
                self._again = self._records(self._place, self._frontier)
            self._apply(*next(self._again))
            return True
        if self._failure is not None:
            raise self._failure
        try:
            record = next(self._reader, None)
            if record is None:
                return False
            if self._reader.segment != self._segments[-1]:
                self._segments.append(self._reader.segment)
            self._apply(len(self._segments) - 1, record)
        except TxDecodeError as error:
            self._failure = error
            raise
        self._frontier = record.sequence
        if (record.sequence + 1 - self.first) % self._step == 0:
            self._grid.append(self._checkpoint())
            if len(self._grid) > GRID_MAX:
                self._grid = self._grid[::2]
                self._step *= 2
        return True

    def _apply(self, segment: int, record: Record) -> None:
        event = self._folder.take(record)
        self._place = _Place(record.sequence, segment, record.offset + record.size, record.chain)
        self.event, self.record = event, record
        if type(event) is RequestSubmitted:
            self._highest = max(self._highest, event.request)
        elif type(event) is Snapshot:
            self._highest = max(self._highest, event.requests - 1)

    def _return_to(self, target: int) -> None:
        if target >= self.sequence:
            return
        while self._path and self._path[-1].place.sequence > target:
            self._path.pop()
        self._restore(self._nearest(target))
        while self.sequence < target:
            # Halfway, and again half of the rest.
            pause = (self.sequence + target + 1) // 2
            if target - pause < _PATH_GAP_MIN:
                pause = target
            self.forward(pause - self.sequence)
            if self.sequence < target:
                self._path.append(self._checkpoint())

    def _nearest(self, sequence: int) -> _Checkpoint:
        """The last checkpoint at or before a record; path entries past ``sequence`` are passed over."""
        index = bisect_right(self._grid, sequence, key=lambda mark: mark.place.sequence) - 1
        best = self._grid[index]
        for mark in self._path:
            if best.place.sequence < mark.place.sequence <= sequence:
                best = mark
        return best

    def _checkpoint(self) -> _Checkpoint:
        packed = msgspec.msgpack.encode(self.ledgers.snapshot())
        return _Checkpoint(self._place, self.record, packed, self._highest)

    def _restore(self, mark: _Checkpoint) -> None:
        ledgers = Ledgers(self._folder.ledgers.groups)
        ledgers.restore(msgspec.msgpack.decode(mark.ledgers))
        self._folder.ledgers = ledgers
        self._place, self.record, self._highest = mark.place, mark.record, mark.highest
        self.event = None if mark.record is None else decoded(mark.record, self.path)
        self._jump()

    def _jump(self) -> None:
        """What was being read again is not what comes next any more."""
        again, self._again = self._again, None
        if again is not None:
            again.close()  # type: ignore[attr-defined]

    def _records(self, place: _Place, last: int) -> Iterator[tuple[int, Record]]:
        """The records after ``place`` up to ``last`` with their segments; all were read and found good before."""
        cursor: Cursor | None = None
        for number in range(place.segment, len(self._segments)):
            path = self._segments[number]
            descriptor = open_for_reading(path)
            try:
                source = Source(descriptor, path)
                if cursor is None:
                    cursor = Cursor(source, place.offset, place.sequence + 1, place.chain)
                else:
                    _, header = source.header()
                    if not isinstance(header, Header):
                        raise header
                    cursor = Cursor(source, header.size, cursor.sequence, header.chain)
                while cursor.sequence <= last and isinstance(taken := cursor.take(), Record):  # type: ignore[operator]
                    yield number, taken
                if cursor.sequence > last:  # type: ignore[operator]
                    return
            finally:
                os.close(descriptor)
            if taken is not None or number + 1 == len(self._segments):
                reason = "it ends sooner" if taken is None else taken.reason  # type: ignore[union-attr]
                raise JournalCorrupt(
                    path, cursor.offset, cursor.sequence, f"changed while it was read: {reason}"
                )


def known_ledger(name: str) -> None:
    """Raises ``InvalidArgument`` unless ``name`` is that of a ledger."""
    if name not in LEDGERS:
        raise InvalidArgument(f"there is no ledger '{name}'; ask for one of {', '.join(LEDGERS)}")
