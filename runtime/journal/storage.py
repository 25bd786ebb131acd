"""The port between a journal and its disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Storage(Protocol):
    """One open file that only grows at its end. Every verb may raise ``OSError``."""

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data`` with one system call; the number of bytes taken, which may be fewer."""

    def fsync(self) -> None:
        """Return once everything written is on the disk."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; the next write goes there."""

    def sync_directory(self) -> None:
        """Return once the file's name is on the disk."""

    def close(self) -> None:
        """Close the file and give up its lock."""


OpenStorage = Callable[[int, Path], Storage]
"""Makes the storage of an open, locked file descriptor, which it then owns, and its path."""


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

    def close(self) -> None:
        """One ``close``."""
        os.close(self._descriptor)
