"""What the runtime needs of a log, and a log that keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from txdecode.runtime.journal.format import NO_CHAIN, Entry

Durability = Literal["none", "write", "fsync"]

Snapshot = Callable[[], Sequence[Entry]]
"""Gives the records that rebuild everything that the records appended so far led to."""


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


class NullJournal:
    """Numbers records like a ``Journal`` and keeps nothing; what a runtime without a log appends to."""

    __slots__ = ("_sequence",)

    path: Path | None = None
    chain = NO_CHAIN
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
