"""Reading what can be read of a journal, damaged or not, and checking one for repair."""

from __future__ import annotations

import os
from collections.abc import Iterator

import attrs

from txdecode.runtime.journal.errors import NotAJournal
from txdecode.runtime.journal.examine import Before, Finding, examine_end, examine_header
from txdecode.runtime.journal.format import Header, Record, TornTail, UnfinishedRotation
from txdecode.runtime.journal.reader import SegmentReport, iterate
from txdecode.runtime.journal.segments import SegmentFile, list_segments, open_for_reading, place_of
from txdecode.runtime.journal.source import Cursor, Source
from txdecode.runtime.journal.writer import Journal


@attrs.frozen
class Damage:
    """A stretch of a journal that ``scan`` could not read, or a break between two records that it could.

    ``size`` bytes from ``offset`` of the file ``segment`` were passed over (0: a break). ``sequence`` is the record
    expected there, ``None`` where the segment's header is concerned or where it cannot be known.
    """

    offset: int
    size: int
    sequence: int | None
    reason: str
    segment: str


Item = Header | Record | Damage | TornTail | UnfinishedRotation


def scan(path: str | os.PathLike[str]) -> Iterator[Item]:
    """Everything that can be read of a journal, damaged or not, in file order. For inspection only.

    Each segment's header comes first (a ``Damage`` in its place where it is damaged), a ``TornTail`` or an
    ``UnfinishedRotation`` last. A record that is intact but out of its place follows a ``Damage`` of size 0. Raises
    ``NotAJournal``, ``JournalVersionError`` and ``JournalUnavailable``, but never ``JournalCorrupt``.
    """
    where = place_of(path)
    files = list_segments(where) or [SegmentFile(0, where, 0)]
    before: Before | None = None
    for index, file in enumerate(files):
        last = index + 1 == len(files)
        descriptor = open_for_reading(file.path)
        try:
            source = Source(descriptor, file.path, file.size)
            found = examine_header(source, file, before, last)
            if found.row.verdict == "unfinished rotation":
                yield UnfinishedRotation(file.path.name, source.size, found.reason)
                return
            cursor, items = _begin(source, found, file, alone=len(files) == 1)
            yield from items
            yield from _records(cursor, found.header, lowest=index == 0, last=last)
            before = Before(
                file.number, cursor.sequence, cursor.chain if cursor.sequence is not None else None
            )
        finally:
            os.close(descriptor)


def _begin(source: Source, found: Finding, file: SegmentFile, alone: bool) -> tuple[Cursor, list[Item]]:
    """Where the records begin, and what there is to say before them."""
    name = file.path.name
    header = found.header
    if header is not None:
        place = header.place
        cursor = Cursor(source, header.size, place.first_sequence, header.chain)
        if found.row.verdict != "damage" or found.sequence is not None:
            return cursor, [header]
        return cursor, [Damage(0, 0, None, found.reason, name), header]
    start = source.find_intact(0)
    if start is None and alone and isinstance(found.error, NotAJournal):
        raise found.error
    end = source.size if start is None else start
    return Cursor(source, end, None, None), [Damage(0, end, None, found.reason, name)]


def _records(cursor: Cursor, header: Header | None, lowest: bool, last: bool) -> Iterator[Item]:
    source = cursor.source
    name = source.path.name
    while (taken := cursor.take()) is not None:
        if isinstance(taken, Record):
            yield taken
        elif taken.intact is not None:
            if cursor.sequence is not None:
                yield Damage(cursor.offset, 0, cursor.sequence, taken.reason, name)
            yield taken.intact
            cursor.adopt(taken.intact)
        elif (start := source.find_intact(cursor.offset + 1)) is not None:
            yield Damage(cursor.offset, start - cursor.offset, cursor.sequence, taken.reason, name)
            cursor.offset = start
            # What was lost shows from the numbers on both sides; a second report would only repeat it.
            cursor.sequence = None
        else:
            size = source.size - cursor.offset
            known = header if cursor.sequence is not None else None
            found = examine_end(cursor, taken, known, lowest, last)
            if found.row.verdict == "torn tail":
                yield TornTail(cursor.offset, size, taken.reason, name)
            else:
                yield Damage(cursor.offset, size, cursor.sequence, found.reason, name)
                cursor.sequence = None
            return
    end = examine_end(cursor, None, header if cursor.sequence is not None else None, lowest, last)
    if end.row.verdict != "whole":
        yield Damage(cursor.offset, 0, cursor.sequence, end.reason, name)


@attrs.frozen
class CheckReport:
    """A journal without damage: its segments, the number of records in them, the chain digest at its end, and what
    a crash left behind that. ``fixed``: it was cut off or deleted."""

    segments: tuple[SegmentReport, ...]
    records: int
    chain: bytes
    tail: TornTail | None
    unfinished: UnfinishedRotation | None
    fixed: bool

    @property
    def sound(self) -> bool:
        """Whether the files now hold whole records and nothing else."""
        return self.fixed or (self.tail is None and self.unfinished is None)


def check(path: str | os.PathLike[str], fix_tail: bool = False) -> CheckReport:
    """Read all of the journal at ``path`` and check every byte.

    ``fix_tail`` cuts off a torn tail, or deletes a rotation that was cut short, as a writer that resumes would, under
    the writer's lock; nothing else is ever changed. Raises as ``iterate`` does, with ``fix_tail`` as
    ``Journal.resume`` does.
    """
    if not fix_tail:
        reader = iterate(path)
        for _ in reader:
            pass
        segments, tail, unfinished, chain = reader.segments, reader.tail, reader.unfinished, reader.chain
    else:
        with Journal.resume(path) as journal:
            segments, chain = journal.segments, journal.chain
            tail, unfinished = journal.tail, journal.unfinished
    fixed = fix_tail and (tail is not None or unfinished is not None)
    return CheckReport(segments, sum(one.records for one in segments), chain, tail, unfinished, fixed)
