"""The check for repair, and the lenient scan, over segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txdecode.runtime.journal import (
    CheckReport,
    Damage,
    Header,
    Journal,
    NotAJournal,
    Record,
    SegmentReport,
    TornTail,
    UnfinishedRotation,
    check,
    iterate,
    list_segments,
    scan,
    segment_path,
)
from txdecode.runtime.journal.format import decode_header

Create = Callable[..., Journal]
Fill = Callable[..., Path]


def payloads(path: Path, kind: int = 1) -> list[bytes]:
    return [record.payload for record in iterate(path, "strict") if record.type == kind]


def numbers(path: Path) -> list[int]:
    return [found.number for found in list_segments(path)]


def _read(path: Path) -> tuple[SegmentReport, ...]:
    reader = iterate(path)
    list(reader)
    return reader.segments


def spoil(path: Path, number: int, change: Callable[[bytes], bytes]) -> Path:
    where = segment_path(path, number)
    where.write_bytes(change(where.read_bytes()))
    return where


# The check.


def test_a_sound_journal_is_reported_segment_by_segment(fill: Fill, path: Path) -> None:
    fill(path)
    report = check(path)
    assert report == CheckReport(
        _read(path),
        len(list(iterate(path))),
        list(iterate(path))[-1].chain,
        None,
        None,
        False,
    )
    assert report.sound
    assert check(path, fix_tail=True) == report


def test_a_torn_tail_is_reported_and_cut_when_asked(fill: Fill, path: Path) -> None:
    fill(path)
    size = spoil(path, numbers(path)[-1], lambda data: data + b"torn").stat().st_size
    name = list_segments(path)[-1].path.name
    report = check(path)
    assert isinstance(report.tail, TornTail)
    assert (report.tail.segment, report.tail.offset, report.tail.size) == (name, size - 4, 4)
    assert (report.sound, report.fixed) == (False, False)
    assert check(path) == report
    fixed = check(path, fix_tail=True)
    assert (fixed.tail, fixed.sound, fixed.fixed, fixed.chain) == (report.tail, True, True, report.chain)
    assert fixed.segments == report.segments
    assert check(path).tail is None
    assert len(payloads(path)) == 30


def test_what_is_no_journal_is_refused_by_the_check(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no journal")
    with pytest.raises(NotAJournal):
        check(tmp_path / "text")


# The scan.


def test_a_sound_journal_scans_to_headers_and_records(fill: Fill, path: Path) -> None:
    fill(path)
    found = list(scan(path))
    assert [item for item in found if isinstance(item, Record)] == list(iterate(path))
    assert [item.place.segment for item in found if isinstance(item, Header)] == numbers(path)
    assert len(found) == len(list(iterate(path))) + len(numbers(path))


def test_the_scan_goes_on_behind_damage_in_each_segment(fill: Fill, path: Path) -> None:
    fill(path)
    whole = [item.sequence for item in scan(path) if isinstance(item, Record)]
    header = decode_header(segment_path(path, 1).read_bytes(), path)
    spoil(path, 1, lambda data: data[:40] + b"?" + data[41:])
    spoil(path, 2, lambda data: data[:-5])
    found = list(scan(path))
    damages = [(item.segment, item.offset) for item in found if isinstance(item, Damage)]
    last = [record for record in scan(path) if isinstance(record, Record)]
    assert damages[0] == ("run.txlog.00001", 0)
    assert damages[1][0] == "run.txlog.00002"
    read = [record.sequence for record in last]
    assert len(read) == len(whole) - 1
    assert set(whole) - set(read) == {
        decode_header(segment_path(path, 3).read_bytes(), path).place.first_sequence - 1
    }
    assert header.place.first_sequence in read
    assert not any(isinstance(item, TornTail | UnfinishedRotation) for item in found)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 500), st.integers(0, 60), st.binary(max_size=40)),
        min_size=1,
        max_size=3,
    ),
    gone=st.sets(st.integers(0, 5), max_size=2),
)
def test_the_scan_never_fails_and_gives_only_sound_records(
    fill: Fill, path: Path, cuts: list[tuple[int, int, int, bytes]], gone: set[int]
) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    fill(path)
    assert len(list_segments(path)) == 6
    sound = {record.sequence: record.payload for record in iterate(path)}
    for number, position, length, replacement in cuts:
        spoil(path, number, lambda data: data[:position] + replacement + data[position + length :])  # noqa: B023
    for number in gone:
        segment_path(path, number).unlink()
    for item in scan(path):
        if isinstance(item, Record):
            assert sound[item.sequence] == item.payload
        elif not isinstance(item, Header):
            assert item.segment.startswith(path.name)
