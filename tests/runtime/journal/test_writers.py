"""Two writers, and creation over an older journal."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from txdecode.runtime.journal import (
    Entry,
    FileStorage,
    Journal,
    JournalExists,
    JournalLocked,
    JournalUnavailable,
    check,
    iterate,
    list_segments,
    segment_path,
    segments,
)

Create = Callable[..., Journal]
Fill = Callable[..., Path]


def one(number: int) -> Entry:
    return (1, 1, 0, b"record %03d" % number)


def payloads(path: Path, kind: int = 1) -> list[bytes]:
    return [record.payload for record in iterate(path, "strict") if record.type == kind]


def numbers(path: Path) -> list[int]:
    return [found.number for found in list_segments(path)]


# Two writers.


def test_the_newest_segment_is_locked(create: Create, path: Path) -> None:
    with create(path) as journal:
        for number in range(30):
            journal.append([one(number)])
            if number % 3 == 0:
                with pytest.raises(JournalLocked):
                    Journal.resume(path)
        with pytest.raises(JournalLocked):
            create(path, overwrite=True)
        with pytest.raises(JournalLocked):
            check(path, fix_tail=True)
        assert len(payloads(path)) == 30
        check(path)
    Journal.resume(path).close()


def test_nobody_comes_in_during_a_rotation(create: Create, path: Path) -> None:
    tries: list[str] = []

    class Watched(FileStorage):
        def _try(self) -> None:
            if len(numbers(path)) > 1:
                with pytest.raises(JournalLocked):
                    Journal.resume(path)
                tries.append("locked")

        def write(self, data: bytes | memoryview) -> int:
            self._try()
            return super().write(data)

        def fsync(self) -> None:
            self._try()

        def close(self) -> None:
            self._try() if not tries or tries[-1] != "over" else None
            super().close()

    journal = create(path, open_storage=Watched)
    for number in range(15):
        journal.append([one(number)])
    assert len(numbers(path)) > 1
    assert len(tries) > 3
    tries.append("over")
    journal.close()


def test_a_writer_looks_again_after_locking(fill: Fill, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    true = list_segments(path)
    lists = iter([true[:-1], true, true, true])
    monkeypatch.setattr(segments, "list_segments", lambda where: next(lists))
    before = len(os.listdir("/proc/self/fd"))
    listed, held = segments.lock_newest(path)
    assert listed == true
    assert [*held] == [true[-2].number, true[-1].number]
    segments.release(held)
    # A file of the same name that is not the one that was locked.
    opened = segments.open_locked
    swaps = [1]

    def swap(where: Path, flags: int) -> int:
        descriptor = opened(where, flags)
        if where == true[-1].path and swaps.pop():
            content = where.read_bytes()
            where.unlink()
            where.write_bytes(content)
            swaps.append(0)
        return descriptor

    monkeypatch.setattr(segments, "list_segments", list_segments)
    monkeypatch.setattr(segments, "open_locked", swap)
    listed, held = segments.lock_newest(path)
    assert os.path.samestat(os.fstat(held[true[-1].number]), os.stat(true[-1].path))
    segments.release(held)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_list_that_never_settles_is_refused(
    fill: Fill, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path)
    true = list_segments(path)
    flips = [0]

    def restless(where: Path) -> list[segments.SegmentFile]:
        flips[0] += 1
        return true if flips[0] % 2 else true[:-1]

    monkeypatch.setattr(segments, "list_segments", restless)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JournalLocked):
        segments.lock_newest(path)
    assert len(os.listdir("/proc/self/fd")) == before


# Creation over an older journal.


def test_segments_alone_are_not_overwritten_unasked(create: Create, fill: Fill, path: Path) -> None:
    fill(path)
    path.unlink()
    with pytest.raises(JournalExists):
        create(path)
    assert not path.exists()
    assert iterate(path).header.place.segment == 1
    before = len(os.listdir("/proc/self/fd"))
    create(path, overwrite=True).close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert numbers(path) == [0]
    assert list(iterate(path)) == []


def test_overwriting_takes_all_segments_away_newest_first(fill: Fill, path: Path) -> None:
    fill(path)
    count = len(numbers(path))
    removed: list[Path | str] = []

    class Noted(FileStorage):
        def remove(self, where: Path) -> None:
            with pytest.raises(JournalLocked):
                Journal.resume(path)
            removed.append(where)
            super().remove(where)

        def sync_directory(self) -> None:
            removed.append("directory")

        def write(self, data: bytes | memoryview) -> int:
            removed.append("write")
            return super().write(data)

    fill(path, count=2, overwrite=True, open_storage=Noted)
    # None of the older ones may come back next to the new first one.
    older = [segment_path(path, number) for number in reversed(range(1, count))]
    assert removed[: count + 2] == [*older, "directory", "write", "directory"]
    assert len(payloads(path)) == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [(OSError(errno.EIO, "broken"), JournalUnavailable), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_storage_that_cannot_be_made_leaves_nothing_open(
    create: Create, fill: Fill, path: Path, error: BaseException, told: type[BaseException]
) -> None:
    def refuse(descriptor: int, where: Path) -> FileStorage:
        raise error

    fill(path)
    before = len(os.listdir("/proc/self/fd"))
    for action in (
        lambda: Journal.resume(path, open_storage=refuse),
        lambda: create(path, overwrite=True, open_storage=refuse),
    ):
        with pytest.raises(told):
            action()
        assert len(os.listdir("/proc/self/fd")) == before
    assert len(payloads(path)) == 30
