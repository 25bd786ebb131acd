"""Where sweeps are kept, and what becomes of damaged ones."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from txdecode.runtime.policy.costs import LearnedCosts, SweptCosts
from txdecode.runtime.sweep import store
from txdecode.runtime.sweep.errors import SweepUnwritable
from txdecode.runtime.sweep.store import Row, Sweep, cache_folder, costs_for, identity, load, place_of, save
from txdecode.transactions.toy import ToyExecutor

TOY = ToyExecutor().describe()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXDECODE_CACHE", str(tmp_path / "cache"))


def made(**more: object) -> Sweep:
    rows = tuple(Row(1, 100, width, (1.0 + width, 1.1 + width, 1.2 + width)) for width in range(1, 9))
    fields = {"version": 1, "name": TOY.name, "fingerprint": identity(TOY), "rows": rows}
    return Sweep(**{**fields, **more})  # type: ignore[arg-type]


def test_a_sweep_comes_back_whole() -> None:
    sweep = made(steps={1: 0.5}, flags=("busy",))
    save(sweep, place_of(TOY))
    assert load(place_of(TOY), TOY) == sweep
    assert [path.name for path in cache_folder().iterdir()] == [place_of(TOY).name], (
        "nothing is left beside it"
    )


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("TXDECODE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/txdecode")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "txdecode"


def test_each_executor_has_a_place_of_its_own() -> None:
    places = {
        place_of(executor.describe())
        for executor in (ToyExecutor(), ToyExecutor(rollback="replay"), ToyExecutor(page=8))
    }
    assert len(places) == 3
    assert place_of(ToyExecutor().describe()) in places


def test_costs_come_from_the_sweep_where_there_is_one() -> None:
    assert isinstance(costs_for(TOY), LearnedCosts)
    save(made(), place_of(TOY))
    costs = costs_for(TOY)
    assert isinstance(costs, SweptCosts)
    assert costs.table(1, 100)[8] == pytest.approx(9.1 / 2.1)
    assert costs.data()["key"] == place_of(TOY).stem


DAMAGED = {
    "no json": (b"{", "sweep damaged"),
    "not text": (b"\xff\xfe", "sweep damaged"),
    "another schema": (b'{"version": 1}', "sweep damaged"),
    "a later version": (msgspec.json.encode(made(version=2)), "sweep of another version"),
    "another model": (msgspec.json.encode(made(name="other")), "sweep of another model"),
    "another machine": (msgspec.json.encode(made(fingerprint={})), "sweep of another model"),
    "no rows": (msgspec.json.encode(made(rows=())), "sweep without usable rows"),
    "no samples": (msgspec.json.encode(made(rows=(Row(1, 1, 1, ()),))), "sweep without usable rows"),
    "no time": (msgspec.json.encode(made(rows=(Row(1, 1, 1, (0.0,)),))), "sweep without usable rows"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_no_sweep_of_this_model_is_told_and_not_used(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, said = DAMAGED[case]
    place_of(TOY).parent.mkdir(parents=True)
    place_of(TOY).write_bytes(data)
    with caplog.at_level(logging.WARNING, "txdecode"):
        assert isinstance(costs_for(TOY), LearnedCosts)
    assert said in caplog.text


def test_a_folder_in_its_place(caplog: pytest.LogCaptureFixture) -> None:
    place_of(TOY).mkdir(parents=True)
    with caplog.at_level(logging.WARNING, "txdecode"):
        assert load(place_of(TOY), TOY) is None
    assert "sweep not readable" in caplog.text
    with pytest.raises(SweepUnwritable, match="cannot be written"):
        save(made(), place_of(TOY))


def test_a_write_that_fails_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    save(made(), place_of(TOY))

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", fail)
    with pytest.raises(SweepUnwritable, match="No space left"):
        save(made(flags=("new",)), place_of(TOY))
    assert load(place_of(TOY), TOY) == made()
    assert len(list(cache_folder().iterdir())) == 1


def test_medians_spreads_and_errors() -> None:
    row = Row(1, 1, 1, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert (row.median, row.spread) == (3.0, 2.0)
    assert row.error == pytest.approx(1.2533 * 2.0 / 1.349 / 5**0.5)
    assert Row(1, 1, 1, (4.0,)).error == 0.0
