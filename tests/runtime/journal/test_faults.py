"""Disk faults, durability, and two writers."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from txdecode.runtime.journal import (
    Durability,
    Entry,
    FileStorage,
    Journal,
    JournalCorrupt,
    JournalExists,
    JournalFailed,
    JournalLocked,
    JournalUnavailable,
    NotAJournal,
    Record,
    iterate,
    scan,
)
from txdecode.runtime.journal.writer import BUFFER_MAX

NOSPACE = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")
ONE: list[Entry] = [(1, 1, 0, b"first"), (2, 1, 0, b"second")]


class FaultyStorage(FileStorage):
    """A real file whose verbs are recorded, and hurt where ``plan`` says so.

    ``plan`` maps the ordinal of a verb to an exception to raise, or to the number of bytes that a write
    takes; with ``part`` a failing write first takes that many bytes.
    """

    def __init__(
        self, descriptor: int, path: Path, plan: dict[int, BaseException | int], part: int = 0
    ) -> None:
        super().__init__(descriptor, path)
        self.calls: list[str] = []
        self.closed = False
        self.plan = plan
        self.part = part

    def _next(self, verb: str) -> BaseException | int | None:
        self.calls.append(verb)
        return self.plan.get(len(self.calls) - 1)

    def write(self, data: bytes | memoryview) -> int:
        fault = self._next("write")
        if isinstance(fault, BaseException):
            if self.part:
                super().write(bytes(data)[: self.part])
            raise fault
        return super().write(data if fault is None else bytes(data)[:fault])

    def fsync(self) -> None:
        fault = self._next("fsync")
        if isinstance(fault, BaseException):
            raise fault

    def truncate(self, size: int) -> None:
        fault = self._next("truncate")
        if isinstance(fault, BaseException):
            raise fault
        super().truncate(size)

    def sync_directory(self) -> None:
        fault = self._next("directory")
        if isinstance(fault, BaseException):
            raise fault

    def close(self) -> None:
        self.closed = True
        super().close()


class Disk:
    """Opens journals on faulty storages and keeps the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage: FaultyStorage
        self.opened: list[FaultyStorage] = []

    def opener(
        self, plan: dict[int, BaseException | int] | None = None, part: int = 0
    ) -> Callable[[int, Path], FaultyStorage]:
        def make(descriptor: int, path: Path) -> FaultyStorage:
            self.storage = FaultyStorage(descriptor, path, plan or {}, part)
            self.opened.append(self.storage)
            return self.storage

        return make

    def create(
        self,
        plan: dict[int, BaseException | int] | None = None,
        durability: Durability = "write",
        part: int = 0,
        overwrite: bool = False,
    ) -> Journal:
        return Journal.create(
            self.path,
            fingerprint={},
            configuration={},
            durability=durability,
            overwrite=overwrite,
            open_storage=self.opener(plan, part),
        )

    def payloads(self) -> list[bytes]:
        return [one.payload for one in iterate(self.path)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "run.txlog")
    yield made
    for storage in made.opened:
        if not storage.closed:
            storage.close()


@pytest.mark.parametrize(
    ("durability", "created", "batch"),
    [
        ("none", ["write"], []),
        ("write", ["write", "directory"], ["write"]),
        ("fsync", ["write", "fsync", "directory"], ["write", "fsync"]),
    ],
)
def test_a_batch_is_one_write_and_what_the_durability_adds(
    disk: Disk, durability: Durability, created: list[str], batch: list[str]
) -> None:
    journal = disk.create(durability=durability)
    assert disk.storage.calls == created
    journal.append(ONE)
    assert disk.storage.calls == created + batch
    journal.append([])
    journal.close()
    assert disk.payloads() == [b"first", b"second"]


def test_an_unknown_durability_is_a_programming_error(disk: Disk) -> None:
    with pytest.raises(AssertionError):
        disk.create(durability=cast("Durability", "always"))


