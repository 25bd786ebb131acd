"""What a journal may begin and end with: missing, renamed, exchanged, unfinished and foreign segments."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from txdecode.runtime.journal import (
    Damage,
    Entry,
    Header,
    Journal,
    JournalCorrupt,
    JournalUnavailable,
    JournalVersionError,
    NotAJournal,
    Record,
    check,
    iterate,
    list_segments,
    read_header,
    scan,
    segment_path,
)
from txdecode.runtime.journal.format import NO_CHAIN, Place, decode_header, encode_header
from txdecode.runtime.testing.choices import every_choice
from txdecode.runtime.testing.simulated_disk import SimulatedDisk

Create = Callable[..., Journal]
Fill = Callable[..., Path]

SMALL = 400
SALT = bytes(range(16))


def one(number: int) -> Entry:
    return (1, 1, 0, b"record %03d" % number)


def payloads(path: Path, kind: int = 1) -> list[bytes]:
    return [record.payload for record in iterate(path, "strict") if record.type == kind]


def numbers(path: Path) -> list[int]:
    return [found.number for found in list_segments(path)]


def spoil(path: Path, number: int, change: Callable[[bytes], bytes]) -> Path:
    where = segment_path(path, number)
    where.write_bytes(change(where.read_bytes()))
    return where


def refusal(path: Path) -> JournalCorrupt:
    """Refused by every reader alike, and nothing is changed."""
    before = {found.path: found.path.read_bytes() for found in list_segments(path)}
    with pytest.raises(JournalCorrupt) as caught:
        list(iterate(path))
    for action in (lambda: Journal.resume(path), lambda: check(path), lambda: check(path, fix_tail=True)):
        with pytest.raises(JournalCorrupt) as again:
            action()
        assert str(again.value) == str(caught.value)
    assert before == {found.path: found.path.read_bytes() for found in list_segments(path)}
    assert any(isinstance(item, Damage) for item in scan(path))
    return caught.value


def test_a_missing_segment_is_damage(fill: Fill, path: Path) -> None:
    segment_path(fill(path), 2).unlink()
    error = refusal(path)
    assert (error.segment, error.offset, error.sequence) == ("run.txlog.00003", 0, None)
    assert "segment 2 is missing" in error.reason


def test_a_hole_before_an_unfinished_rotation_is_damage(fill: Fill, path: Path) -> None:
    fill(path)
    segment_path(path, numbers(path)[-1] + 2).touch()
    assert "is missing before it" in refusal(path).reason


def test_a_journal_cannot_begin_with_a_segment_without_a_snapshot(fill: Fill, path: Path) -> None:
    fill(path, snapshots=False).unlink()
    assert "no snapshot to begin with" in refusal(path).reason


def test_a_snapshot_of_no_records_is_none(fill: Fill, path: Path) -> None:
    place = decode_header(segment_path(fill(path, snapshots=False), 1).read_bytes(), path).place
    with_place(path, 1, Place(1, place.first_sequence, place.chain_before, True, 0))
    path.unlink()
    assert "no snapshot to begin with" in refusal(path).reason


def test_a_journal_may_begin_with_a_snapshot(fill: Fill, path: Path) -> None:
    fill(path)
    records = list(iterate(path))
    segment_path(path, 0).unlink()
    reader = iterate(path)
    assert list(reader) == records[reader.header.place.first_sequence :]
    assert reader.sequence == len(records)
    assert check(path).records == len(records) - reader.header.place.first_sequence
    with Journal.resume(path, segment_bytes=SMALL) as journal:
        assert journal.append([one(99)]) == len(records)


def test_a_base_whose_snapshot_was_cut_short_cannot_be_the_first(fill: Fill, path: Path) -> None:
    fill(path, count=8)
    assert numbers(path) == [0, 1]
    path.unlink()
    header = read_header(path).size
    for length in (header, header + 20):
        os.truncate(segment_path(path, 1), header)
        os.truncate(segment_path(path, 1), length)
        assert refusal(path).sequence is not None


def test_a_renamed_segment_is_damage(fill: Fill, path: Path) -> None:
    fill(path)
    os.rename(segment_path(path, 3), segment_path(path, 9))
    os.rename(segment_path(path, 2), segment_path(path, 3))
    os.rename(segment_path(path, 9), segment_path(path, 2))
    assert "its header says segment 3, its name says 2" in refusal(path).reason


def test_a_segment_read_as_a_journal_is_refused(fill: Fill, path: Path) -> None:
    fill(path)
    with pytest.raises(JournalCorrupt, match="segment 1"):
        iterate(segment_path(path, 1))
    shown = list(scan(segment_path(path, 1)))
    assert isinstance(shown[0], Damage)
    assert isinstance(shown[1], Header)
    assert any(isinstance(item, Record) for item in shown)


def test_a_segment_of_another_journal_is_damage(
    create: Create, fill: Fill, tmp_path: Path, path: Path
) -> None:
    fill(path)
    other = tmp_path / "other"
    with create(other) as journal:
        for number in range(30):
            journal.append([one(number + (number == 2))])
    segment_path(path, 1).write_bytes(segment_path(other, 1).read_bytes())
    assert "its chain does not continue" in refusal(path).reason


def with_place(path: Path, number: int, place: Place) -> None:
    def change(data: bytes) -> bytes:
        header = decode_header(data, path)
        fresh = encode_header(header.fingerprint, header.configuration, header.salt, place=place)
        return fresh + data[header.size :]

    spoil(path, number, change)


def test_a_header_with_another_first_sequence_is_damage(fill: Fill, path: Path) -> None:
    fill(path)
    place = decode_header(segment_path(path, 1).read_bytes(), path).place
    with_place(path, 1, Place(1, place.first_sequence + 1, place.chain_before, True, 1))
    assert f"it begins with sequence {place.first_sequence + 1}" in refusal(path).reason


@pytest.mark.parametrize("place", [Place(0, 5), Place(0, 0, NO_CHAIN, True), Place(0, 0, NO_CHAIN, False, 1)])
def test_a_first_segment_that_continues_another_is_damage(fill: Fill, path: Path, place: Place) -> None:
    fill(path, count=2)
    with_place(path, 0, place)
    assert "cannot continue another" in refusal(path).reason


def test_a_torn_tail_before_another_segment_is_damage(fill: Fill, path: Path) -> None:
    fill(path)
    spoil(path, 1, lambda data: data[:-3])
    assert "so it was on the disk" in refusal(path).reason
    segment_path(path, 2).write_bytes(b"")
    for later in list_segments(path)[3:]:
        later.path.unlink()
    assert refusal(path).segment == "run.txlog.00001"


@pytest.mark.parametrize("cut", ["empty", "magic", "header", "opening", "zeros"])
def test_an_unfinished_rotation_is_left_out_and_deleted(fill: Fill, path: Path, cut: str) -> None:
    fill(path)
    last = list_segments(path)[-1]
    header = decode_header(last.path.read_bytes(), path)
    lengths = {"empty": 0, "magic": 5, "header": header.size - 1, "opening": header.size + 7, "zeros": 0}
    os.truncate(last.path, lengths[cut])
    if cut == "zeros":
        os.truncate(last.path, 300)
    kept = [r for r in iterate(path) if r.sequence < header.place.first_sequence]
    reader = iterate(path)
    assert list(reader) == kept
    assert reader.unfinished is not None
    assert (reader.unfinished.segment, reader.unfinished.size) == (last.path.name, last.path.stat().st_size)
    assert reader.tail is None
    with pytest.raises(JournalCorrupt, match="unfinished rotation; refused when strict"):
        list(iterate(path, "strict"))
    *_, item = scan(path)
    assert item == reader.unfinished
    report = check(path)
    assert (report.unfinished, report.sound, report.fixed) == (reader.unfinished, False, False)
    with Journal.resume(path, segment_bytes=SMALL) as journal:
        assert journal.unfinished == reader.unfinished
        assert numbers(path)[-1] == last.number - 1
        assert journal.append([one(99)]) == len(kept)
    # That segment was full: the append began the next one anew.
    assert numbers(path)[-1] == last.number
    assert payloads(path)[-1] == one(99)[3]


def test_a_deleted_rotation_cannot_come_back(fill: Fill, path: Path) -> None:
    fill(path)
    stray = segment_path(path, numbers(path)[-1] + 1)
    stray.touch()
    disk = SimulatedDisk()
    with Journal.resume(path, open_storage=disk.open) as journal:
        assert journal.unfinished is not None
        assert disk.calls[-2:] == [("remove", stray.name), ("directory", journal.segments[-1].segment)]
        assert all(stray not in disk.leaves(choices) for choices in every_choice())


def test_no_record_of_an_unfinished_rotation_reaches_anybody(create: Create, path: Path) -> None:
    journal = create(path, snapshots=False)
    journal.snapshot = lambda: [(10, 1, 0, b"a"), (10, 1, 0, b"b"), (10, 1, 0, b"c")]
    with journal:
        while not journal.segments[-1].number:
            journal.append([one(0)])
    records = list(iterate(path))
    cut = next(record for record in records if record.payload == b"c")
    spoil(path, 1, lambda data: data[: cut.offset + 5])
    seen: list[Record] = []
    Journal.resume(path, on_record=seen.append).close()
    assert [record.type for record in seen] == [1] * journal.segments[0].records


@pytest.mark.parametrize("content", [b"my notes, not a segment", b"\x89PNG\r\n\x1a\n" + bytes(64)])
def test_a_foreign_file_is_never_deleted(fill: Fill, path: Path, content: bytes) -> None:
    fill(path)
    stranger = segment_path(path, numbers(path)[-1] + 1)
    stranger.write_bytes(content)
    assert refusal(path).segment == stranger.name
    assert stranger.read_bytes() == content


def test_a_sound_header_of_a_later_version_is_never_deleted(fill: Fill, path: Path) -> None:
    fill(path)
    stranger = segment_path(path, numbers(path)[-1] + 1)
    for data in (encode_header({}, {}, SALT, version=9), encode_header({}, {}, SALT, required=["other"])):
        stranger.write_bytes(data)
        with pytest.raises(JournalVersionError):
            Journal.resume(path)
        assert stranger.exists()


def test_a_bad_header_before_records_is_damage(fill: Fill, path: Path) -> None:
    fill(path)
    spoil(path, numbers(path)[-1], lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:])
    assert "an intact record follows at byte" in refusal(path).reason


def test_files_with_other_names_are_no_segments(fill: Fill, path: Path) -> None:
    fill(path, count=2)
    for name in (".0001", ".00000", ".1", ".000001", ".00001x", ".bak", ".٠٠٠٠١", ".0000²", ".-0001"):
        path.with_name(path.name + name).write_text("not a segment")
    assert numbers(path) == [0]
    assert segment_path(path, 99_999).name == "run.txlog.99999"
    assert segment_path(path, 100_000).name == "run.txlog.100000"
    check(path)


def test_a_journal_behind_a_link_is_where_the_link_leads(fill: Fill, path: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    path.symlink_to(tmp_path / "far" / "log")
    with pytest.raises(JournalUnavailable, match="cannot open"):
        iterate(path)
    fill(path)
    target = tmp_path / "far" / "log"
    assert len(numbers(target)) > 3
    assert numbers(path) == [0]
    assert check(path).sound
    assert check(path).records == check(target).records


def test_a_working_folder_that_changes_does_not_move_the_log(
    fill: Fill, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    fill(path)
    whole = check(path).records
    (tmp_path / "elsewhere").mkdir()
    reader = iterate(path.name)
    journal = Journal.resume(path.name, segment_bytes=1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    with journal:
        for number in range(3):
            journal.append([(1, 1, 0, bytes([number]))])
    assert not os.listdir(tmp_path / "elsewhere")
    assert check(path).records == whole + 3
    assert len(list(reader)) == whole


def test_files_beside_the_log_that_are_not_its_own_are_not_overwritten(fill: Fill, path: Path) -> None:
    fill(path)
    other = segment_path(path, 99)
    other.write_text("my notes")
    with pytest.raises(NotAJournal, match="not overwritten"):
        fill(path, overwrite=True)
    assert other.read_text() == "my notes"
    other.unlink()
    other.touch()
    fill(path, overwrite=True)
    assert not other.exists()


def test_names_that_vanish_are_listed_again(fill: Fill, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    true = list_segments(path)
    names, calls = os.listdir(path.parent), [1]

    def stale(where: object) -> list[str]:
        return [*names, path.name + ".00099"] if calls and calls.pop() else names

    monkeypatch.setattr(os, "listdir", stale)
    assert list_segments(path) == true
    monkeypatch.setattr(os, "listdir", lambda where: [*names, path.name + ".00099"])
    with pytest.raises(JournalUnavailable, match="removed faster"):
        list_segments(path)


def test_a_folder_that_cannot_be_listed_is_a_typed_error(
    fill: Fill, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, count=2)

    def refuse(where: object) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(JournalUnavailable, match="cannot look at the segments"):
        iterate(path)
