"""Moving through a log: at every record the ledgers are those of a fold up to it, whatever way led there."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.runtime import Divergence, Runtime, replay
from txdecode.runtime import history as history_module
from txdecode.runtime.history import GRID_MAX, PATH_MAX, Replay
from txdecode.runtime.journal import (
    Journal,
    JournalCorrupt,
    JournalUnavailable,
    NotAJournal,
    iterate,
    read_header,
)
from txdecode.runtime.replay import Folder, InvalidArgument, NotInLog
from txdecode.runtime.watch import CellChange, Watch
from txdecode.state.digest import LEDGERS
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.codec import IGNORABLE, decode, encode
from txdecode.transactions.events import Event, RoundCommitted
from txdecode.transactions.toy import ToyExecutor, plain


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with preemption, cancellation and interleaved requests."""
    log = tmp_path_factory.mktemp("written") / "run.txlog"
    with Runtime.open(ToyExecutor(accuracy=6), log=log, draft="executor", draft_len=3) as runtime:
        first = runtime.submit([3, 1, 4, 1, 5], max_tokens=40)
        second = runtime.submit([9, 2, 6], max_tokens=12)
        for _ in range(3):
            runtime.step()
        runtime.preempt(first)
        runtime.step()
        second.cancel()
        runtime.run()
        for number in range(6):
            runtime.submit([number + 1, 7, 7, 2], max_tokens=25)
        runtime.run()
    return log


@pytest.fixture(scope="module")
def states(written: Path) -> list[dict[str, Any]]:
    """The ledgers after each record, by one fold."""
    reader = iterate(written)
    folder = Folder(reader.header, written)
    found = []
    for record in reader:
        folder.take(record)
        found.append(folder.ledgers.snapshot())
    return found


def test_forward_gives_every_event(written: Path, states: list[dict[str, Any]]) -> None:
    with Replay.open(written) as there:
        assert (there.sequence, there.event, there.first) == (-1, None, 0)
        seen = []
        for sequence, event in enumerate(there):
            assert there.sequence == sequence
            assert there.event is event
            assert there.ledgers.snapshot() == states[sequence]
            seen.append(type(event).__name__)
        assert there.forward() == 0
    kinds = replay(written).events
    assert {name: seen.count(name) for name in seen} == kinds


@settings(max_examples=40, deadline=None)
@given(data=st.data(), step=st.integers(1, 40))
def test_any_way_leads_to_the_same_ledgers(
    data: st.DataObject, step: int, written: Path, states: list[dict[str, Any]]
) -> None:
    last = len(states) - 1
    there = Replay(written, grid_step=step)
    for _ in range(data.draw(st.integers(1, 8))):
        move = data.draw(st.sampled_from(["forward", "back", "to"]))
        before = there.sequence
        if move == "to":
            target = data.draw(st.integers(-1, last))
            assert there.to(target) is there.event
        else:
            n = data.draw(st.integers(0, last + 5))
            target = min(before + n, last) if move == "forward" else max(before - n, -1)
            assert getattr(there, move)(n) == abs(target - before)
        assert there.sequence == target
        if target < 0:
            assert there.event is None
            assert not there.ledgers.tokens.sequences
        else:
            assert there.ledgers.snapshot() == states[target]
            assert there.record is not None
            assert there.record.sequence == target
        there.ledgers.check()
    there.close()


