"""A disk that keeps what was written apart from what was synced, and loses some of the difference in a crash.

The files are real, so that readers and locks need no port; the simulated part is what a crash of the machine
leaves of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import attrs

from txdecode.runtime.journal import FileStorage
from txdecode.runtime.testing.choices import Choices

Call = Literal["open", "write", "fsync", "truncate", "directory", "remove"]
CALLS: tuple[Call, ...] = get_args(Call)

Loss = Literal["tail", "holes"]
"""``tail``: of a file's unsynced writes a first part survives, and of the next one the first bytes. ``holes``: each
survives or not, whole, torn, or in one of its ends; where one is missing before others the file has zeros."""


@attrs.frozen
class CallFault:
    """What goes wrong at a call. A write first takes ``part`` bytes; with ``error`` 0 it says so and that is all."""

    error: int = errno.EIO
    part: int = 0


@attrs.define
class _Contents:
    """A file that the disk knows: what is on it for certain, and what was written since."""

    synced: bytes
    named: bool
    # Writes as (offset, data), cuts as (size, None). A sync that fails leaves what it was for without hope of a later
    # one: the kernel may have dropped the pages and forgotten that they were dirty.
    unsynced: list[tuple[int, bytes | None]] = attrs.Factory(list)
    hopeless: list[tuple[int, bytes | None]] = attrs.Factory(list)
    size: int = 0


class SimulatedDisk:
    """Call ``open`` as the journal's ``open_storage``, for any number of files in one folder.

    Files that are there when they are opened first are on the disk, unless their creation was seen: then both name
    and content wait for a sync. ``faults`` maps a kind of call and its ordinal among those (from 0) to what goes
    wrong there. ``calls`` tells all calls so far; ``before_call`` is called before each. ``kill`` ends the process;
    ``crash`` ends the machine and leaves in the folder what a disk may hold then, as ``choices`` decides (``leaves``
    only tells it). ``promised`` is the part of each file that must be there.
    """

    def __init__(
        self,
        faults: dict[tuple[Call, int], CallFault] | None = None,
        before_call: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_call = before_call
        self.calls: list[tuple[Call, str]] = []
        self.faults = dict(faults or {})
        self._counts = dict.fromkeys(CALLS, 0)
        self._files: dict[Path, _Contents] = {}
        self._removed: dict[Path, _Contents] = {}
        self._open: list[SimulatedFile] = []

    @property
    def promised(self) -> dict[Path, int]:
        """Bytes of each file that survive whatever happens."""
        return {
            path: min([len(file.synced), *(size for size, data in file.unsynced if data is None)])
            for path, file in self._files.items()
            if file.named
        }

    def open(self, descriptor: int, path: Path) -> SimulatedFile:
        """Take over an open file. One without content that is not known yet was just created."""
        self.begin("open", path)
        file = self._files.get(path)
        if file is None:
            content = path.read_bytes()
            file = self._files[path] = _Contents(content, bool(content), size=len(content))
        opened = SimulatedFile(self, file, descriptor, path)
        self._open.append(opened)
        return opened

    def begin(self, call: Call, path: Path) -> CallFault | None:
        """Note a call, and raise its fault or hand it back if it is a write's. Raises ``OSError``."""
        self._before_call()
        ordinal = self._counts[call]
        self._counts[call] += 1
        self.calls.append((call, path.name))
        fault = self.faults.get((call, ordinal))
        if fault is not None and call not in ("write", "fsync"):
            raise OSError(fault.error, os.strerror(fault.error))
        return fault

    def sync_names(self) -> None:
        """What was created is there, what was removed is gone."""
        for file in self._files.values():
            file.named = True
        self._removed.clear()

    def unlink(self, path: Path) -> None:
        """Remove a file: from sight at once, from the disk at the next sync of the folder."""
        file = self._files.pop(path, None)
        if file is None:
            content = path.read_bytes()
            file = _Contents(content, True, size=len(content))
        path.unlink()
        if file.named:
            self._removed[path] = file

    def closed(self, file: SimulatedFile) -> None:
        """It is not open any more."""
        self._open.remove(file)

    @property
    def unsynced(self) -> dict[Path, list[bytes | None]]:
        """What each file was given that a crash may take: data of writes, ``None`` for a cut."""
        return {
            path: [data for _, data in file.hopeless + file.unsynced] for path, file in self._files.items()
        }

    def kill(self) -> None:
        """The process is gone: every file is closed as it is."""
        for file in list(self._open):
            file.close()

    def leaves(self, choices: Choices, loss: Loss = "tail") -> dict[Path, bytes]:
        """What may be in the folder after a crash of the machine at this moment."""
        left = {}
        for path, file in self._files.items():
            if file.named or choices.choose(2):
                left[path] = _survivors(file, choices, loss)
        for path, file in self._removed.items():
            if path not in self._files and choices.choose(2):
                left[path] = _survivors(file, choices, loss)
        return left

    def crash(self, choices: Choices, loss: Loss = "tail") -> None:
        """The machine is gone: leave in the folder what its disk may hold. This object is of no use afterwards."""
        self.kill()
        left = self.leaves(choices, loss)
        for path in self._files:
            path.unlink()
        for path, content in left.items():
            path.write_bytes(content)