def test_an_empty_batch_writes_nothing(disk: Disk) -> None:
    journal = disk.create()
    assert journal.append([]) == 0
    assert disk.storage.calls.count("write") == 1
    journal.close()


def test_the_real_directory_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    before = len(os.listdir("/proc/self/fd"))
    Journal.create(tmp_path / "a", fingerprint={}, configuration={}, durability="fsync").close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert synced == [str(tmp_path / "a"), str(tmp_path)]


def test_none_buffers_up_to_its_bound(disk: Disk) -> None:
    journal = disk.create(durability="none")
    size = journal.size
    while journal.size - size < BUFFER_MAX - 200:
        journal.append([(1, 1, 0, bytes(100))])
    assert disk.storage.calls == ["write"]
    assert disk.path.stat().st_size == size
    journal.append([(1, 1, 0, bytes(200))])
    assert disk.storage.calls == ["write", "write"]
    assert disk.path.stat().st_size == journal.size
    journal.append(ONE)
    journal.flush()
    journal.flush()
    assert disk.storage.calls == ["write"] * 3
    assert disk.payloads()[-2:] == [b"first", b"second"]
    journal.close()
    assert disk.storage.calls == ["write"] * 3


@pytest.mark.parametrize("taken", [1, 7, 40])
def test_short_writes_are_continued(disk: Disk, taken: int) -> None:
    journal = disk.create({0: taken, 1: taken, 3: taken, 4: 1, 5: 2})
    journal.append(ONE)
    journal.append(ONE)
    journal.close()
    assert disk.payloads() == [b"first", b"second"] * 2
    assert disk.path.stat().st_size == journal.size


def test_a_write_that_takes_nothing_is_a_failure(disk: Disk) -> None:
    journal = disk.create({3: 0, 2: 5})
    with pytest.raises(JournalFailed, match="took 0"):
        journal.append(ONE)


def poisoned(journal: Journal, storage: FaultyStorage) -> None:
    """Takes nothing more, tries nothing more, says why each time, holds its lock until it is closed."""
    calls = list(storage.calls)
    for _ in range(2):
        with pytest.raises(JournalFailed) as caught:
            journal.append([(3, 1, 0, b"after")])
        with pytest.raises(JournalFailed):
            journal.flush()
    assert str(journal.path) in str(caught.value)
    assert storage.calls == calls
    with pytest.raises(JournalLocked):
        Journal.resume(journal.path)
    journal.close()
    assert storage.calls == calls


@pytest.mark.parametrize("error", [NOSPACE, BROKEN])
@pytest.mark.parametrize("part", [0, 1, 30, 37, 50, 74])
@pytest.mark.parametrize("before", range(3))
def test_a_fault_at_each_write(disk: Disk, error: OSError, part: int, before: int) -> None:
    journal = disk.create({2 + before: error}, part=part)
    for _ in range(before):
        journal.append(ONE)
    end = (journal.sequence, journal.chain, journal.size)
    with pytest.raises(JournalFailed, match="failed at write") as caught:
        journal.append(ONE)
    assert caught.value.__cause__ is error
    assert caught.value.operation == "write"
    assert (journal.sequence, journal.chain, journal.size) == end
    poisoned(journal, disk.storage)
    whole = [b"first", b"second"] * before + [b"first"] * (part >= 37)
    assert disk.payloads() == whole
    # Recovery keeps a whole record that was never published, and goes on after it.
    with Journal.resume(disk.path) as again:
        assert again.append([(4, 1, 0, b"on")]) == len(whole)
    assert disk.payloads() == [*whole, b"on"]


def test_a_fault_at_a_sync(disk: Disk) -> None:
    journal = disk.create({6: BROKEN}, durability="fsync")
    journal.append(ONE)
    end = (journal.sequence, journal.chain, journal.size)
    with pytest.raises(JournalFailed, match="failed at fsync") as caught:
        journal.append(ONE)
    assert caught.value.operation == "fsync"
    assert (journal.sequence, journal.chain, journal.size) == end
    poisoned(journal, disk.storage)
    assert disk.payloads() == [b"first", b"second"] * 2


