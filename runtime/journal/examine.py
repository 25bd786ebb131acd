"""The facts of ``verdict.Situation``, found in a segment's bytes."""

from __future__ import annotations

import attrs

from txdecode.runtime.journal.errors import JournalCorrupt, NotAJournal
from txdecode.runtime.journal.format import Header, Record
from txdecode.runtime.journal.segments import SegmentFile
from txdecode.runtime.journal.source import Cursor, Fault, Source
from txdecode.runtime.journal.verdict import Row, Situation, judge


@attrs.frozen
class Before:
    """What a segment must continue: the number of the segment before, and sequence and chain after its end.

    ``sequence`` and ``chain`` are ``None`` where a damaged segment leaves them unknown.
    """

    segment: int
    sequence: int | None
    chain: bytes | None


@attrs.frozen
class Finding:
    """A place in a segment and what it means: the row of the table, and why in words of this place.

    ``sequence``: the record expected there, ``None`` for the header. ``error`` is what the header's decoder said.
    """

    row: Row
    offset: int
    sequence: int | None
    reason: str
    header: Header | None = None
    error: JournalCorrupt | NotAJournal | None = None


def examine_header(source: Source, file: SegmentFile, before: Before | None, last: bool) -> Finding:
    """Judge the header of a segment and, if it is the last, the records that were written with it."""
    state, header = source.header()
    facts = Situation(lowest=before is None, last=last, header=state)
    if before is not None and file.number != before.segment + 1:
        reason = f"segment {before.segment + 1} is missing before it"
        row = judge(attrs.evolve(facts, adjacent=False))
        if isinstance(header, Header):
            return Finding(row, 0, None, reason, header)
        return Finding(row, 0, None, reason, error=header)
    if not isinstance(header, Header):
        later = source.find_intact(0) if state == "torn" else None
        row = judge(attrs.evolve(facts, intact_after=later is not None))
        reason = (
            header.reason
            if later is None
            else f"{header.reason}, and an intact record follows at byte {later}"
        )
        return Finding(row, 0, None, reason, error=header)
    wrong = _contradiction(header, file.number, before)
    if wrong is not None:
        return Finding(judge(attrs.evolve(facts, follows=False)), 0, None, wrong, header)
    if not last:
        return Finding(judge(facts), 0, None, "", header)
    # A second pair of eyes: no record of an unfinished rotation may reach a consumer.
    cursor = Cursor(source, header.size, header.place.first_sequence, header.chain)
    for _ in range(header.place.opening):
        taken = cursor.take()
        if not isinstance(taken, Record):
            return attrs.evolve(examine_end(cursor, taken, header, before is None, last), header=header)
    return Finding(judge(facts), 0, None, "", header)


def _contradiction(header: Header, number: int, before: Before | None) -> str | None:
    place = header.place
    if place.segment != number:
        return f"its header says segment {place.segment}, its name says {number}"
    if before is None:
        if number and not (place.base and place.opening):
            return "the segments before it are missing, and it has no snapshot to begin with"
        if not number and (place.first_sequence or place.base or place.opening):
            return "the first segment cannot continue another"
        return None
    if before.sequence is not None and place.first_sequence != before.sequence:
        return f"it begins with sequence {place.first_sequence}, the segment before ends before {before.sequence}"
    if before.chain is not None and place.chain_before != before.chain:
        return "its chain does not continue the segment before"
    return None


def examine_end(
    cursor: Cursor, fault: Fault | None, header: Header | None, lowest: bool, last: bool
) -> Finding:
    """Judge the place where ``cursor`` could take no good record, for ``fault`` or because the file ends."""
    opened = True
    if header is not None:
        assert cursor.sequence is not None
        opened = cursor.sequence >= header.place.first_sequence + header.place.opening
    facts = Situation(lowest, last, opened=opened)
    if fault is None:
        return Finding(
            judge(facts), cursor.offset, cursor.sequence, "the file ends inside its opening records"
        )
    later = None if fault.intact is not None else cursor.source.find_intact(cursor.offset + 1)
    row = judge(attrs.evolve(facts, record=fault.state, intact_after=later is not None))
    reason = fault.reason
    if later is not None:
        reason = f"{reason}, and an intact record follows at byte {later}"
    elif row.verdict == "damage" and fault.intact is None:
        reason = f"{reason} ({row.why})"
    return Finding(row, cursor.offset, cursor.sequence, reason)
