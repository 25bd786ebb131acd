"""Reading a journal in order, every record checked.

Where no good record stands, the table in ``verdict`` says what that means: a torn tail or a rotation that was
cut short is left out and reported, damage is refused (``JournalCorrupt``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

import attrs

from txdecode.runtime.journal.errors import JournalCorrupt, JournalUnavailable, NotAJournal
from txdecode.runtime.journal.examine import Before, Finding, examine_end, examine_header
from txdecode.runtime.journal.format import Header, Record, TornTail, UnfinishedRotation
from txdecode.runtime.journal.segments import ATTEMPTS, SegmentFile, list_segments, open_for_reading, place_of
from txdecode.runtime.journal.source import Cursor, Source

Mode = Literal["strict", "tail"]


@attrs.frozen
class SegmentReport:
    """A segment: its file's name, number, first sequence number, how many ``opening`` records were written with its
    header, ``records`` in all, and bytes up to the end of the last of them. One with opening records is a base: a
    journal can begin with it."""

    segment: str
    number: int
    first_sequence: int
    opening: int
    records: int
    size: int

    @property
    def base(self) -> bool:
        """Whether the segments before are not needed."""
        return self.number == 0 or self.opening > 0


class JournalReader:
    """Checked records of one journal, in order, over all its segments; an iterator that closes its file at the end.

    ``header``, of the lowest segment that is there, is known at once. Once the iteration is over, ``tail`` is the
    torn tail and ``unfinished`` the rotation that was cut short, if there was one. Iteration raises
    ``JournalCorrupt`` where a segment is damaged, and for a tail or a rotation cut short in mode ``strict``.
    """

    def __init__(
        self, path: Path, mode: Mode = "tail", segments: Sequence[SegmentFile] | None = None
    ) -> None:
        assert mode in ("strict", "tail"), mode
        self.path = path
        self.tail: TornTail | None = None
        self.unfinished: UnfinishedRotation | None = None
        self._mode = mode
        self._descriptor: int | None = None
        self._files = list(list_segments(path) if segments is None else segments) or [SegmentFile(0, path, 0)]
        self._at = -1
        self._cursor: Cursor
        self._passed: list[SegmentReport] = []
        self._position = 0
        header = self._enter(None)
        assert header is not None
        self.header = header

    @property
    def sequence(self) -> int:
        """Sequence number after the last record read: the number of records in the whole journal up to it."""
        assert self._cursor.sequence is not None
        return self._cursor.sequence

    @property
    def chain(self) -> bytes:
        """Chain digest after the last record read."""
        assert self._cursor.chain is not None
        return self._cursor.chain

    @property
    def segment(self) -> Path:
        """The file that the last record read is in."""
        return self._cursor.source.path

    @property
    def offset(self) -> int:
        """Offset after the last record read, in ``segment``."""
        return self._cursor.offset

    @property
    def position(self) -> int:
        """Bytes read of all segments; of ``size`` in the end, but for a torn tail."""
        return self._position + self._cursor.offset

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(one.size for one in self._files)

    @property
    def segments(self) -> tuple[SegmentReport, ...]:
        """The segments read, the one that is being read last."""
        place, cursor = self._place, self._cursor
        return (
            *self._passed,
            SegmentReport(
                cursor.source.path.name,
                place.segment,
                place.first_sequence,
                place.opening,
                self.sequence - place.first_sequence,
                cursor.offset,
            ),
        )

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        while self._descriptor is not None:
            try:
                taken = self._cursor.take()
                if isinstance(taken, Record):
                    return taken
                last = self._at + 1 == len(self._files)
                found = examine_end(self._cursor, taken, self._header, self._at == 0, last)
                if self._accept(found, self._cursor.source) and not last:
                    self._enter(Before(self._place.segment, self.sequence, self.chain))
                    continue
                self.close()
            except BaseException:
                self.close()
                raise
        raise StopIteration

    def _enter(self, before: Before | None) -> Header | None:
        """Open the next segment and stand at its first record; ``None`` where it is an unfinished rotation."""
        file = self._files[self._at + 1]
        last = self._at + 2 == len(self._files)
        descriptor = open_for_reading(file.path)
        try:
            source = Source(descriptor, file.path, file.size)
            found = examine_header(source, file, before, last)
            accepted = self._accept(found, source)
        except BaseException:
            os.close(descriptor)
            raise
        if not accepted:
            os.close(descriptor)
            self.close()
            return None
        header = found.header
        assert header is not None
        if before is not None:
            self._passed.append(self.segments[-1])
            self._position += self._cursor.offset
        self.close()
        self._at += 1
        self._descriptor = descriptor
        self._header, self._place = header, header.place
        self._cursor = Cursor(source, header.size, header.place.first_sequence, header.chain)
        return header

    def _accept(self, found: Finding, source: Source) -> bool:
        """Whether to read on; notes what is to be cut off or deleted, raises for what is refused."""
        verdict = found.row.verdict
        if verdict == "whole":
            return True
        path = source.path
        if verdict in ("nothing", "damage"):
            if isinstance(found.error, NotAJournal) and len(self._files) == 1:
                raise found.error
            if found.error is not None:
                raise JournalCorrupt(path, getattr(found.error, "offset", 0), None, found.reason)
            raise JournalCorrupt(path, found.offset, found.sequence, found.reason)
        if self._mode == "strict":
            reason = f"{found.reason} (a {verdict}; refused when strict)"
            raise JournalCorrupt(path, found.offset, found.sequence, reason)
        if verdict == "torn tail":
            self.tail = TornTail(found.offset, source.size - found.offset, found.reason, path.name)
        else:
            self.unfinished = UnfinishedRotation(path.name, source.size, found.reason)
        return False

    def close(self) -> None:
        """Stop reading. May be called more than once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Absent when the constructor's own assertion fired.
        if getattr(self, "_descriptor", None) is not None:
            self.close()


def iterate(path: str | os.PathLike[str], mode: Mode = "tail") -> JournalReader:
    """Read the journal at ``path``: its header now, its records by iteration, in bounded memory.

    ``tail`` leaves out a torn tail or a rotation cut short, and reports it in ``.tail`` or ``.unfinished``;
    ``strict`` refuses both. What a live writer appends later is not seen. Raises ``NotAJournal``,
    ``JournalVersionError``, ``JournalCorrupt`` and ``JournalUnavailable``.
    """
    where = place_of(path)
    for _ in range(ATTEMPTS):
        segments = list_segments(where)
        try:
            return JournalReader(where, mode, segments)
        except JournalUnavailable as error:
            # The oldest segment may have been dropped since it was listed.
            if not segments or not isinstance(error.__cause__, FileNotFoundError):
                raise
    raise JournalUnavailable(where, "open", "its segments are dropped faster than they are read")


def read_header(path: str | os.PathLike[str]) -> Header:
    """The checked header of the lowest segment of the journal at ``path``. Raises as ``iterate`` does."""
    with iterate(path) as reader:
        return reader.header