def test_stepping_back_folds_little_and_keeps_little(
    written: Path, states: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = 0
    take = Folder.take

    def counted(self: Folder, record: Any) -> Event | None:
        nonlocal folded
        folded += 1
        return take(self, record)

    monkeypatch.setattr(Folder, "take", counted)
    last = len(states) - 1
    there = Replay(written, grid_step=1)
    there.to(last)
    assert len(there._grid) <= GRID_MAX
    assert there._step > 1, "the log is too short to make the grid coarser"
    folded = 0
    while there.back():
        assert there.ledgers.digests == _digests(there, states)
    assert folded < 8 * last, "back folds from the beginning"
    folded = 0
    there.to(last)
    assert folded <= there._step, "a jump passes over what checkpoints cover"
    # From the beginning each time it would be last * last / 2.
    assert last > 100


def _digests(there: Replay, states: list[dict[str, Any]]) -> Any:
    ledgers = Ledgers(there.ledgers.groups)
    if there.sequence >= 0:
        ledgers.restore(states[there.sequence])
    return ledgers.digests


def test_the_path_is_bounded_and_halves(
    written: Path, states: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = len(states) - 1
    there = Replay(written)
    draw = random.Random(last)
    for _ in range(40):
        there.to(draw.randrange(last))
        there.to(last)
        there.back()
    assert len(there._path) <= PATH_MAX
    there.to(5)
    assert all(mark.place.sequence <= 5 for mark in there._path)
    monkeypatch.setattr(history_module, "PATH_MAX", 2)
    there = Replay(written, grid_step=10**6)
    there.to(last)
    there.back()
    assert len(there._path) == 2
    monkeypatch.undo()
    there = Replay(written, grid_step=10**6)
    there.to(last)
    there.back()
    marks = [mark.place.sequence for mark in there._path]
    assert marks
    assert marks[0] == pytest.approx(last / 2, abs=2)
    gaps = [last - mark for mark in marks]
    assert all(after <= before / 2 + 2 for before, after in itertools.pairwise(gaps))


def test_request_says_what_was_so_far(written: Path, states: list[dict[str, Any]]) -> None:
    with Replay(written, grid_step=4) as there:
        for sequence in range(0, len(states), 7):
            there.to(sequence)
            whole = replay(written, until=sequence).requests
            for number, expected in whole.items():
                assert there.request(number) == expected
            with pytest.raises(NotInLog, match=f"no request 99 up to record {sequence}"):
                there.request(99)
        assert there.to(len(states) - 1) is there.event
        assert there.request(0).ids == plain([3, 1, 4, 1, 5], 40, 48)


def test_cells_are_named_and_filtered(written: Path) -> None:
    with Replay(written) as there:
        while not isinstance(there.event, RoundCommitted):
            there.forward()
        everything = list(there.cells())
        assert {cell.ledger for cell in everything} == {*LEDGERS}
        for name in LEDGERS:
            assert list(there.cells(name)) == [cell for cell in everything if cell.ledger == name]
        mine = list(there.cells(request=1))
        assert mine
        assert all(cell.key[0] == 1 and cell.field != "references" for cell in mine)
        assert list(there.cells(request=99)) == []
        with pytest.raises(InvalidArgument, match="no ledger 'page'; ask for one of tokens, pages"):
            there.cells("page")
        with pytest.raises(InvalidArgument, match="request must be at least 0, found -1"):
            there.cells(request=-1)


def test_moves_that_the_log_does_not_have(written: Path, states: list[dict[str, Any]]) -> None:
    last = len(states) - 1
    there = Replay(written)
    for move in (there.forward, there.back, there.request):
        with pytest.raises(InvalidArgument, match="at least 0, found -2"):
            move(-2)
    with pytest.raises(NotInLog, match=f"ends with record {last}, found {last + 1}"):
        there.to(last + 1)
    assert there.sequence == last
    with pytest.raises(NotInLog, match="begins with record 0, found -2"):
        there.to(-2)
    assert there.to(-1) is None


def test_damage_stops_every_attempt_and_going_back_still_works(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "hurt.txlog"
    data = bytearray(written.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    there = Replay(log)
    with pytest.raises(JournalCorrupt):
        there.forward(10**6)
    at = there.sequence
    assert at > 5
    for _ in range(2):
        with pytest.raises(JournalCorrupt):
            there.forward()
        assert there.sequence == at
    assert there.back(3) == 3
    assert there.forward(3) == 3
    with pytest.raises(JournalCorrupt):
        there.forward()


def test_divergence_leaves_the_replay_before_the_record(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "tampered.txlog"
    header = read_header(written)
    wrong = None
    with Journal.create(log, fingerprint=header.fingerprint, configuration=header.configuration) as journal:
        for record in iterate(written):
            event: Any = decode(record.type, record.version, record.flags, record.payload)
            if wrong is None and isinstance(event, RoundCommitted) and event.ordinal == 2:
                wrong = record.sequence
                event = msgspec.structs.replace(event, emitted=(*event.emitted[:-1], 47 - event.emitted[-1]))
            journal.append([encode(event)])
    assert wrong is not None
    there = Replay(log)
    for _ in range(2):
        with pytest.raises(Divergence) as found:
            there.to(wrong)
        assert (found.value.sequence, there.sequence) == (wrong, wrong - 1)
    assert there.ledgers.digests == replay_digests(log, wrong - 1)


def replay_digests(log: Path, until: int) -> tuple[int, ...]:
    return tuple(int(text, 16) for text in replay(log, until=until).digests.values())


def test_unknown_records_have_a_number_and_no_event(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "later.txlog"
    header = read_header(written)
    with Journal.create(log, fingerprint=header.fingerprint, configuration=header.configuration) as journal:
        for record in iterate(written):
            journal.append([(record.type, record.version, record.flags, record.payload)])
            if record.sequence == 2:
                journal.append([(200, 1, IGNORABLE, b"\xc0")])
    there = Replay(log)
    assert there.to(3) is None
    assert there.sequence == 3
    there.to(8)
    there.back(5)
    assert (there.sequence, there.event) == (3, None)
    there.to(-1)
    assert len(list(there)) == len(list(iterate(written)))


def test_a_log_that_is_cut_while_it_is_read(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "cut.txlog"
    log.write_bytes(written.read_bytes())
    there = Replay(log)
    there.to(20)
    assert there.record is not None
    log.write_bytes(written.read_bytes()[: there.record.offset - 40])
    there.to(0)
    with pytest.raises(JournalCorrupt, match="changed while it was read"):
        there.to(20)


def test_what_is_no_log(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are notes")
    with pytest.raises(NotAJournal):
        Replay.open(text)
    bare = tmp_path / "bare.txlog"
    Journal.create(bare, fingerprint={}, configuration={}).close()
    with pytest.raises(JournalCorrupt, match="no usable 'groups'"):
        Replay.open(bare)


@pytest.mark.parametrize("ledger", LEDGERS)
def test_watch_sees_exactly_the_cells_that_an_event_changed(ledger: str, written: Path) -> None:
    reader = iterate(written)
    folder = Folder(reader.header, written)
    watch = Watch(ledger)
    changes = 0

    def cells() -> dict[tuple[str, tuple[int, int]], int]:
        return {(c.field, c.key): c.value for c in folder.ledgers.cells() if c.ledger == ledger}

    for record in reader:
        event = decode(record.type, record.version, record.flags, record.payload)
        assert event is not None
        old = cells()
        watch.before(folder.ledgers, event)
        folder.take(record)
        new = cells()
        expected = {
            CellChange(field, key, old.get((field, key)), new.get((field, key)))
            for field, key in {*old, *new}
            if old.get((field, key)) != new.get((field, key))
        }
        found = watch.changed(folder.ledgers, event)
        assert {*found} == expected, record.sequence
        assert len(found) == len(expected)
        changes += len(found)
    assert changes


def test_watch_takes_what_the_fold_will_refuse(written: Path) -> None:
    there = Replay(written)
    while not isinstance(there.event, RoundCommitted):
        there.forward()
    for pages in ((10**6,), (-1,)):
        event = msgspec.structs.replace(there.event, adopted=(pages, pages, pages), request=77)
        for name in LEDGERS:
            watch = Watch(name)
            watch.before(there.ledgers, event)
            assert watch.changed(there.ledgers, event) == []


def test_watch_knows_its_ledgers() -> None:
    with pytest.raises(InvalidArgument, match="no ledger 'kv'"):
        Watch("kv")


@pytest.mark.parametrize("keep", [None, 2])
def test_stepping_through_segments(keep: int | None, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    options: dict[str, Any] = {"segment_bytes": 4096, "keep_segments": keep}
    with Runtime.open(ToyExecutor(accuracy=6), log=log, draft="executor", draft_len=3, **options) as runtime:
        for number in range(12):
            runtime.submit([number, 2, 6], max_tokens=60)
        runtime.run()
    reader = iterate(log)
    folder = Folder(reader.header, log)
    states = {}
    for record in reader:
        folder.take(record)
        states[record.sequence] = folder.ledgers.snapshot()
    first, last = min(states), max(states)
    assert (first > 0) == (keep is not None)
    assert len(reader.segments) == keep or (keep is None and len(reader.segments) > 3)
    there = Replay(log, grid_step=7)
    assert (there.first, there.sequence) == (first, first - 1)
    draw = random.Random(7)
    for target in [last, first - 1, *(draw.randrange(first - 1, last + 1) for _ in range(40))]:
        there.to(target)
        assert there.ledgers.snapshot() == states.get(target, Ledgers(folder.ledgers.groups).snapshot())
        assert there.back(2) == min(2, target - first + 1)
        rest = last - there.sequence
        assert there.forward(3) == min(3, rest)
    there.to(last)
    whole = replay(log).requests
    for number, expected in whole.items():
        assert there.request(number) == expected
    if keep is not None:
        assert any(history.first_round for history in whole.values())
        with pytest.raises(NotInLog, match=f"begins with record {first}, found {first - 2}"):
            there.to(first - 2)
        with pytest.raises(NotInLog, match="no request 0"):
            there.request(0)


def test_segments_that_are_dropped_under_a_replay(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(), log=log, segment_bytes=4096, draft="none") as runtime:
        runtime.submit([1, 2, 6], max_tokens=120)
        runtime.run()
    there = Replay(log)
    assert there.forward(10**6) > 100
    log.unlink()
    with pytest.raises(JournalUnavailable, match="cannot open"):
        there.to(5)
