"""Writing a journal: creation, resumption after a crash, appending, rotation.

Durability says what ``append`` waits for, and so what can be lost of what it accepted:

- ``none``: nothing. Records wait in the process, up to 64 KiB; a killed process loses those.
- ``write``: the write. A killed process loses nothing, a crashed machine what was not on the disk.
- ``fsync``: the disk. A crashed machine loses nothing.

Whatever the durability, a segment is on the disk before the next one is created.

A failed write or sync poisons the journal. A sync is never tried again: after it failed, the kernel may
have dropped the pages and call the next one a success.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

import attrs

from txdecode.runtime.journal.errors import JournalFailed
from txdecode.runtime.journal.format import (
    SALT_SIZE,
    Entry,
    Header,
    Place,
    Record,
    TornTail,
    UnfinishedRotation,
    decode_header,
    encode_header,
    frame,
)
from txdecode.runtime.journal.log import Durability, Snapshot
from txdecode.runtime.journal.reader import JournalReader, SegmentReport
from txdecode.runtime.journal.rotation import SEGMENT_BYTES, Segment, begin_segment, droppable, write_all
from txdecode.runtime.journal.segments import lock_newest, place_of, release, segment_path, take_place
from txdecode.runtime.journal.storage import FileStorage, OpenStorage, Storage, storage_of

BUFFER_MAX = 1 << 16


class Journal:
    """An event journal open for appending, by one thread, in one process.

    ``header`` is that of the lowest segment; ``tail`` the torn tail that ``resume`` cut off and ``unfinished`` the
    rotation cut short that it deleted, if there was one. After a failure the properties tell of the last append or
    rotation that succeeded; the files may hold more.

    ``snapshot`` gives the opening records of the next segment, in which the next append will then be; without it a
    segment has none, and cannot be read without those before it. It is asked in the midst of an append and must
    tell of the records appended before it, all of them and no more. ``keep_segments``: how many segments stay.
    """

    __slots__ = (
        "_buffer",
        "_chain",
        "_durability",
        "_earlier",
        "_failure",
        "_full",
        "_keep",
        "_open_storage",
        "_path",
        "_reports",
        "_segment_bytes",
        "_sequence",
        "_size",
        "_storage",
        "header",
        "snapshot",
        "tail",
        "unfinished",
    )

    def __init__(
        self,
        path: Path,
        header: Header,
        segment: Segment,
        durability: Durability,
        segment_bytes: int,
        keep_segments: int | None,
        snapshot: Snapshot | None,
        open_storage: OpenStorage,
    ) -> None:
        assert durability in ("none", "write", "fsync"), durability
        assert segment_bytes > 0, segment_bytes
        assert keep_segments is None or keep_segments > 0, keep_segments
        self.header = header
        self.snapshot = snapshot
        self.tail: TornTail | None = None
        self.unfinished: UnfinishedRotation | None = None
        self._path = path
        self._durability = durability
        self._segment_bytes = segment_bytes
        self._keep = keep_segments
        self._open_storage = open_storage
        self._buffer = bytearray()
        self._failure: tuple[str, str] | None = None
        self._earlier = 0
        # The newest is as it was when it was begun or resumed.
        self._reports: list[SegmentReport] = []
        self._storage: Storage | None
        self._continue_in(segment)

    def _continue_in(self, segment: Segment) -> None:
        self._storage = segment.storage
        self._sequence, self._chain, self._size = segment.sequence, segment.chain, segment.size
        self._full = segment.full

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        fingerprint: Mapping[str, str],
        configuration: Mapping[str, object],
        durability: Durability = "write",
        overwrite: bool = False,
        salt: bytes | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        keep_segments: int | None = None,
        snapshot: Snapshot | None = None,
        open_storage: OpenStorage = FileStorage,
    ) -> Journal:
        """A new journal at ``path``; ``salt`` (16 bytes) is random where none is given.

        An append that would begin at ``segment_bytes`` or more goes into a new segment. With ``keep_segments`` the
        oldest beyond that number are deleted once a newer one with a snapshot is on the disk.

        Raises ``JournalExists`` (there is a journal or a file with content, and ``overwrite`` is not set),
        ``JournalLocked``, ``JournalUnavailable`` and ``JournalFailed``. After ``JournalFailed`` the file is empty
        if the disk allows, so that the next attempt needs no ``overwrite``.
        """
        where = place_of(path)
        data = encode_header(fingerprint, configuration, os.urandom(SALT_SIZE) if salt is None else salt)
        header = decode_header(data, where)
        descriptor, held = take_place(where, overwrite)
        try:
            size = os.fstat(descriptor).st_size
            storage = storage_of(open_storage, descriptor, where)
            segment = Segment(storage, len(data), 0, header.chain, max(segment_bytes, len(data) + 1))
            journal = cls(
                where, header, segment, durability, segment_bytes, keep_segments, snapshot, open_storage
            )
            journal._reports.append(SegmentReport(where.name, 0, 0, 0, 0, len(data)))
            try:
                # Newest first: cut short, this leaves the beginning of the older journal.
                for number in sorted(held, reverse=True):
                    journal._guard("remove", partial(storage.remove, segment_path(where, number)))
                if held:
                    journal._guard("fsync", storage.sync_directory)
                if size:
                    journal._guard("truncate", partial(storage.truncate, 0))
                journal._guard("write", partial(write_all, storage, data))
                if durability == "fsync":
                    journal._guard("fsync", storage.fsync)
                if durability != "none":
                    journal._guard("fsync", storage.sync_directory)
            except BaseException:
                with suppress(OSError):
                    storage.truncate(0)
                journal.close()
                raise
        finally:
            release(held)
        return journal

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "write",
        on_record: Callable[[Record], None] | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        keep_segments: int | None = None,
        snapshot: Snapshot | None = None,
        open_storage: OpenStorage = FileStorage,
    ) -> Journal:
        """Go on with the journal at ``path``: check all of it, then do away with what a crash left at its end.

        That is a torn tail, which is cut off (told in ``tail``), or a rotation cut short, whose file is deleted
        (told in ``unfinished``). ``on_record`` sees every record in order while the lock is held, so that recovery
        reads the files once and nobody can append in between; what it raises leaves them as they were. The other
        parameters are those of ``create``. Raises as ``iterate`` does, and ``JournalLocked`` and ``JournalFailed``.
        """
        where = place_of(path)
        files, held = lock_newest(where)
        try:
            with JournalReader(where, "tail", files) as reader:
                for record in reader:
                    if on_record is not None:
                        on_record(record)
            last = reader.segments[-1]
            storage = storage_of(open_storage, held.pop(last.number), reader.segment)
            full = segment_bytes if last.records > last.opening else max(segment_bytes, last.size + 1)
            segment = Segment(storage, reader.offset, reader.sequence, reader.chain, full)
            journal = cls(
                where,
                reader.header,
                segment,
                durability,
                segment_bytes,
                keep_segments,
                snapshot,
                open_storage,
            )
            journal._reports = list(reader.segments)
            journal._earlier = reader.position - reader.offset
            journal.tail, journal.unfinished = reader.tail, reader.unfinished
            try:
                journal._repair(storage)
            except BaseException:
                journal.close()
                raise
        finally:
            release(held)
        return journal

    def _repair(self, storage: Storage) -> None:
        if self.tail is not None:
            self._guard("truncate", partial(storage.truncate, self._size))
            # The cut must be on the disk before anything is appended behind it.
            self._guard("fsync", storage.fsync)
        if self.unfinished is not None:
            file = self._path.with_name(self.unfinished.segment)
            self._guard("remove", partial(storage.remove, file))
            self._guard("fsync", storage.sync_directory)

    @property
    def path(self) -> Path:
        """The path that the journal is named by, which is also its first segment."""
        return self._path

    @property
    def durability(self) -> Durability:
        """What ``append`` waits for."""
        return self._durability

    @property
    def sequence(self) -> int:
        """Sequence number that the next record gets; the number of records appended."""
        return self._sequence

    @property
    def chain(self) -> bytes:
        """Chain digest (8 bytes) after the last record appended; before the first, the header's."""
        return self._chain

    @property
    def size(self) -> int:
        """Bytes of the segments that are there, headers and buffered records included."""
        return self._earlier + self._size

    @property
    def segments(self) -> tuple[SegmentReport, ...]:
        """The segments that are there, the one that takes appends last."""
        last = self._reports[-1]
        records = self._sequence - last.first_sequence
        return (*self._reports[:-1], attrs.evolve(last, records=records, size=self._size))

    def append(self, entries: Sequence[Entry]) -> int:
        """Append ``entries`` in order, with one write for all; the sequence number of the first.

        Returns once the durability is met. Where the segment is full, the next one is begun first; its opening
        records then get the sequence numbers before those of ``entries``. Raises ``JournalFailed``, then and on
        every later call; a reader then finds some of the batch's records or none, and never one without those
        before it.
        """
        if self._failure is not None:
            raise JournalFailed(self._path, *self._failure)
        if self._size >= self._full and entries:
            self._rotate()
        storage = self._storage
        assert storage is not None, "append to a closed journal"
        first = self._sequence
        data, chain = frame(entries, first, self._chain)
        operation = "write"
        try:
            if self._durability == "none":
                self._buffer += data
                if len(self._buffer) >= BUFFER_MAX:
                    self._drain(storage)
            elif data:
                write_all(storage, data)
                if self._durability == "fsync":
                    operation = "fsync"
                    storage.fsync()
            self._sequence = first + len(entries)
            self._chain = chain
            self._size += len(data)
        except OSError as error:
            raise self._poison(operation, error) from error
        except BaseException as error:
            self._interrupt(operation, error)
            raise
        return first

    def _rotate(self) -> None:
        """Finish the segment, begin the next one, let go of the old one's lock and of what is not to be kept."""
        storage = self._storage
        assert storage is not None, "append to a closed journal"
        step = "write"

        def note(operation: str) -> None:
            nonlocal step
            step = operation

        try:
            opening = () if self.snapshot is None else tuple(self.snapshot())
            self._drain(storage)
            note("fsync")
            storage.fsync()
            self._reports[-1] = self.segments[-1]
            if self._reports[-1].number == 0:
                # With durability ``none`` its name may not be on the disk, where the next one's might be.
                storage.sync_directory()
            number = self._reports[-1].number + 1
            path = segment_path(self._path, number)
            place = Place(number, self._sequence, self._chain, bool(opening), len(opening))
            segment = begin_segment(
                path, self.header, place, opening, self._segment_bytes, self._open_storage, note
            )
            self._earlier += self._size
            self._continue_in(segment)
            self._reports.append(
                SegmentReport(
                    path.name, number, place.first_sequence, len(opening), len(opening), segment.size
                )
            )
            with suppress(OSError):
                storage.close()
            if self._keep is not None and place.base:
                self._drop(segment.storage, self._keep, note)
        except OSError as error:
            raise self._poison(step, error) from error
        except BaseException as error:
            self._interrupt(f"{step} of a new segment", error)
            raise

    def _drop(self, storage: Storage, keep: int, note: Callable[[str], None]) -> None:
        for number in droppable({one.number: one.base for one in self._reports}, keep):
            note("remove")
            storage.remove(segment_path(self._path, number))
            # One at a time: a machine crash must not leave an older one without its successor.
            note("fsync")
            storage.sync_directory()
            self._earlier -= self._reports.pop(0).size

    def flush(self) -> None:
        """Hand what is buffered to the operating system. Raises ``JournalFailed``."""
        if self._failure is not None:
            raise JournalFailed(self._path, *self._failure)
        storage = self._storage
        assert storage is not None, "flush of a closed journal"
        self._guard("write", partial(self._drain, storage))

    def close(self) -> None:
        """Flush, close the file, give up the lock. May be called more than once.

        A journal that failed is closed as it is. Raises ``JournalFailed`` where the flush fails, with the
        file closed all the same.
        """
        storage = self._storage
        if storage is None:
            return
        try:
            if self._failure is None:
                self._guard("write", partial(self._drain, storage))
        finally:
            self._storage = None
            with suppress(OSError):
                storage.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drain(self, storage: Storage) -> None:
        if self._buffer:
            write_all(storage, bytes(self._buffer))
            self._buffer.clear()

    def _guard(self, operation: str, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise self._poison(operation, error) from error
        except BaseException as error:
            self._interrupt(operation, error)
            raise

    def _poison(self, operation: str, error: OSError) -> JournalFailed:
        self._failure = (operation, error.strerror or str(error))
        return JournalFailed(self._path, *self._failure)

    def _interrupt(self, operation: str, error: BaseException) -> None:
        """An interrupt poisons as well: it can strike between a write and its bookkeeping, and the next
        record would then repeat a sequence number."""
        self._failure = ("interrupt", f"{type(error).__name__} during {operation}")
