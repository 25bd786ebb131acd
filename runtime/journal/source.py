"""Reading one segment: a window over its bytes, the search for records, and the checks of each record."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import attrs

from txdecode.runtime.journal.errors import JournalCorrupt, JournalUnavailable, NotAJournal
from txdecode.runtime.journal.format import (
    CHAIN_SIZE,
    FRAMING,
    HEAD,
    HEAD_SIZE,
    MARKER,
    PAYLOAD_MAX,
    PREFIX_SIZE,
    TAIL,
    TAIL_SIZE,
    Header,
    HeaderState,
    Record,
    decode_header,
    head_length,
    header_size,
    header_state,
)
from txdecode.runtime.journal.verdict import RecordState

CHUNK_SIZE = 1 << 18

# How many bytes of payload a search may check for each byte that it passes over. Sound headers over
# unsound payloads could be nested to make it quadratic; nothing but an attack does so.
_SEARCH_FACTOR = 4


@attrs.frozen
class Fault:
    """Why no record could be taken. ``intact``: its checksums are right, so it was written whole."""

    state: RecordState
    reason: str
    intact: Record | None = None


class Source:
    """A window over a file: at most a chunk, or one record where that is larger.

    Read by chunks and not mapped: a mapped file that another process cuts short kills the reader. ``size``
    is fixed at the start; what a live writer appends later is not seen.
    """

    def __init__(self, descriptor: int, path: Path, size: int | None = None) -> None:
        self.descriptor = descriptor
        self.path = path
        self.size = os.fstat(descriptor).st_size if size is None else size
        self.buffer = b""
        self.base = 0

    def peek(self, offset: int, count: int) -> tuple[bytes, int]:
        """A buffer and the index of byte ``offset`` in it; ``count`` bytes follow, or the file ends."""
        index = offset - self.base
        if index < 0 or index + count > len(self.buffer):
            self.buffer = self.read(offset, max(count, CHUNK_SIZE))
            self.base = offset
            index = 0
        return self.buffer, index

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

    def header(self) -> tuple[HeaderState, Header | JournalCorrupt | NotAJournal]:
        """What stands at the beginning, and the header there or why it cannot be read.

        Raises ``JournalVersionError`` and ``JournalUnavailable``.
        """
        data = b""
        try:
            data = self.read(0, PREFIX_SIZE)
            data = self.read(0, header_size(data, self.path))
            return "whole", decode_header(data, self.path)
        except (JournalCorrupt, NotAJournal) as error:
            state = header_state(data)
            # Right checksums over something that is no header were written by no writer of headers.
            return "foreign" if state == "whole" else state, error

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


class Cursor:
    """Where a reader stands: the next offset, the sequence expected there and the chain before it."""

    __slots__ = ("chain", "offset", "sequence", "source")

    def __init__(self, source: Source, offset: int, sequence: int | None, chain: bytes | None) -> None:
        self.source = source
        self.offset = offset
        self.sequence = sequence
        self.chain = chain

    def take(self) -> Record | Fault | None:
        """The next record, or why it cannot be taken; ``None`` where the file ends between two records.

        Written out in one piece, because a replay spends its time here.
        """
        source, offset = self.source, self.offset
        buffer, index = source.buffer, offset - source.base
        if index < 0 or index + HEAD_SIZE > len(buffer):
            buffer, index = source.peek(offset, HEAD_SIZE)
            if index == len(buffer):
                return None
            if len(buffer) - index < HEAD_SIZE:
                return Fault(
                    "short", f"the file ends inside a record header, after {len(buffer) - index} bytes"
                )
        marker, kind, version, flags, length, sequence, check = HEAD.unpack_from(buffer, index)
        if marker != MARKER or length > PAYLOAD_MAX or check != crc32(buffer[index : index + HEAD_SIZE - 4]):
            return Fault("checksum", "no record header with a right checksum stands here")
        size = length + FRAMING
        if index + size > len(buffer):
            buffer, index = source.peek(offset, size)
            if len(buffer) - index < size:
                left = len(buffer) - index
                return Fault("short", f"the record needs {size} bytes, the file ends after {left}")
        body = buffer[index : index + size - TAIL_SIZE]
        payload = body[HEAD_SIZE:]
        chain, check = TAIL.unpack_from(buffer, index + size - TAIL_SIZE)
        if check != crc32(chain, crc32(payload)):
            return Fault("checksum", "the checksum of payload and chain does not match")
        record = Record(sequence, kind, version, flags, payload, offset, chain)
        if sequence != self.sequence:
            return Fault("misplaced", f"sequence {self.sequence} expected, {sequence} found", record)
        assert self.chain is not None
        if chain != blake2b(self.chain + body, digest_size=CHAIN_SIZE).digest():
            return Fault("misplaced", "the chain digest does not continue the record before", record)
        self.offset = offset + size
        self.sequence = sequence + 1
        self.chain = chain
        return record

    def adopt(self, record: Record) -> None:
        """Stand after ``record``."""
        self.offset = record.offset + len(record.payload) + FRAMING
        self.sequence = record.sequence + 1
        self.chain = record.chain
