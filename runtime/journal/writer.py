"""Writing a journal: creation, resumption after a crash, appending.

Durability says what ``append`` waits for, and so what can be lost of what it accepted:

- ``none``: nothing. Records wait in the process, up to 64 KiB; a killed process loses those.
- ``write``: the write. A killed process loses nothing, a crashed machine what was not on the disk.
- ``fsync``: the disk. A crashed machine loses nothing.

A failed write or sync poisons the journal. A sync is never tried again: after it failed, the kernel may
have dropped the pages and call the next one a success.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol

from txdecode.runtime.journal.errors import (
    JournalExists,
    JournalFailed,
    JournalLocked,
    JournalUnavailable,
    NotAJournal,
)
from txdecode.runtime.journal.format import (
    CHAIN_SIZE,
    SALT_SIZE,
    Entry,
    Header,
    Record,
    TornTail,
    decode_header,
    encode_header,
    frame,
)
from txdecode.runtime.journal.reader import JournalReader
from txdecode.runtime.journal.storage import FileStorage, OpenStorage, Storage

Durability = Literal["none", "write", "fsync"]

BUFFER_MAX = 1 << 16


class RecordLog(Protocol):
    """Where the runtime appends its records: a ``Journal``, or a ``NullJournal`` that keeps nothing."""

    @property
    def path(self) -> Path | None:
        """The file, where there is one."""

    @property
    def sequence(self) -> int:
        """Sequence number that the next record gets; the number of records appended."""

    @property
    def chain(self) -> bytes:
        """Chain digest after the last record appended."""

    @property
    def size(self) -> int:
        """Bytes of the log, buffered ones included."""

    def append(self, entries: Sequence[Entry]) -> int:
        """Append records as one; the sequence number of the first."""

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""

    def close(self) -> None:
        """Take no more records."""


class Journal:
    """An event journal open for appending, by one thread, in one process.

    ``header`` is the file header, ``tail`` the torn tail that ``resume`` cut off, if there was one. After a
    failure the properties tell of the last ``append`` that succeeded; the file may hold more.
    """

    __slots__ = (
        "_buffer",
        "_chain",
        "_durability",
        "_failure",
        "_path",
        "_sequence",
        "_size",
        "_storage",
        "header",
        "tail",
    )

    def __init__(self, path: Path, storage: Storage, header: Header, durability: Durability) -> None:
        assert durability in ("none", "write", "fsync"), durability
        self.header = header
        self.tail: TornTail | None = None
        self._path = path
        self._storage: Storage | None = storage
        self._durability = durability
        self._sequence = 0
        self._chain = header.chain
        self._size = header.size
        self._buffer = bytearray()
        self._failure: tuple[str, str] | None = None

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
        open_storage: OpenStorage = FileStorage,
    ) -> Journal:
        """A new journal at ``path``; ``salt`` (16 bytes) is random where none is given.

        Raises ``JournalExists`` (the file has content and ``overwrite`` is not set), ``JournalLocked``,
        ``JournalUnavailable`` and ``JournalFailed``. After ``JournalFailed`` the file is empty if the disk
        allows, so that the next attempt needs no ``overwrite``.
        """
        where = Path(path)
        data = encode_header(fingerprint, configuration, os.urandom(SALT_SIZE) if salt is None else salt)
        header = decode_header(data, where)
        descriptor = _open_locked(where, os.O_CREAT)
        size = os.fstat(descriptor).st_size
        if size and not overwrite:
            os.close(descriptor)
            raise JournalExists(where, size)
        storage = open_storage(descriptor, where)
        journal = cls(where, storage, header, durability)
        try:
            if size:
                journal._guard("truncate", lambda: storage.truncate(0))
            journal._guard("write", lambda: _write_all(storage, data))
            if durability == "fsync":
                journal._guard("fsync", storage.fsync)
            if durability != "none":
                journal._guard("fsync", storage.sync_directory)
        except BaseException:
            with suppress(OSError):
                storage.truncate(0)
            journal.close()
            raise
        return journal

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "write",
        on_record: Callable[[Record], None] | None = None,
        open_storage: OpenStorage = FileStorage,
    ) -> Journal:
        """Go on with the journal at ``path``: check all of it, then cut off a torn tail (told in ``tail``).

        ``on_record`` sees every record in order while the lock is held, so that recovery reads the file
        once and nobody can append in between; what it raises leaves the file as it was. Raises as
        ``iterate`` does, and ``JournalLocked`` and ``JournalFailed``.
        """
        where = Path(path)
        descriptor = _open_locked(where, 0)
        try:
            reader = JournalReader(where, descriptor, "tail", owns=False)
            for record in reader:
                if on_record is not None:
                    on_record(record)
        except BaseException:
            os.close(descriptor)
            raise
        storage = open_storage(descriptor, where)
        journal = cls(where, storage, reader.header, durability)
        journal._sequence, journal._chain, journal._size = reader.sequence, reader.chain, reader.offset
        journal.tail = reader.tail
        if reader.tail is not None:
            try:
                journal._guard("truncate", lambda: storage.truncate(reader.offset))
                # The cut must be on the disk before anything is appended behind it.
                journal._guard("fsync", storage.fsync)
            except BaseException:
                journal.close()
                raise
        return journal

    @property
    def path(self) -> Path:
        """The file."""
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
        """Bytes of the journal, header and buffered records included."""
        return self._size

    def append(self, entries: Sequence[Entry]) -> int:
        """Append ``entries`` in order, with one write for all; the sequence number of the first.

        Returns once the durability is met. Raises ``JournalFailed``, then and on every later call; a reader
        then finds some of the batch's records or none, and never one without those before it.
        """
        if self._failure is not None:
            raise JournalFailed(self._path, *self._failure)
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
                _write_all(storage, data)
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

    def flush(self) -> None:
        """Hand what is buffered to the operating system. Raises ``JournalFailed``."""
        if self._failure is not None:
            raise JournalFailed(self._path, *self._failure)
        storage = self._storage
        assert storage is not None, "flush of a closed journal"
        self._guard("write", lambda: self._drain(storage))

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
                self._guard("write", lambda: self._drain(storage))
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
            _write_all(storage, bytes(self._buffer))
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


class NullJournal:
    """Numbers records like a ``Journal`` and keeps nothing; what a runtime without a log appends to."""

    __slots__ = ("_sequence",)

    path: Path | None = None
    chain = bytes(CHAIN_SIZE)
    size = 0

    def __init__(self) -> None:
        self._sequence = 0

    @property
    def sequence(self) -> int:
        """Sequence number that the next record gets."""
        return self._sequence

    def append(self, entries: Sequence[Entry]) -> int:
        """Count ``entries``; the sequence number of the first."""
        first = self._sequence
        self._sequence += len(entries)
        return first

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


def _write_all(storage: Storage, data: bytes) -> None:
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


def _open_locked(path: Path, flags: int) -> int:
    """A descriptor for reading and appending that holds the lock on a regular file.

    The lock comes before any look at the content: whoever holds it may be about to write.
    """
    mode = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags
    operation = "create" if flags else "open"
    try:
        descriptor = os.open(path, mode, 0o666)
    except IsADirectoryError as error:
        raise NotAJournal(path, "it is a directory") from error
    except OSError as error:
        raise JournalUnavailable(path, operation, error.strerror or str(error)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAJournal(path, "it is not a regular file")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise JournalLocked(path) from error
    except OSError as error:
        os.close(descriptor)
        raise JournalUnavailable(path, "lock", error.strerror or str(error)) from error
    except NotAJournal:
        os.close(descriptor)
        raise
    return descriptor
