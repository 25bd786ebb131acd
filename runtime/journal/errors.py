"""What can go wrong with a journal.

::

    TxDecodeError
      └─ JournalError
           ├─ NotAJournal           the path holds something else
           ├─ JournalVersionError   written by a later version, or needs a feature that is unknown here
           ├─ JournalCorrupt        damaged where a crash cannot explain it
           ├─ JournalExists         creation would overwrite a file
           ├─ JournalLocked         another writer has it open
           ├─ JournalUnavailable    the operating system refused to open or read it
           └─ JournalFailed         a write or sync failed; the journal takes no more records
"""

from __future__ import annotations

from pathlib import Path

from txdecode.state.errors import TxDecodeError


class JournalError(TxDecodeError):
    """Root of the journal's errors. ``path`` names the file."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class NotAJournal(JournalError):
    """The path does not hold a txdecode journal: ``reason`` says what was found instead."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, f"'{path}' is not a txdecode journal: {reason}; give the path of a log file")
        self.reason = reason


class JournalVersionError(JournalError):
    """The journal is sound but asks for more than this version knows: ``found`` against ``supported``."""

    def __init__(self, path: Path, found: str, supported: str) -> None:
        super().__init__(
            path,
            f"journal '{path}' has {found}, this version supports {supported}; "
            f"read it with the txdecode that wrote it, or a later one",
        )
        self.found = found
        self.supported = supported


class JournalCorrupt(JournalError):
    """A journal is damaged at byte ``offset`` of the file ``path``, the segment named ``segment``.

    ``sequence`` is the number of the record expected there (``None``: the segment's header), ``reason`` what is
    wrong. Everything before that place was checked and is sound.
    """

    def __init__(self, path: Path, offset: int, sequence: int | None, reason: str) -> None:
        place = "the file header" if sequence is None else f"record {sequence}"
        super().__init__(
            path,
            f"journal '{path}' is damaged at byte {offset} ({place}): {reason}; "
            f"look at what can be read with 'txdecode log inspect'",
        )
        self.segment = path.name
        self.offset = offset
        self.sequence = sequence
        self.reason = reason


class JournalExists(JournalError):
    """A new journal would overwrite one whose segments, ``path`` and its like, have ``size`` bytes."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(
            path,
            f"a new journal needs a new file, but '{path}' has {size} bytes; "
            f"choose another path or overwrite",
        )
        self.size = size


class JournalLocked(JournalError):
    """Another writer holds the journal; two writers would tear each other's records."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, f"journal '{path}' is open for writing elsewhere; close that runtime or choose another path"
        )


class JournalUnavailable(JournalError):
    """The operating system refused: ``operation`` is what was tried, ``reason`` its answer."""

    def __init__(self, path: Path, operation: str, reason: str) -> None:
        super().__init__(path, f"cannot {operation} journal '{path}': {reason}")
        self.operation = operation
        self.reason = reason


class JournalFailed(JournalError):
    """A write or sync failed, so what the file holds at its end is unknown and nothing more is appended.

    ``operation`` is ``write``, ``fsync``, ``truncate``, ``create``, ``lock``, ``remove`` or ``interrupt``, ``reason``
    the system's answer.
    """

    def __init__(self, path: Path, operation: str, reason: str) -> None:
        super().__init__(
            path,
            f"journal '{path}' failed at {operation}: {reason}; it takes no more records, "
            f"so close the runtime, see to the disk, and recover from the log",
        )
        self.operation = operation
        self.reason = reason