def test_a_fault_while_a_buffer_is_flushed(disk: Disk) -> None:
    journal = disk.create({1: NOSPACE}, durability="none", part=37)
    journal.append(ONE)
    with pytest.raises(JournalFailed, match="failed at write"):
        journal.flush()
    poisoned(journal, disk.storage)
    assert disk.payloads() == [b"first"]


def test_a_fault_when_the_buffer_is_full(disk: Disk) -> None:
    journal = disk.create({1: NOSPACE}, durability="none")
    with pytest.raises(JournalFailed):
        journal.append([(1, 1, 0, bytes(BUFFER_MAX))])
    assert journal.sequence == 0
    poisoned(journal, disk.storage)


def test_a_fault_at_the_last_flush_is_told_and_the_file_closed(disk: Disk) -> None:
    journal = disk.create({1: NOSPACE}, durability="none")
    journal.append(ONE)
    with pytest.raises(JournalFailed):
        journal.close()
    journal.close()
    Journal.resume(disk.path).close()


def test_a_fault_at_close_itself_is_no_failure(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = disk.create()
    journal.append(ONE)

    def close() -> None:
        disk.storage.closed = True
        FileStorage.close(disk.storage)
        raise BROKEN

    monkeypatch.setattr(disk.storage, "close", close)
    journal.close()
    assert disk.payloads() == [b"first", b"second"]


@pytest.mark.parametrize("durability", ["none", "write"])
def test_an_interrupt_poisons(disk: Disk, durability: Durability) -> None:
    # It struck after the bytes went out: without the poison the next record would repeat a number.
    plan: dict[int, BaseException | int] = {1 if durability == "none" else 2: KeyboardInterrupt()}
    journal = disk.create(plan, durability, part=10_000)
    if durability == "none":
        journal.append(ONE)
    with pytest.raises(KeyboardInterrupt):
        journal.flush() if durability == "none" else journal.append(ONE)
    with pytest.raises(JournalFailed, match="KeyboardInterrupt during write") as caught:
        journal.append(ONE)
    assert caught.value.operation == "interrupt"
    poisoned(journal, disk.storage)
    assert disk.payloads() == [b"first", b"second"]


@pytest.mark.parametrize(("at", "operation"), [(0, "write"), (1, "fsync"), (2, "fsync")])
def test_a_fault_at_creation_leaves_an_empty_file(disk: Disk, at: int, operation: str) -> None:
    with pytest.raises(JournalFailed) as caught:
        disk.create({at: NOSPACE}, "fsync", part=9)
    assert caught.value.operation == operation
    assert disk.path.stat().st_size == 0
    disk.create().close()


def test_a_fault_at_creation_on_a_broken_disk(disk: Disk) -> None:
    with pytest.raises(JournalFailed, match="No space"):
        disk.create({0: NOSPACE, 1: BROKEN}, part=9)
    with pytest.raises(JournalExists):
        disk.create()


@pytest.mark.parametrize(("at", "operation"), [(0, "truncate"), (1, "fsync")])
def test_a_fault_while_a_torn_tail_is_cut(disk: Disk, at: int, operation: str) -> None:
    with disk.create() as journal:
        journal.append(ONE)
    with disk.path.open("ab") as file:
        file.write(b"torn")
    with pytest.raises(JournalFailed) as caught:
        Journal.resume(disk.path, open_storage=disk.opener({at: BROKEN}))
    assert caught.value.operation == operation
    Journal.resume(disk.path, open_storage=disk.opener()).close()
    assert disk.storage.calls == (["truncate", "fsync"] if operation == "truncate" else [])


def test_a_file_with_content_is_not_overwritten_unasked(disk: Disk) -> None:
    disk.path.write_text("precious")
    with pytest.raises(JournalExists, match="8 bytes") as caught:
        disk.create()
    assert caught.value.size == 8
    assert disk.path.read_text() == "precious"
    disk.create(overwrite=True).close()
    assert disk.payloads() == []
    assert iterate(disk.path).header.size == disk.path.stat().st_size


def test_a_failed_overwrite_is_typed(disk: Disk) -> None:
    disk.path.write_text("precious")
    with pytest.raises(JournalFailed) as caught:
        disk.create({0: BROKEN, 1: BROKEN}, overwrite=True)
    assert caught.value.operation == "truncate"
    assert disk.path.read_text() == "precious"


def test_two_writers_are_refused(disk: Disk) -> None:
    journal = disk.create()
    journal.append(ONE)
    with pytest.raises(JournalLocked):
        Journal.resume(disk.path)
    # The lock is asked before the file is touched: an overwrite must not empty a journal in use.
    with pytest.raises(JournalLocked):
        Journal.create(disk.path, fingerprint={}, configuration={}, overwrite=True)
    assert disk.payloads() == [b"first", b"second"]
    journal.close()
    resumed = Journal.resume(disk.path)
    with pytest.raises(JournalLocked):
        Journal.resume(disk.path)
    resumed.close()


def test_a_file_system_without_locks_is_refused(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(JournalUnavailable, match="cannot lock"):
        disk.create()


def test_no_descriptor_is_leaked_by_refusals(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = disk.create()
    journal.append(ONE)
    other = disk.path.parent / "text"
    other.write_text("text that is no journal")

    def raise_it(record: Record) -> None:
        raise ArithmeticError

    def refused(kind: type[Exception], action: Callable[[], object]) -> None:
        before = len(os.listdir("/proc/self/fd"))
        # Errors that are kept keep their frames: the file must not wait for those to go.
        kept = []
        for _ in range(3):
            with pytest.raises(kind) as caught:
                action()
            kept.append(caught)
        assert len(os.listdir("/proc/self/fd")) == before
        kept.clear()

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    refused(JournalLocked, lambda: Journal.resume(disk.path))
    journal.close()
    refused(JournalExists, disk.create)
    refused(NotAJournal, lambda: iterate(other))
    refused(NotAJournal, lambda: iterate(disk.path.parent))
    refused(NotAJournal, lambda: Journal.resume(other))
    refused(ArithmeticError, lambda: Journal.resume(disk.path, on_record=raise_it))
    refused(JournalFailed, lambda: disk.create({0: NOSPACE}, overwrite=True))
    os.mkfifo(disk.path.parent / "pipe")
    refused(NotAJournal, lambda: Journal.resume(disk.path.parent / "pipe"))
    with disk.create(overwrite=True) as journal:
        journal.append(ONE)
    data = disk.path.read_bytes()
    refused(NotAJournal, lambda: list(scan(other)))
    disk.path.write_bytes(data[:-37] + data)
    refused(JournalCorrupt, lambda: list(iterate(disk.path)))
    refused(JournalCorrupt, lambda: Journal.resume(disk.path))
    monkeypatch.setattr(fcntl, "flock", unsupported)
    refused(JournalUnavailable, lambda: Journal.resume(disk.path))


def test_a_reader_left_half_way_closes_its_file(disk: Disk) -> None:
    with disk.create() as journal:
        journal.append(ONE)
    before = len(os.listdir("/proc/self/fd"))
    reader = iterate(disk.path)
    next(reader)
    del reader
    assert len(os.listdir("/proc/self/fd")) == before


def test_append_after_close_is_a_programming_error(disk: Disk) -> None:
    journal = disk.create()
    journal.close()
    journal.close()
    with pytest.raises(AssertionError, match="closed"):
        journal.append(ONE)
    with pytest.raises(AssertionError, match="closed"):
        journal.flush()


def test_a_bad_entry_changes_nothing(disk: Disk) -> None:
    with disk.create() as journal:
        journal.append(ONE)
        with pytest.raises(AssertionError):
            journal.append([(1, 1, 0, b"good"), (1, 1, 4, b"bad flags")])
        assert journal.append([(1, 1, 0, b"next")]) == 2
    assert disk.payloads() == [b"first", b"second", b"next"]