class SimulatedFile:
    """The storage port of one file."""

    def __init__(self, disk: SimulatedDisk, file: _Contents, descriptor: int, path: Path) -> None:
        self._disk = disk
        self._contents = file
        self._real = FileStorage(descriptor, path)
        self._path = path

    def write(self, data: bytes | memoryview) -> int:
        """Append, all or in part, or fail."""
        data = bytes(data)
        fault = self._disk.begin("write", self._path)
        if fault is not None:
            data = data[: fault.part]
        if data:
            assert self._real.write(data) == len(data), "the test's own disk is full"
            self._contents.unsynced.append((self._contents.size, data))
            self._contents.size += len(data)
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        return len(data)

    def fsync(self) -> None:
        """What was written since the last sync is on the disk, or in doubt for ever."""
        fault = self._disk.begin("fsync", self._path)
        file = self._contents
        if fault is not None:
            file.hopeless += file.unsynced
            file.unsynced = []
            raise OSError(fault.error, os.strerror(fault.error))
        if not file.hopeless:
            file.synced = _apply(file.synced, file.unsynced)
            file.unsynced = []

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._disk.begin("truncate", self._path)
        self._real.truncate(size)
        self._contents.unsynced.append((size, None))
        self._contents.size = size

    def sync_directory(self) -> None:
        """The names in the folder are on the disk."""
        self._disk.begin("directory", self._path)
        self._disk.sync_names()

    def remove(self, path: Path) -> None:
        """Take another file's name away."""
        self._disk.begin("remove", path)
        self._disk.unlink(path)

    def close(self) -> None:
        """Close the file and give up its lock."""
        self._disk.closed(self)
        self._real.close()


def _apply(content: bytes, changes: list[tuple[int, bytes | None]]) -> bytes:
    for offset, data in changes:
        if data is None:
            content = content[:offset]
        else:
            content = content.ljust(offset, b"\0")[:offset] + data + content[offset + len(data) :]
    return content


def _survivors(file: _Contents, choices: Choices, loss: Loss) -> bytes:
    changes = file.hopeless + file.unsynced
    if not changes:
        return file.synced
    if loss == "tail":
        count = choices.choose(len(changes) + 1)
        kept = changes[:count]
        if count < len(changes):
            offset, data = changes[count]
            if data is not None and (part := choices.choose(len(data))):
                kept = [*kept, (offset, data[:part])]
        return _apply(file.synced, kept)
    kept = []
    for offset, data in changes:
        # Gone, whole, its beginning, its end.
        fate = choices.choose(2 if data is None or len(data) < 2 else 4)
        if fate == 1:
            kept.append((offset, data))
        elif fate > 1:
            assert data is not None
            cut = 1 + choices.choose(len(data) - 1)
            kept.append((offset, data[:cut]) if fate == 2 else (offset + cut, data[cut:]))
    return _apply(file.synced, kept)
