"""Damage is refused, a torn tail is cut, and neither is taken for the other."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast
from zlib import crc32

import pytest

from txdecode.runtime.journal import (
    FRAMING,
    Entry,
    Journal,
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    Mode,
    NotAJournal,
    Record,
    iterate,
    source,
)
from txdecode.runtime.journal.format import chain_digest, frame
from txdecode.runtime.journal.source import Source as _Source

Make = Callable[..., Path]
Pieces = Callable[[Path], tuple[bytes, list[bytes]]]
Content = Callable[[Sequence[Record]], list[Entry]]


def put(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def refusal(path: Path) -> JournalCorrupt:
    """The refusal on iteration; resumption must refuse the same way and change nothing."""
    data = path.read_bytes()
    with pytest.raises(JournalCorrupt) as caught:
        list(iterate(path))
    with pytest.raises(JournalCorrupt) as again:
        Journal.resume(path)
    assert str(again.value) == str(caught.value)
    assert path.read_bytes() == data
    return caught.value


def test_every_truncation_gives_a_prefix_of_whole_records(
    make: Make, entries: list[Entry], content: Content
) -> None:
    path = make(entries)
    data = path.read_bytes()
    records = list(iterate(path))
    header = records[0].offset
    ends = [header] + [one.offset + one.size for one in records]
    for length in range(len(data)):
        put(path, data[:length])
        if length < header:
            with pytest.raises(NotAJournal if length == 0 else JournalCorrupt):
                iterate(path)
            continue
        run = iterate(path)
        whole = sum(end <= length for end in ends) - 1
        assert content(list(run)) == entries[:whole]
        if length in ends:
            assert run.tail is None
        else:
            assert run.tail is not None
            assert (run.tail.offset, run.tail.size) == (ends[whole], length - ends[whole])
            with pytest.raises(JournalCorrupt, match="strict"):
                list(iterate(path, "strict"))


@pytest.mark.parametrize("chunk", [40, 1 << 18])
def test_every_bit_flip_is_refused_or_leaves_a_strict_prefix(
    make: Make, entries: list[Entry], content: Content, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(source, "CHUNK_SIZE", chunk)
    path = make(entries)
    data = path.read_bytes()
    records = list(iterate(path))
    last = records[-1].offset
    flips = range(len(data) * 8) if chunk > 40 else range(3, len(data) * 8, 7)
    descriptor = os.open(path, os.O_RDWR)
    for flip in flips:
        position, bit = divmod(flip, 8)
        os.pwrite(descriptor, bytes([data[position] ^ 1 << bit]), position)
        seen: list[Record] = []
        if position >= last:
            run = iterate(path)
            assert content(list(run)) == entries[:-1], flip
            assert run.tail is not None
            assert (run.tail.offset, run.tail.size) == (last, len(data) - last)
        else:
            with pytest.raises(JournalError) as caught:
                seen.extend(iterate(path))
            assert content(seen) == entries[: len(seen)], flip
            if isinstance(caught.value, JournalCorrupt) and caught.value.sequence is not None:
                broken = records[caught.value.sequence]
                assert broken.offset == caught.value.offset == records[len(seen)].offset
                assert broken.offset <= position < broken.offset + broken.size
        os.pwrite(descriptor, data[position : position + 1], position)
    os.close(descriptor)
    assert content(list(iterate(path))) == entries


@pytest.mark.parametrize("length", [0, 1, 200, 1 << 20, 1 << 31])
def test_a_wrong_length_before_other_records_is_no_torn_tail(
    make: Make, pieces: Pieces, entries: list[Entry], length: int
) -> None:
    path = make(entries)
    header, records = pieces(path)
    records[4] = records[4][:4] + struct.pack("<I", length) + records[4][8:]
    error = refusal(put(path, header, *records))
    assert (error.sequence, error.offset) == (4, len(header) + sum(map(len, records[:4])))
    assert f"intact record follows at byte {error.offset + len(records[4])}" in error.reason


def test_a_wrong_length_with_a_right_checksum_is_no_torn_tail(
    make: Make, pieces: Pieces, entries: list[Entry]
) -> None:
    path = make(entries)
    header, records = pieces(path)
    records[4] = with_head(records[4], 0xC1, 1 << 20)
    assert refusal(put(path, header, *records)).sequence == 4


def with_head(record: bytes, marker: int, length: int) -> bytes:
    """The record with another marker and length under a right header checksum."""
    head = struct.pack("<B3sI8s", marker, record[1:4], length, record[8:16])
    return head + struct.pack("<I", crc32(head)) + record[20:]


@pytest.mark.parametrize(("marker", "length"), [(0xC2, 11), (0xC1, (1 << 28) + 1)])
def test_a_head_that_no_writer_makes_is_no_record(
    make: Make, pieces: Pieces, entries: list[Entry], content: Content, marker: int, length: int
) -> None:
    path = make(entries)
    header, records = pieces(path)
    put(path, header, *records[:-1], with_head(records[-1], 0xC1, 11))
    assert content(list(iterate(path, "strict"))) == entries
    run = iterate(put(path, header, *records[:-1], with_head(records[-1], marker, length)))
    assert content(list(run)) == entries[:-1]
    assert run.tail is not None
    assert "no record header" in run.tail.reason


@pytest.mark.parametrize("gone", [0, 5, 10])
def test_a_missing_record(make: Make, pieces: Pieces, entries: list[Entry], gone: int) -> None:
    path = make(entries)
    header, records = pieces(path)
    del records[gone]
    error = refusal(put(path, header, *records))
    assert error.sequence == gone
    assert error.reason == f"sequence {gone} expected, {gone + 1} found"


@pytest.mark.parametrize("first", [0, 5, 10])
def test_reordered_records(make: Make, pieces: Pieces, entries: list[Entry], first: int) -> None:
    path = make(entries)
    header, records = pieces(path)
    records[first], records[first + 1] = records[first + 1], records[first]
    assert refusal(put(path, header, *records)).sequence == first


@pytest.mark.parametrize("twice", [0, 5, 11])
def test_a_duplicated_record(make: Make, pieces: Pieces, entries: list[Entry], twice: int) -> None:
    path = make(entries)
    header, records = pieces(path)
    records.insert(twice, records[twice])
    assert refusal(put(path, header, *records)).sequence == twice + 1


@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_record_of_another_journal(make: Make, pieces: Pieces, entries: list[Entry], place: int) -> None:
    _, foreign = pieces(make(entries, "other.txlog", salt=bytes(16)))
    path = make(entries)
    header, records = pieces(path)
    assert records[place] != foreign[place]
    records[place] = foreign[place]
    error = refusal(put(path, header, *records))
    assert error.sequence == place
    assert "chain" in error.reason


@pytest.mark.parametrize("place", [5, 11])
def test_a_record_of_a_fork_of_the_same_journal(
    make: Make, pieces: Pieces, entries: list[Entry], place: int
) -> None:
    forked = [*entries[:3], (3, 9, 0, b"other"), *entries[4:]]
    fork_header, fork = pieces(make(forked, "fork.txlog"))
    path = make(entries)
    header, records = pieces(path)
    assert header == fork_header
    records[place] = fork[place]
    assert refusal(put(path, header, *records)).sequence == place


def test_a_header_of_another_journal(make: Make, pieces: Pieces, entries: list[Entry]) -> None:
    foreign, _ = pieces(make(entries, "other.txlog", salt=bytes(16)))
    path = make(entries)
    _, records = pieces(path)
    assert refusal(put(path, foreign, *records)).sequence == 0


def test_a_sound_record_out_of_sequence_is_refused_even_where_the_chain_is_right(
    make: Make, pieces: Pieces, entries: list[Entry]
) -> None:
    path = make(entries)
    header, records = pieces(path)
    more, _ = frame([(1, 1, 0, b"x")], len(records) + 1, list(iterate(path))[-1].chain)
    assert "sequence 12 expected, 13 found" in refusal(put(path, header, *records, more)).reason


def test_two_journals_joined_are_refused(make: Make, entries: list[Entry]) -> None:
    first, second = make(entries, "1").read_bytes(), make(entries, "2").read_bytes()
    path = make(entries)
    assert refusal(put(path, first, second)).offset == len(first)


@pytest.mark.parametrize("tail", [bytes(5), bytes(5000), b"\xff" * 100, b"\xc1" * 3000])
def test_a_tail_without_records_is_torn(
    make: Make, entries: list[Entry], content: Content, tail: bytes
) -> None:
    path = make(entries)
    data = path.read_bytes()
    run = iterate(put(path, data, tail))
    assert content(list(run)) == entries
    assert run.tail is not None
    assert (run.tail.offset, run.tail.size) == (len(data), len(tail))


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_last_record_whose_end_reads_as_zeros_is_torn(
    make: Make, entries: list[Entry], content: Content, cut: int
) -> None:
    # A machine crash can leave the size of the file ahead of its last page.
    path = make(entries)
    data = path.read_bytes()
    run = iterate(put(path, data[:-cut], bytes(cut)))
    assert content(list(run)) == entries[:-1]
    assert run.tail is not None


def test_a_torn_batch_keeps_its_whole_records(make: Make, entries: list[Entry], content: Content) -> None:
    path = make(entries)
    with Journal.resume(path) as journal:
        journal.append([(1, 1, 0, b"a"), (2, 1, 0, b"b"), (3, 1, 0, b"c")])
    data = path.read_bytes()
    run = iterate(put(path, data[: -(FRAMING + 1) - 4]))
    assert content(list(run)) == [*entries, (1, 1, 0, b"a")]
    assert run.tail is not None


def test_the_search_crosses_chunks(
    make: Make, pieces: Pieces, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(entries)
    header, records = pieces(path)
    gap = 500
    put(path, header, *records[:4], bytes(gap), *records[5:])
    start = len(header) + sum(map(len, records[:4]))
    for chunk in (1, 20, 33, 499, 500, 501, 520):
        monkeypatch.setattr(source, "CHUNK_SIZE", chunk)
        error = refusal(path)
        assert error.offset == start
        assert f"byte {start + gap}" in error.reason


def nested_heads(count: int, length: int) -> bytes:
    """``count`` sound record headers, each claiming a payload of ``length`` bytes that is not sound."""
    parts = []
    for number in range(count):
        head = struct.pack("<cBBBIQ", b"\xc1", 1, 1, 0, length, number)
        parts.append(head + struct.pack("<I", crc32(head)))
    return b"".join(parts)


def test_the_search_is_linear_in_hostile_bytes(
    make: Make, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(entries)
    data = path.read_bytes()
    count, filler = 400, 40_000
    put(path, data, b"\xc1", nested_heads(count, filler - 100), bytes(filler))
    read = 0
    original = _Source.read

    def counted(self: _Source, offset: int, size: int) -> bytes:
        nonlocal read
        found = original(self, offset, size)
        read += len(found)
        return found

    monkeypatch.setattr(_Source, "read", counted)
    with pytest.raises(JournalCorrupt):
        list(iterate(path))
    assert read < 8 * path.stat().st_size < count * filler / 8


def test_an_unknown_mode_is_a_programming_error(make: Make, entries: list[Entry]) -> None:
    with pytest.raises(AssertionError):
        iterate(make(entries), cast("Mode", "lenient"))


def test_a_file_cut_while_it_is_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CHUNK_SIZE", 40)
    path = make([(1, 1, 0, bytes(100)) for _ in range(3)])
    records = list(iterate(path))
    for inside in (5, 50, 0):
        path = make([(1, 1, 0, bytes(100)) for _ in range(3)])
        run = iterate(path)
        next(run)
        os.truncate(path, records[1].offset + inside)
        assert list(run) == []
        assert (run.tail is None) == (inside == 0)


def test_a_search_ends_where_the_file_was_cut(make: Make, entries: list[Entry]) -> None:
    path = make(entries)
    descriptor = os.open(path, os.O_RDONLY)
    source = _Source(descriptor, path)
    record = next(iterate(path))
    assert source.body_is_sound(record.offset, len(record.payload))
    os.truncate(path, record.offset + 22)
    assert not source.body_is_sound(record.offset, len(record.payload))
    source = _Source(descriptor, path)
    source.size += 1000
    assert source.find_intact(record.offset + 1) is None
    source = _Source(descriptor, path)
    source.size += 1000
    os.truncate(path, record.offset + 5)
    assert source.find_intact(record.offset) is None
    os.close(descriptor)


def test_a_read_error_is_typed(make: Make, entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(entries)

    def broken(descriptor: int, count: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(JournalUnavailable, match="cannot read"):
        iterate(path)


def test_the_chain_covers_header_payload_and_what_came_before(
    make: Make, pieces: Pieces, entries: list[Entry]
) -> None:
    path = make(entries)
    header, raw = pieces(path)
    chains = [chain_digest(header)] + [one.chain for one in iterate(path)]
    for (before, after), record in zip(pairwise(chains), raw, strict=True):
        assert after == chain_digest(before, record[:-12])
