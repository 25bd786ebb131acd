"""Going on in a new segment, and letting go of old ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from txdecode.runtime.journal.format import Entry, Header, Place, decode_header, encode_header, frame
from txdecode.runtime.journal.segments import lock
from txdecode.runtime.journal.storage import OpenStorage, Storage

T = TypeVar("T")

SEGMENT_BYTES = 64 << 20


@attrs.frozen
class Segment:
    """A segment that is open for appending: its records so far end with ``size``, ``sequence`` and ``chain``.

    It takes appends that begin below ``full``.
    """

    storage: Storage
    size: int
    sequence: int
    chain: bytes
    full: int


def write_all(storage: Storage, data: bytes) -> None:
    """Write ``data`` whole: one call, and more only where the system takes less than it was given."""
    written = storage.write(data)
    if written == len(data):
        return
    rest = memoryview(data)
    while written < len(rest):
        if written <= 0:
            raise OSError(f"a write of {len(rest)} bytes took {written}")
        rest = rest[written:]
        written = storage.write(rest)


def begin_segment(
    path: Path,
    like: Header,
    place: Place,
    opening: Sequence[Entry],
    segment_bytes: int,
    open_storage: OpenStorage,
    note: Callable[[str], None],
) -> Segment:
    """Create the file ``path`` as the segment at ``place`` of the journal with header ``like``.

    Header and opening records go out in one write; they and the file's name are on the disk when this returns. The
    caller holds the lock of the segment before. ``note`` is told each step before it is done, so that an
    ``OSError`` can be told with what was being done.
    """
    data = encode_header(
        like.fingerprint, like.configuration, like.salt, like.required, like.optional, place=place
    )
    header = decode_header(data, path)
    records, chain = frame(opening, place.first_sequence, header.chain)
    note("create")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        note("lock")
        lock(descriptor)
        note("create")
        storage = open_storage(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    try:
        note("write")
        write_all(storage, data + records)
        note("fsync")
        storage.fsync()
        storage.sync_directory()
    except BaseException:
        storage.close()
        raise
    size = len(data) + len(records)
    sequence = place.first_sequence + len(opening)
    # A large opening must not fill it, or every append would begin a segment of its own.
    full = max(segment_bytes, size + len(records)) if len(records) > segment_bytes // 2 else segment_bytes
    return Segment(storage, size, sequence, chain, full)


def droppable(bases: dict[int, bool], keep: int) -> list[int]:
    """The segments that may go, oldest first, so that at least ``keep`` stay and the lowest of them is a base.

    ``bases`` says of each segment that is there whether a journal can begin with it.
    """
    newest = max(bases)
    starts = [number for number, base in bases.items() if base and number <= newest - keep + 1]
    lowest = max(starts, default=0)
    return sorted(number for number in bases if number < lowest)
