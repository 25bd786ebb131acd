"""Reading a journal: checked iteration, and a lenient scan for inspection.

A crash cuts a journal short; it does not leave sound records after an unsound one, since every append is
one write at the end. So what follows a bad record decides:

====================================================  =======================  ==============
bad record at offset o                                an intact record after o verdict
====================================================  =======================  ==============
checksums right, sequence or chain wrong              any                      damage
cut short, or a checksum wrong                        yes                      damage
cut short, or a checksum wrong                        no                       torn tail
====================================================  =======================  ==============

Damage is refused (``JournalCorrupt``). A flipped bit in the last record, with nothing after it, cannot be
told from a torn tail, and is reported as one. On file systems that write pages out of order, a machine
crash can leave a hole before intact records that were never synced; that is refused too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal
from zlib import crc32

import attrs

from txdecode.runtime.journal.errors import JournalCorrupt, JournalUnavailable, NotAJournal
from txdecode.runtime.journal.format import (
    CHAIN_SIZE,
    FRAMING,
    HEAD_SIZE,
    MARKER,
    PREFIX_SIZE,
    Header,
    Record,
    TornTail,
    decode_header,
    expected_chain,
    head_length,
    header_size,
    unframe,
)

Mode = Literal["strict", "tail"]

CHUNK_SIZE = 1 << 18

# How many bytes of payload a search may check for each byte that it passes over. Sound headers over
# unsound payloads could be nested to make it quadratic; nothing but an attack does so.
_SEARCH_FACTOR = 4


@attrs.frozen
class Damage:
    """A stretch of a journal that ``scan`` could not read, or a break between two records that it could.

    ``size`` bytes from ``offset`` were passed over (0: a break). ``sequence`` is the record expected there,
    ``None`` where the file header is concerned or where it cannot be known.
    """

    offset: int
    size: int
    sequence: int | None
    reason: str


@attrs.frozen
class _Fault:
    """Why no record could be taken. ``intact``: its checksums are right, so it was written whole."""

    reason: str
    intact: Record | None = None


def open_for_reading(path: Path) -> int:
    """A file descriptor. Raises ``NotAJournal`` unless ``path`` is a regular file."""
    try:
        # Non-blocking, so that a named pipe without a writer is refused instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise JournalUnavailable(path, "open", error.strerror or str(error)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotAJournal(path, "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
    return descriptor


class _Source:
    """A window over the file: at most a chunk, or one record where that is larger.

    Read by chunks and not mapped: a mapped file that another process cuts short kills the reader. ``size``
    is fixed at the start; what a live writer appends later is not seen.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self._buffer = b""
        self._base = 0

    def peek(self, offset: int, count: int) -> tuple[bytes, int]:
        """A buffer and the index of byte ``offset`` in it; ``count`` bytes follow, or the file ends."""
        index = offset - self._base
        if index < 0 or index + count > len(self._buffer):
            self._buffer = self.read(offset, max(count, CHUNK_SIZE))
            self._base = offset
            index = 0
        return self._buffer, index

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset``, fewer only where the file ends."""
        count = min(count, self.size - offset)
        parts: list[bytes] = []
        while count > 0:
            try:
                part = os.pread(self.descriptor, count, offset)
            except OSError as error:
                raise JournalUnavailable(self.path, "read", error.strerror or str(error)) from error
            if not part:
                # Cut short by another process while it is read: it ends here now.
                self.size = min(self.size, offset)
                break
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def header(self) -> Header:
        """The file header, checked."""
        size = header_size(self.read(0, PREFIX_SIZE), self.path)
        return decode_header(self.read(0, size), self.path)

    def body_is_sound(self, offset: int, length: int) -> bool:
        """Whether the last checksum of the record at ``offset`` is right; the payload is not held at once."""
        position = offset + HEAD_SIZE
        end = position + length + CHAIN_SIZE
        checksum = 0
        while position < end:
            part = self.read(position, min(CHUNK_SIZE, end - position))
            if not part:
                return False
            checksum = crc32(part, checksum)
            position += len(part)
        return self.read(end, 4) == checksum.to_bytes(4, "little")

    def find_intact(self, start: int) -> int | None:
        """Offset of the first record at or after ``start`` whose checksums are right.

        Linear: the marker is found at the speed of ``bytes.find``, the header checksum filters, and the
        payloads checked are bounded by a multiple of the bytes searched. Past that bound a sound header is
        taken for a record, which can only turn a torn tail into a refusal.
        """
        allowance = _SEARCH_FACTOR * (self.size - start)
        position = start
        while position + FRAMING <= self.size:
            buffer, index = self.peek(position, HEAD_SIZE)
            hit = buffer.find(MARKER, index)
            if hit < 0:
                position += len(buffer) - index
                continue
            position += hit - index
            buffer, index = self.peek(position, HEAD_SIZE)
            if len(buffer) - index < HEAD_SIZE:
                return None
            length = head_length(buffer, index)
            if length is not None:
                allowance -= length
                if allowance < 0 or self.body_is_sound(position, length):
                    return position
            position += 1
        return None


class _Cursor:
    """Where a reader stands: the next offset, the sequence expected there and the chain before it."""

    def __init__(self, source: _Source, offset: int, chain: bytes | None) -> None:
        self.source = source
        self.offset = offset
        self.sequence: int | None = 0
        self.chain = chain

    def take(self) -> Record | _Fault | None:
        """The next record, or why it cannot be taken; ``None`` where the file ends between two records."""
        source, offset = self.source, self.offset
        buffer, index = source.peek(offset, HEAD_SIZE)
        if index == len(buffer):
            return None
        if len(buffer) - index < HEAD_SIZE:
            return _Fault(f"the file ends inside a record header, after {len(buffer) - index} bytes")
        length = head_length(buffer, index)
        if length is None:
            return _Fault("no record header with a right checksum stands here")
        size = length + FRAMING
        buffer, index = source.peek(offset, size)
        if len(buffer) - index < size:
            return _Fault(f"the record needs {size} bytes, the file ends after {len(buffer) - index}")
        record = unframe(buffer, index, length, offset)
        if record is None:
            return _Fault("the checksum of payload and chain does not match")
        if record.sequence != self.sequence:
            return _Fault(f"sequence {self.sequence} expected, {record.sequence} found", record)
        assert self.chain is not None
        if record.chain != expected_chain(buffer, index, length, self.chain):
            return _Fault("the chain digest does not continue the record before", record)
        self.adopt(record)
        return record

    def adopt(self, record: Record) -> None:
        """Stand after ``record``."""
        self.offset = record.offset + len(record.payload) + FRAMING
        self.sequence = record.sequence + 1
        self.chain = record.chain


class JournalReader:
    """Checked records of one journal, in order; an iterator that closes its file at the end.

    ``header`` is known at once. ``tail`` is the torn tail, once the iteration is over and if there was one.
    Iteration raises ``JournalCorrupt`` where the file is damaged, and for a torn tail in mode ``strict``.
    """

    def __init__(self, path: Path, descriptor: int, mode: Mode = "tail", *, owns: bool = True) -> None:
        assert mode in ("strict", "tail"), mode
        self.path = path
        self.tail: TornTail | None = None
        self._mode = mode
        self._descriptor: int | None = descriptor
        self._owns = owns
        try:
            self._source = _Source(descriptor, path)
            self.header = self._source.header()
        except BaseException:
            self.close()
            raise
        self._cursor = _Cursor(self._source, self.header.size, self.header.chain)

    @property
    def sequence(self) -> int:
        """Sequence number after the last record read, which is also the number of records read."""
        assert self._cursor.sequence is not None
        return self._cursor.sequence

    @property
    def chain(self) -> bytes:
        """Chain digest after the last record read."""
        assert self._cursor.chain is not None
        return self._cursor.chain

    @property
    def offset(self) -> int:
        """Offset after the last record read."""
        return self._cursor.offset

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if self._descriptor is None:
            raise StopIteration
        try:
            taken = self._cursor.take()
            if isinstance(taken, Record):
                return taken
            if taken is not None:
                self.tail = self._judge(taken)
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def _judge(self, fault: _Fault) -> TornTail:
        """The torn tail that explains ``fault``; ``JournalCorrupt`` where only damage does."""
        offset, sequence = self.offset, self.sequence
        if fault.intact is not None:
            raise JournalCorrupt(self.path, offset, sequence, fault.reason)
        later = self._source.find_intact(offset + 1)
        if later is not None:
            reason = f"{fault.reason}, and an intact record follows at byte {later}"
            raise JournalCorrupt(self.path, offset, sequence, reason)
        if self._mode == "strict":
            raise JournalCorrupt(
                self.path, offset, sequence, f"{fault.reason} (a torn tail; refused when strict)"
            )
        return TornTail(offset, self._source.size - offset, fault.reason)

    def close(self) -> None:
        """Stop reading. May be called more than once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and self._owns:
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

    ``tail`` ends at a torn tail and reports it in ``.tail``; ``strict`` refuses it. Raises ``NotAJournal``,
    ``JournalVersionError``, ``JournalCorrupt`` and ``JournalUnavailable``.
    """
    where = Path(path)
    return JournalReader(where, open_for_reading(where), mode)


def read_header(path: str | os.PathLike[str]) -> Header:
    """The checked header of the journal at ``path``. Raises as ``iterate`` does."""
    with iterate(path) as reader:
        return reader.header


def scan(path: str | os.PathLike[str]) -> Iterator[Header | Record | Damage | TornTail]:
    """Everything that can be read of a journal, damaged or not, in file order. For inspection only.

    The header comes first (a ``Damage`` in its place where it is damaged), a ``TornTail`` last. A record
    that is intact but out of its place follows a ``Damage`` of size 0. Raises ``NotAJournal``,
    ``JournalVersionError`` and ``JournalUnavailable``, but never ``JournalCorrupt``.
    """
    where = Path(path)
    descriptor = open_for_reading(where)
    try:
        yield from _scan(_Source(descriptor, where))
    finally:
        os.close(descriptor)


def _scan(source: _Source) -> Iterator[Header | Record | Damage | TornTail]:
    try:
        header = source.header()
    except (JournalCorrupt, NotAJournal) as error:
        start = source.find_intact(0)
        if start is None and isinstance(error, NotAJournal):
            raise
        end = source.size if start is None else start
        yield Damage(0, end, None, error.reason)
        cursor = _Cursor(source, end, None)
        cursor.sequence = None
    else:
        yield header
        cursor = _Cursor(source, header.size, header.chain)
    while (taken := cursor.take()) is not None:
        if isinstance(taken, Record):
            yield taken
        elif taken.intact is not None:
            if cursor.sequence is not None:
                yield Damage(cursor.offset, 0, cursor.sequence, taken.reason)
            yield taken.intact
            cursor.adopt(taken.intact)
        else:
            start = source.find_intact(cursor.offset + 1)
            if start is None:
                yield TornTail(cursor.offset, source.size - cursor.offset, taken.reason)
                return
            yield Damage(cursor.offset, start - cursor.offset, cursor.sequence, taken.reason)
            cursor.offset = start
            # What was lost shows from the numbers on both sides; a second report would only repeat it.
            cursor.sequence = None
