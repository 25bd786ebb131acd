"""Rotation: when a segment ends, how the next one begins, and which old ones go."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from txdecode.runtime.journal import (
    Entry,
    FileStorage,
    Journal,
    JournalFailed,
    JournalLocked,
    JournalUnavailable,
    Record,
    SegmentReport,
    iterate,
    list_segments,
    read_header,
    segment_path,
)
from txdecode.runtime.journal.format import Place, decode_header
from txdecode.runtime.journal.rotation import droppable

Create = Callable[..., Journal]
Fill = Callable[..., Path]

SMALL = 400


def one(number: int) -> Entry:
    return (1, 1, 0, b"record %03d" % number)


def payloads(path: Path, kind: int = 1) -> list[bytes]:
    return [record.payload for record in iterate(path, "strict") if record.type == kind]


def numbers(path: Path) -> list[int]:
    return [found.number for found in list_segments(path)]


def _read(path: Path) -> tuple[SegmentReport, ...]:
    reader = iterate(path)
    list(reader)
    return reader.segments


def test_a_full_segment_is_followed_by_the_next(fill: Fill, path: Path) -> None:
    fill(path)
    reader = iterate(path, "strict")
    records = list(reader)
    assert [record.sequence for record in records] == list(range(len(records)))
    assert [record.payload for record in records if record.type == 1] == [one(n)[3] for n in range(30)]
    assert numbers(path) == list(range(len(reader.segments)))
    assert len(reader.segments) > 3
    for report, found in zip(reader.segments, list_segments(path), strict=True):
        assert (report.segment, report.number) == (found.path.name, found.number)
        assert report.size == found.size == found.path.stat().st_size
        assert report.opening == (report.number > 0)
        # It was full when the next one was begun, and not before its last record.
        assert report.number == len(reader.segments) - 1 or SMALL <= report.size < SMALL + 64
    assert reader.position == reader.size == sum(found.size for found in list_segments(path))
    assert [r.payload for r in records if r.type == 10] == [
        b"snapshot %d" % report.first_sequence for report in reader.segments[1:]
    ]


def test_the_header_of_a_segment_continues_the_one_before(fill: Fill, path: Path) -> None:
    fill(path)
    first = read_header(path)
    assert first.place == Place()
    chain = list(iterate(path))
    for found in list_segments(path)[1:]:
        header = decode_header(found.path.read_bytes(), found.path)
        place = header.place
        assert (place.segment, place.base, place.opening) == (found.number, True, 1)
        assert place.chain_before == chain[place.first_sequence - 1].chain
        assert header.required == ("segments",)
        assert (header.fingerprint, header.configuration, header.salt) == (
            first.fingerprint,
            first.configuration,
            first.salt,
        )


def test_append_tells_the_number_of_its_own_record(create: Create, path: Path) -> None:
    with create(path) as journal:
        said = [journal.append([one(number)]) for number in range(30)]
        assert (journal.size, journal.segments) == (iterate(path).size, _read(path))
    assert said == [record.sequence for record in iterate(path) if record.type == 1]
    assert said != list(range(30))


def test_an_empty_batch_begins_no_segment(create: Create, path: Path) -> None:
    with create(path) as journal:
        while journal.size < SMALL:
            journal.append([one(0)])
        journal.append([])
        assert numbers(path) == [0]
        journal.append([one(1)])
        assert numbers(path) == [0, 1]


def test_every_segment_takes_an_append_however_small_it_is_to_be(path: Path) -> None:
    with Journal.create(path, fingerprint={}, configuration={}, segment_bytes=1) as journal:
        journal.snapshot = lambda: [(10, 1, 0, bytes(50))]
        for number in range(4):
            journal.append([one(number)])
    # A large opening does not fill a segment: else every append would begin another one.
    assert [report.records for report in _read(path)] == [1, 3, 2]
    for _ in range(2):
        Journal.resume(path, segment_bytes=1).close()
    assert numbers(path) == [0, 1, 2]


def test_a_resumed_segment_with_nothing_but_its_opening_takes_an_append(fill: Fill, path: Path) -> None:
    fill(path)
    last = list_segments(path)[-1]
    report = _read(path)[-1]
    opened = next(record for record in iterate(path) if record.sequence == report.first_sequence)
    os.truncate(last.path, opened.offset + opened.size)
    with Journal.resume(path, segment_bytes=1) as journal:
        journal.append([one(99)])
    assert numbers(path)[-1] == last.number
    with Journal.resume(path, segment_bytes=1) as journal:
        journal.append([one(100)])
    assert numbers(path)[-1] == last.number + 1


@pytest.mark.parametrize("durability", ["none", "write", "fsync"])
def test_a_journal_is_resumed_over_its_segments(fill: Fill, path: Path, durability: str) -> None:
    fill(path, durability=durability)
    seen: list[Record] = []
    with Journal.resume(path, on_record=seen.append, segment_bytes=SMALL, durability=durability) as journal:  # type: ignore[arg-type]
        assert seen == list(iterate(path, "strict"))
        assert journal.header == read_header(path)
        before = numbers(path)
        for number in range(30, 50):
            journal.append([one(number)])
        journal.flush()
        assert journal.size == iterate(path).size
    assert payloads(path) == [one(number)[3] for number in range(50)]
    assert numbers(path)[: len(before)] == before
    # Without a snapshot a segment needs those before it.
    assert [report.base for report in _read(path)][-1] is False


def test_one_write_and_two_syncs_begin_a_segment(create: Create, path: Path) -> None:
    calls: list[str] = []

    class Noted(FileStorage):
        def __init__(self, descriptor: int, where: Path) -> None:
            super().__init__(descriptor, where)
            self.name = "new" if where != path else "old"

        def write(self, data: bytes | memoryview) -> int:
            calls.append(f"{self.name} write")
            return super().write(data)

        def fsync(self) -> None:
            calls.append(f"{self.name} fsync")

        def sync_directory(self) -> None:
            calls.append(f"{self.name} directory")

        def close(self) -> None:
            calls.append(f"{self.name} close")
            super().close()

    with create(path, durability="none", open_storage=Noted) as journal:
        while journal.size < SMALL:
            journal.append([one(0)])
        assert calls == ["old write"]
        calls.clear()
        journal.append([one(1)])
        began = [
            "old write",
            "old fsync",
            "old directory",
            "new write",
            "new fsync",
            "new directory",
            "old close",
        ]
        assert calls == began
        calls.clear()
        while journal.segments[-1].size < SMALL:
            journal.append([one(2)])
        journal.append([one(3)])
        # The name of a segment after the first is on the disk from its beginning on.
        assert [call for call in calls if call == "new directory"] == ["new directory"]
    assert len(payloads(path)) > 5


def test_what_the_snapshot_raises_ends_the_journal(create: Create, path: Path) -> None:
    def snapshot() -> Sequence[Entry]:
        raise ArithmeticError

    journal = create(path, snapshots=False, snapshot=snapshot)
    while journal.size < SMALL:
        journal.append([one(0)])
    with pytest.raises(ArithmeticError):
        journal.append([one(1)])
    with pytest.raises(JournalFailed, match="ArithmeticError"):
        journal.append([one(99)])
    journal.close()
    assert numbers(path) == [0]
    assert len(payloads(path)) == journal.sequence


def test_a_file_in_the_way_of_a_segment_is_not_touched(create: Create, path: Path) -> None:
    journal = create(path)
    while journal.size < SMALL:
        journal.append([one(0)])
    stranger = segment_path(path, 1)
    stranger.write_text("a file")
    with pytest.raises(JournalFailed, match="failed at create: File exists"):
        journal.append([one(1)])
    journal.close()
    assert stranger.read_text() == "a file"


STEPS = ["write", "fsync", "create", "write", "fsync", "fsync", "remove", "fsync"]


class Failing(FileStorage):
    """Fails at the call of ``left`` more."""

    left = 10**9

    def _count(self) -> None:
        Failing.left -= 1
        if Failing.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def __init__(self, descriptor: int, path: Path) -> None:
        if path.name.endswith(("1", "2", "3")):
            self._count()
        super().__init__(descriptor, path)

    def write(self, data: bytes | memoryview) -> int:
        self._count()
        return super().write(data)

    def fsync(self) -> None:
        self._count()

    def sync_directory(self) -> None:
        self._count()

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)


@pytest.mark.parametrize("at", range(len(STEPS)))
def test_a_fault_at_each_step_of_a_rotation(
    create: Create, path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "left", 10**9)
    before = len(os.listdir("/proc/self/fd"))
    journal = create(path, keep=1, durability="none", open_storage=Failing)
    accepted = 0
    while journal.segments[-1].number == 0 or journal.segments[-1].size < SMALL:
        journal.append([one(accepted)])
        accepted += 1
    end = (journal.sequence, journal.chain)
    monkeypatch.setattr(Failing, "left", at)
    with pytest.raises(JournalFailed, match="No space") as caught:
        journal.append([one(99)])
    assert caught.value.operation == STEPS[at]
    # Past the sync of the folder the new segment is there, and its snapshot with it.
    began = at >= STEPS.index("remove")
    assert ((journal.sequence, journal.chain) == end) != began
    left = Failing.left
    with pytest.raises(JournalFailed):
        journal.append([one(99)])
    with pytest.raises(JournalFailed):
        journal.flush()
    assert Failing.left == left
    # The lock is held until the journal is closed, whatever became of the new segment.
    with pytest.raises(JournalLocked):
        Journal.resume(path)
    journal.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with Journal.resume(path, segment_bytes=SMALL) as again:
        again.append([one(100)])
    *found, after = payloads(path)
    assert after == one(100)[3]
    # Segment 0 was dropped; the appends to segment 1 waited in the process, and the first write was theirs.
    assert bool(found) == (STEPS.index("fsync") <= at < STEPS.index("remove") + 1)
    assert found == [one(number)[3] for number in range(accepted)][accepted - len(found) :]
    assert one(99)[3] not in found


# Dropping.


def test_the_oldest_segments_are_dropped(create: Create, path: Path) -> None:
    with create(path, keep=2) as journal:
        for number in range(40):
            journal.append([one(number)])
            assert len(numbers(path)) <= 2
            assert journal.size == sum(found.size for found in list_segments(path))
    assert numbers(path)[0] > 2
    assert payloads(path)[-1] == one(39)[3]
    assert not path.exists()
    with Journal.resume(path, segment_bytes=SMALL, keep_segments=1) as journal:
        journal.snapshot = lambda: [(10, 1, 0, b"s")]
        for number in range(40, 50):
            journal.append([one(number)])
        assert [report.number for report in journal.segments] == numbers(path)
        assert len(numbers(path)) == 1


def test_nothing_is_dropped_without_a_snapshot(fill: Fill, path: Path) -> None:
    fill(path, keep=1, snapshots=False)
    assert len(payloads(path)) == 30
    assert len(numbers(path)) > 3


def test_nothing_is_dropped_for_a_segment_without_a_snapshot(create: Create, path: Path) -> None:
    with create(path, keep=2) as journal:
        while numbers(path) != [1, 2]:
            journal.append([one(0)])
        journal.snapshot = None
        while journal.segments[-1].number < 5:
            journal.append([one(0)])
        assert numbers(path) == [1, 2, 3, 4, 5]
        journal.snapshot = lambda: [(10, 1, 0, b"snapshot")]
        while journal.segments[-1].number < 7:
            journal.append([one(0)])
    # The journal may begin with 2 or 6: all before 6 went when it was one of the two to stay.
    assert numbers(path) == [6, 7]


def test_what_stays_begins_with_a_base() -> None:
    assert droppable({0: True, 1: True, 2: True}, 1) == [0, 1]
    assert droppable({0: True, 1: True, 2: True}, 2) == [0]
    assert droppable({0: True, 1: True, 2: True}, 3) == []
    assert droppable({0: True, 1: False, 2: True}, 2) == []
    assert droppable({0: True, 1: False, 2: False, 3: True}, 1) == [0, 1, 2]
    assert droppable({5: True, 6: True, 7: False, 8: True}, 2) == [5]


def test_a_reader_survives_a_drop_between_list_and_open(
    fill: Fill, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path)
    stale = list_segments(path)
    path.unlink()
    lists = iter([stale, list_segments(path)])
    monkeypatch.setattr("txdecode.runtime.journal.reader.list_segments", lambda where: next(lists))
    assert iterate(path).header.place.segment == 1
    monkeypatch.setattr("txdecode.runtime.journal.reader.list_segments", lambda where: stale)
    with pytest.raises(JournalUnavailable, match="dropped faster"):
        iterate(path)


def test_a_reader_sees_the_segments_of_its_start(create: Create, path: Path) -> None:
    with create(path) as journal:
        for number in range(10):
            journal.append([one(number)])
        reader = iterate(path)
        count = journal.sequence
        for number in range(10, 30):
            journal.append([one(number)])
        assert len(list(reader)) == count
        assert reader.tail is None
