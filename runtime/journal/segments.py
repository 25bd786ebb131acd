"""The files of a journal: their names, and the lock that keeps other writers off.

Segment 0 is the path that the journal is named by, segment k the path with ``.%05d`` of k after it. Nothing is
ever renamed. A writer holds the lock of the newest segment. One that opens the journal takes the two newest, the
older one first: a rotation holds the older one until the newer one is complete, so nobody comes in between.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import attrs

from txdecode.runtime.journal.errors import JournalExists, JournalLocked, JournalUnavailable, NotAJournal
from txdecode.runtime.journal.format import MAGIC

# A writer that drops or rotates changes the list under a reader's feet; each look finds it some steps further.
ATTEMPTS = 16


@attrs.frozen
class SegmentFile:
    """A file of a journal: its number, path, and size in bytes when it was listed."""

    number: int
    path: Path
    size: int


def place_of(path: str | os.PathLike[str]) -> Path:
    """Where a journal lies, for good: later segments must stand beside the first one, whatever the working folder is
    by then and whichever link named the file. Raises ``JournalUnavailable``."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise JournalUnavailable(Path(path), "find", str(error)) from error


def segment_path(path: Path, number: int) -> Path:
    """The file of segment ``number`` of the journal at ``path``."""
    return path.with_name(f"{path.name}.{number:05d}") if number else path


def list_segments(path: Path) -> list[SegmentFile]:
    """The segments that are there, by number. Raises ``JournalUnavailable``.

    Sizes are taken after the names: where a later segment is listed, an earlier one has its last size.
    """
    for _ in range(ATTEMPTS):
        try:
            return [
                SegmentFile(number, where, _size(where))
                for number, where in ((n, segment_path(path, n)) for n in _numbers(path))
            ]
        except FileNotFoundError:
            # Dropped since it was listed.
            continue
        except OSError as error:
            raise JournalUnavailable(path, "look at the segments of", error.strerror or str(error)) from error
    raise JournalUnavailable(path, "look at the segments of", "they are removed faster than they are listed")


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        # A link to where nothing is yet: a creation makes the file.
        if not os.path.islink(path):
            raise
        return 0


def _numbers(path: Path) -> list[int]:
    try:
        names = os.listdir(path.parent) if path.name else []
    except (FileNotFoundError, NotADirectoryError):
        # Opening the path tells it better.
        return []
    numbers = [0] if path.name in names else []
    prefix = path.name + "."
    for name in names:
        digits = name[len(prefix) :]
        if name.startswith(prefix) and digits.isascii() and digits.isdigit():
            number = int(digits)
            if number and digits == f"{number:05d}":
                numbers.append(number)
    return sorted(numbers)


def open_for_reading(path: Path) -> int:
    """A file descriptor. Raises ``NotAJournal`` unless ``path`` is a regular file."""
    try:
        # Non-blocking, so that a named pipe without a writer is refused instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise JournalUnavailable(path, "open", error.strerror or str(error)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotAJournal(path, "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
    return descriptor


def open_locked(path: Path, flags: int) -> int:
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
        lock(descriptor)
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


def lock(descriptor: int) -> None:
    """Take the writer's lock. Raises ``BlockingIOError`` where another has it, and ``OSError``."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_newest(path: Path) -> tuple[list[SegmentFile], dict[int, int]]:
    """Become the journal's writer: its segments, and the locked descriptors of its two newest by number.

    Raises ``JournalLocked``, ``JournalUnavailable`` and ``NotAJournal``.
    """
    for _ in range(ATTEMPTS):
        wanted = list_segments(path)[-2:] or [SegmentFile(0, path, 0)]
        held: dict[int, int] = {}
        try:
            for one in wanted:
                held[one.number] = open_locked(one.path, 0)
            now = list_segments(path)
            if [one.number for one in now[-2:]] == [*held] and all(
                os.path.samestat(os.stat(one.path), os.fstat(held[one.number])) for one in now[-2:]
            ):
                return now, held
        except JournalUnavailable as error:
            release(held)
            if not isinstance(error.__cause__, FileNotFoundError) or wanted[-1].number == 0:
                raise
        except FileNotFoundError:
            release(held)
        except BaseException:
            release(held)
            raise
        else:
            release(held)
    raise JournalLocked(path)


def take_place(path: Path, overwrite: bool) -> tuple[int, dict[int, int]]:
    """The locked file of a journal's first segment, and those of an older journal's other segments by number.

    Nothing is created or changed where the place is taken. All locks are held: whoever opens the older journal
    while it is deleted would find other segments to be its newest at each moment.
    """
    segments = list_segments(path)
    others = [one for one in segments if one.number]
    if others and not overwrite:
        raise JournalExists(others[0].path if segments[0].number else path, sum(one.size for one in segments))
    held: dict[int, int] = {}
    try:
        for one in others:
            held[one.number] = open_locked(one.path, 0)
            _check_ours(one.path, held[one.number])
        descriptor = open_locked(path, os.O_CREAT)
        size = os.fstat(descriptor).st_size
        if size and not overwrite:
            os.close(descriptor)
            raise JournalExists(path, size)
    except BaseException:
        release(held)
        raise
    return descriptor, held


def _check_ours(path: Path, descriptor: int) -> None:
    """The caller named one file to be overwritten. Others beside it go only where they are a journal's."""
    found = os.pread(descriptor, len(MAGIC), 0)
    if not MAGIC.startswith(found):
        raise NotAJournal(path, f"it begins with {found!r}, so it is not overwritten")


def release(held: dict[int, int]) -> None:
    """Close the descriptors, and with them give up their locks."""
    while held:
        os.close(held.popitem()[1])
