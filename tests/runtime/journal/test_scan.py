"""The lenient scan reads all that is sound, and names what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txdecode.runtime.journal import (
    Damage,
    Entry,
    Header,
    JournalVersionError,
    NotAJournal,
    Record,
    TornTail,
    iterate,
    scan,
)
from txdecode.runtime.journal.format import encode_header

Make = Callable[..., Path]
Pieces = Callable[[Path], tuple[bytes, list[bytes]]]


def sequences(path: Path) -> list[int]:
    return [one.sequence for one in scan(path) if isinstance(one, Record)]


def damages(path: Path) -> list[Damage]:
    return [one for one in scan(path) if isinstance(one, Damage)]


def test_a_sound_journal_scans_to_what_iteration_gives(make: Make, entries: list[Entry]) -> None:
    path = make(entries)
    reader = iterate(path)
    assert list(scan(path)) == [reader.header, *reader]


def test_a_torn_tail_comes_last(make: Make, entries: list[Entry]) -> None:
    path = make(entries)
    path.write_bytes(path.read_bytes()[:-3])
    *rest, tail = scan(path)
    assert isinstance(tail, TornTail)
    assert tail.offset + tail.size == path.stat().st_size
    assert sum(isinstance(one, Record) for one in rest) == len(entries) - 1


def test_damaged_records_are_passed_over_once(make: Make, pieces: Pieces, entries: list[Entry]) -> None:
    path = make(entries)
    header, records = pieces(path)
    at = len(header) + sum(map(len, records[:4]))
    records[4] = b"?" + records[4][1:]
    records[5] = records[5][:-1] + bytes([records[5][-1] ^ 1])
    path.write_bytes(b"".join((header, *records)))
    assert sequences(path) == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    (damage,) = damages(path)
    assert (damage.offset, damage.size, damage.sequence) == (at, len(records[4]) + len(records[5]), 4)


def test_breaks_between_sound_records(make: Make, pieces: Pieces, entries: list[Entry]) -> None:
    _, foreign = pieces(make(entries, "other", salt=bytes(16)))
    path = make(entries)
    header, records = pieces(path)
    path.write_bytes(b"".join((header, *records[:3], *records[5:9], foreign[9], *records[10:])))
    assert sequences(path) == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]
    found = damages(path)
    assert [(one.size, one.sequence) for one in found] == [(0, 3), (0, 9), (0, 10)]
    assert found[0].reason == "sequence 3 expected, 5 found"


@pytest.mark.parametrize("position", [0, 9, 30])
def test_records_are_read_behind_a_damaged_header(
    make: Make, pieces: Pieces, entries: list[Entry], position: int
) -> None:
    path = make(entries)
    header, records = pieces(path)
    spoiled = header[:position] + bytes([header[position] ^ 4]) + header[position + 1 :]
    path.write_bytes(b"".join((spoiled, *records)))
    first, *rest = scan(path)
    assert isinstance(first, Damage)
    assert (first.offset, first.size, first.sequence) == (0, len(header), None)
    assert [one.sequence for one in rest if isinstance(one, Record)] == list(range(12))
    assert len(rest) == 12


def test_a_journal_with_no_record_left(make: Make, pieces: Pieces, entries: list[Entry]) -> None:
    path = make(entries)
    path.write_bytes(path.read_bytes()[:15])
    (only,) = scan(path)
    assert isinstance(only, Damage)
    assert (only.offset, only.size) == (0, 15)


def test_what_is_no_journal_or_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no journal at all, but a text of some length")
    with pytest.raises(NotAJournal):
        list(scan(tmp_path / "text"))
    (tmp_path / "later").write_bytes(encode_header({}, {}, bytes(16), version=2))
    with pytest.raises(JournalVersionError):
        list(scan(tmp_path / "later"))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 700), st.integers(0, 60), st.binary(max_size=40)), min_size=1, max_size=3
    )
)
def test_scan_never_fails_and_gives_only_sound_records(
    make: Make, entries: list[Entry], cuts: list[tuple[int, int, bytes]]
) -> None:
    path = make(entries)
    sound = {one.sequence: one.payload for one in iterate(path)}
    data = path.read_bytes()
    for position, length, replacement in cuts:
        data = data[:position] + replacement + data[position + length :]
    path.write_bytes(data)
    try:
        found = list(scan(path))
    except NotAJournal:
        return
    assert isinstance(found[0], Header | Damage)
    end = 0
    for one in found:
        if isinstance(one, Record):
            assert sound[one.sequence] == one.payload
        if not isinstance(one, Header):
            assert one.offset >= end
            end = one.offset + one.size
    assert end == len(data) or len(found) == 1
