"""The port between a journal and its disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from txdecode.runtime.journal.errors import JournalUnavailable


class Storage(Protocol):
    """One open file that only grows at its end. Every verb may raise ``OSError``."""

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data`` with one system call; the number of bytes taken, which may be fewer."""

    def fsync(self) -> None:
        """Return once everything written is on the disk."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; the next write goes there."""

    def sync_directory(self) -> None:
        """Return once the names in the file's folder are on the disk: of new files, and without removed ones."""

    def remove(self, path: Path) -> None:
        """Take the name of another file, ``path``, out of the same folder."""

    def close(self) -> None:
        """Close the file and give up its lock."""


OpenStorage = Callable[[int, Path], Storage]
"""Makes the storage of an open, locked file descriptor, which it then owns, and its path; called for every segment.

It may raise ``OSError``, and then does not own the descriptor.
"""


class FileStorage:
    """A file of the operating system, opened for appending."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    def write(self, data: bytes | memoryview) -> int:
        """One ``write``."""
        return os.write(self._descriptor, data)

    def fsync(self) -> None:
        """One ``fsync``."""
        os.fsync(self._descriptor)

    def truncate(self, size: int) -> None:
        """One ``ftruncate``."""
        os.ftruncate(self._descriptor, size)

    def sync_directory(self) -> None:
        """One ``fsync`` of the folder that holds the file."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, path: Path) -> None:
        """One ``unlink``."""
        os.unlink(path)

    def close(self) -> None:
        """One ``close``."""
        os.close(self._descriptor)


def storage_of(open_storage: OpenStorage, descriptor: int, path: Path) -> Storage:
    """The storage of a file that is there. Raises ``JournalUnavailable``, with the descriptor closed."""
    try:
        return open_storage(descriptor, path)
    except OSError as error:
        os.close(descriptor)
        raise JournalUnavailable(path, "open", error.strerror or str(error)) from error
    except BaseException:
        os.close(descriptor)
        raise
