"""What was appended comes back, in order, whatever the batches, the durability and the chunks read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txdecode.runtime.journal import (
    FRAMING,
    Durability,
    Entry,
    Journal,
    NullJournal,
    Record,
    TornTail,
    iterate,
    source,
)

BYTE = st.integers(0, 255)
ENTRY = st.tuples(BYTE, BYTE, st.integers(0, 1), st.binary(max_size=80) | st.just(b"\xc1" * 40))
BATCHES = st.lists(st.lists(ENTRY, max_size=4), max_size=6)


def read(path: Path) -> list[Entry]:
    records = list(iterate(path, "strict"))
    assert [one.sequence for one in records] == list(range(len(records)))
    return [(one.type, one.version, one.flags, one.payload) for one in records]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    before=BATCHES,
    after=BATCHES,
    durability=st.sampled_from(["none", "write"]),
    chunk=st.sampled_from([1, 21, 64, 1 << 18]),
)
def test_round_trip(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: list[list[Entry]],
    after: list[list[Entry]],
    durability: Durability,
    chunk: int,
) -> None:
    monkeypatch.setattr(source, "CHUNK_SIZE", chunk)
    path = tmp_path / "a"
    expected: list[Entry] = []
    journal = Journal.create(path, fingerprint={}, configuration={}, durability=durability, overwrite=True)
    for batch in before:
        assert journal.append(batch) == len(expected)
        expected += batch
    end = (journal.sequence, journal.chain, journal.size)
    journal.close()
    assert end[2] == path.stat().st_size
    seen: list[Record] = []
    journal = Journal.resume(path, durability=durability, on_record=seen.append)
    assert [one.payload for one in seen] == [one[3] for one in expected]
    assert (journal.sequence, journal.chain, journal.size) == end
    for batch in after:
        assert journal.append(batch) == len(expected)
        expected += batch
    journal.close()
    assert read(path) == expected


def test_framing_is_32_bytes_a_record(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "a", fingerprint={}, configuration={}) as journal:
        start = journal.size
        journal.append([(1, 1, 0, bytes(80))])
        assert journal.size - start == 80 + FRAMING
    assert FRAMING == 32


def test_an_unknown_ignorable_record_comes_through_with_its_flag(
    make: Callable[..., Path], entries: list[Entry], content: Callable[[Sequence[Record]], list[Entry]]
) -> None:
    records = list(iterate(make(entries)))
    assert content(records) == entries
    assert [one.sequence for one in records if one.ignorable] == [3]


def test_reading_is_bounded_and_sees_what_was_there_at_the_start(
    make: Callable[..., Path], entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CHUNK_SIZE", 64)
    path = make(entries)
    run = iterate(path)
    next(run)
    with Journal.resume(path) as journal:
        journal.append([(9, 1, 0, b"later")])
    widest = 0
    for _ in run:
        widest = max(widest, len(run._cursor.source.buffer))
    assert run.sequence == len(entries)
    assert run.tail is None
    assert widest == 64


def test_a_record_larger_than_a_chunk(make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CHUNK_SIZE", 64)
    payload = bytes(range(256)) * 40
    path = make([(1, 1, 0, payload), (2, 1, 0, b"x")])
    assert [one.payload for one in iterate(path)] == [payload, b"x"]


def test_reader_closes_at_the_end_and_stays_at_the_end(
    make: Callable[..., Path], entries: list[Entry]
) -> None:
    run = iterate(make(entries))
    assert len(list(run)) == len(entries)
    assert run._descriptor is None
    assert list(run) == []
    with iterate(make(entries)) as run:
        next(run)
    assert list(run) == []
    run.close()


def test_tail_is_resumed_over(make: Callable[..., Path], entries: list[Entry]) -> None:
    path = make(entries)
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\xc1\x01\x01")
    with Journal.resume(path) as journal:
        assert journal.tail == TornTail(
            whole, 3, "the file ends inside a record header, after 3 bytes", path.name
        )
        assert path.stat().st_size == journal.size == whole
        assert journal.append([(5, 1, 0, b"on")]) == len(entries)
    assert read(path) == [*entries, (5, 1, 0, b"on")]


def test_what_recovery_raises_leaves_the_file_as_it_was(
    make: Callable[..., Path], entries: list[Entry]
) -> None:
    path = make(entries)
    with path.open("ab") as file:
        file.write(b"torn")
    data = path.read_bytes()

    def refuse(record: Record) -> None:
        raise ArithmeticError(record.sequence)

    with pytest.raises(ArithmeticError):
        Journal.resume(path, on_record=refuse)
    assert path.read_bytes() == data
    Journal.resume(path).close()


def test_null_journal_numbers_and_keeps_nothing() -> None:
    journal = NullJournal()
    assert journal.append([(1, 1, 0, b"a"), (1, 1, 0, b"b")]) == 0
    assert journal.append([]) == 2
    assert journal.append([(1, 1, 0, b"c")]) == 2
    assert (journal.path, journal.sequence, journal.size, journal.chain) == (None, 3, 0, bytes(8))
    journal.flush()
    journal.close()


@pytest.mark.parametrize("flags", [2, 128, -1])
def test_unknown_flags_are_a_programming_error(make: Callable[..., Path], flags: int) -> None:
    with pytest.raises(AssertionError):
        make([(1, 1, flags, b"")])


def test_an_oversized_payload_is_a_programming_error(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txdecode.runtime.journal.format.PAYLOAD_MAX", 10)
    make([(1, 1, 0, bytes(10))])
    with pytest.raises(AssertionError):
        make([(1, 1, 0, bytes(11))])
