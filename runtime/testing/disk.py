"""A disk that fails, forgets, and shows every byte that it was given."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from txdecode.runtime.journal import FileStorage
from txdecode.runtime.testing.faults import Tell

DiskFault = Literal["refused", "torn", "whole", "short", "fsync"]
DISK_FAULTS: tuple[DiskFault, ...] = get_args(DiskFault)


class Disk:
    """The port between a journal and its file: call ``open`` as the journal's ``open_storage``.

    ``before_write`` is called before an append reaches the file, ``after_write`` with every part that did.
    ``synced`` is the length of the file that a crash of the machine leaves untouched; syncs are noted and not
    performed. ``path`` is the file that takes appends, the newest segment; a rotation opens the next one while the
    one before is still open.

    Faults of a write: ``refused`` (nothing is written), ``torn`` (half of it), ``whole`` (all of it, and the
    call fails all the same), ``short`` (half of it, and the call says so: no failure). ``fsync`` fails a sync.
    """

    def __init__(
        self, before_write: Callable[[], None], after_write: Callable[[bytes], None], tell: Tell
    ) -> None:
        self._before_write = before_write
        self._after_write = after_write
        self._tell = tell
        self._files: deque[FileStorage] = deque()
        self._faults: deque[tuple[DiskFault, int]] = deque()
        self._continued = False
        self.path: Path | None = None
        self.size = 0
        self.synced = 0

    def open(self, descriptor: int, path: Path) -> Disk:
        """Take over an open file, which takes the writes from now on."""
        assert len(self._files) < 2, "a rotation has two files open, nothing has more"
        self._files.append(FileStorage(descriptor, path))
        self.path = path
        self.size = self.synced = os.fstat(descriptor).st_size
        self._continued = False
        return self

    def arm(self, fault: DiskFault, after: int) -> None:
        """Let a call fail, ``after`` good ones of its kind after the fault that was asked for before."""
        self._faults.append((fault, after))

    def disarm(self) -> None:
        """No faults any more."""
        self._faults.clear()

    def crash(self) -> None:
        """The process is gone: its files are closed as they are."""
        while self._files:
            self.close()

    def _due(self, kinds: tuple[DiskFault, ...]) -> DiskFault | None:
        if not self._faults or self._faults[0][0] not in kinds:
            return None
        fault, left = self._faults.popleft()
        if left:
            self._faults.appendleft((fault, left - 1))
            return None
        self._tell(f"disk {fault}")
        return fault

    def _put(self, data: bytes) -> None:
        written = self._files[-1].write(data)
        assert written == len(data), "the test's own disk is full"
        self.size += written
        self._after_write(data)

    # The port.

    def write(self, data: bytes | memoryview) -> int:
        """Append, or fail."""
        data = bytes(data)
        if not self._continued:
            self._before_write()
        fault = self._due(("refused", "torn", "whole", "short"))
        kept = {"refused": 0, "torn": len(data) // 2, "short": max(len(data) // 2, 1)}
        part = data[: kept.get(fault or "", len(data))]
        if part:
            self._put(part)
        # The rest of a short write comes in a call of its own, in the midst of an append.
        self._continued = len(part) < len(data)
        if fault in ("refused", "torn", "whole"):
            raise OSError(errno.ENOSPC, "no space left on device")
        return len(part)

    def fsync(self) -> None:
        """Count, or fail."""
        if self._due(("fsync",)) is not None:
            raise OSError(errno.EIO, "input/output error")
        self.synced = self.size

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._files[-1].truncate(size)
        self.size = size
        self.synced = min(self.synced, size)

    def sync_directory(self) -> None:
        """Nothing to do for a file that no machine crash will take."""

    def remove(self, path: Path) -> None:
        """Take away another file."""
        path.unlink()

    def close(self) -> None:
        """Close the file that was opened first and give up its lock: in a rotation, the segment before."""
        if self._files:
            self._files.popleft().close()
