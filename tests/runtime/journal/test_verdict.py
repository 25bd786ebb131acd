"""The recovery table: one row for every situation, and no decision beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import get_args

import attrs
import pytest

from txdecode.runtime.journal import Entry, Journal, JournalCorrupt, check, iterate, scan, verdict
from txdecode.runtime.journal.format import HeaderState
from txdecode.runtime.journal.verdict import FACTS, TABLE, RecordState, Row, Situation, Verdict, judge

VALUES = {
    "header": get_args(HeaderState),
    "record": get_args(RecordState),
}


def situations() -> list[Situation]:
    return [Situation(*values) for values in product(*(VALUES.get(fact, (True, False)) for fact in FACTS))]


def test_every_situation_fits_exactly_one_row() -> None:
    used: Counter[Row] = Counter()
    every = situations()
    assert len(every) == 2**6 * 4 * 4
    for situation in every:
        fitting = [row for row in TABLE if row.fits(situation)]
        assert len(fitting) == 1, (situation, fitting)
        assert judge(situation) is fitting[0]
        used[fitting[0]] += 1
    assert set(used) == set(TABLE)
    assert {row.verdict for row in TABLE} == set(get_args(Verdict))


def test_what_the_table_promises() -> None:
    for situation in situations():
        found = judge(situation).verdict
        if found in ("torn tail", "unfinished rotation"):
            # Nothing is cut or deleted before the end, in front of a sound record, or for want of a segment.
            assert situation.last
            assert situation.adjacent
            assert situation.record != "misplaced" or situation.header != "whole"
        if found == "unfinished rotation":
            assert not situation.lowest
            assert situation.header in ("empty", "torn") or not situation.opened
            looked = situation.header == "torn" or (
                situation.header == "whole" and situation.record != "none"
            )
            assert not (looked and situation.intact_after)
        if found == "torn tail":
            assert situation.record in ("short", "checksum")
            assert not situation.intact_after
        if found == "whole":
            assert situation.header == "whole"
            assert situation.record == "none"


def changed(row_of: Situation, to: Verdict) -> tuple[Row, ...]:
    return tuple(attrs.evolve(row, verdict=to) if row is judge(row_of) else row for row in TABLE)


@pytest.fixture
def torn(make: Callable[..., Path], entries: list[Entry]) -> Path:
    path = make(entries)
    path.write_bytes(path.read_bytes()[:-3])
    return path


def test_a_tail_is_what_the_table_says(torn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Situation(True, True, record="short")
    assert len(list(iterate(torn))) == 11
    monkeypatch.setattr(verdict, "TABLE", changed(short, "damage"))
    for action in (
        lambda: list(iterate(torn)),
        lambda: Journal.resume(torn),
        lambda: check(torn),
        lambda: check(torn, fix_tail=True),
    ):
        with pytest.raises(JournalCorrupt, match="record 11"):
            action()
    assert type(list(scan(torn))[-1]).__name__ == "Damage"


def test_a_good_end_is_what_the_table_says(
    make: Callable[..., Path], entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(entries)
    monkeypatch.setattr(verdict, "TABLE", changed(Situation(True, True), "damage"))
    with pytest.raises(JournalCorrupt):
        list(iterate(path))


def test_an_unfinished_rotation_is_what_the_table_says(
    make: Callable[..., Path], entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(entries)
    path.with_name(path.name + ".00001").touch()
    assert len(list(iterate(path))) == 12
    monkeypatch.setattr(verdict, "TABLE", changed(Situation(False, True, header="empty"), "damage"))
    with pytest.raises(JournalCorrupt, match=r"txlog\.00001' is damaged at byte 0 \(the file header\)"):
        list(iterate(path))
    with pytest.raises(JournalCorrupt):
        Journal.resume(path)
    assert path.with_name(path.name + ".00001").exists()
