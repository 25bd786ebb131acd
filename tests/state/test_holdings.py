"""The recurrent and the history ledger: every change that they refuse, and how units move."""

from __future__ import annotations

import pytest

from txdecode.state.changes import Admit, Advance, Close, Evict
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.holdings import HoldingsLedger


def advance(request, columns, *, close=False):
    return Advance(request, 1, (5,), (), columns, (), True, close)


# Request 0 holds columns (1, 1) and ring 0, request 2 columns (2, 2) and ring 2, request 1 none.
REFUSED = {
    "recurrent": {
        "advance without residence": (advance(1, (0, 0)), "request 1"),
        "end without residence": (advance(1, (), close=True), "request 1"),
        "evict without residence": (Evict(1, ()), "request 1"),
        "admit twice": (Admit(0, (0, 0), ()), "request 0"),
        "admit with a column too few": (Admit(1, (0,), ()), "request 1 groups"),
        "admit to a column of another": (Admit(1, (0, 2), ()), "group 'kda' column 2"),
        "admit beyond the pool": (Admit(1, (6, 0), ()), "group 'gdn' column 6"),
        "admit before the pool": (Admit(1, (0, -1), ()), "group 'kda' column -1"),
        "move to a column too few": (advance(0, (0,)), "request 0 groups"),
        "move to a column too many": (advance(0, (0, 0, 0)), "request 0 groups"),
        "move to a column of another": (advance(0, (2, 0)), "group 'gdn' column 2"),
        "move beyond the pool": (advance(0, (0, 7)), "group 'kda' column 7"),
        "move before the pool": (advance(0, (-1, 0)), "group 'gdn' column -1"),
        "move at its end": (advance(0, (0, 0), close=True), "request 0 column at its end"),
    },
    "history": {
        "advance without residence": (advance(1, ()), "request 1"),
        "end without residence": (advance(1, (), close=True), "request 1"),
        "evict without residence": (Evict(1, ()), "request 1"),
        "admit twice": (Admit(0, (), (1,)), "request 0"),
        "admit without a ring": (Admit(1, (), ()), "request 1 groups"),
        "admit to a ring of another": (Admit(1, (), (2,)), "group 'conv' ring 2"),
        "admit beyond the pool": (Admit(1, (), (3,)), "group 'conv' ring 3"),
        "admit before the pool": (Admit(1, (), (-1,)), "group 'conv' ring -1"),
    },
}


@pytest.mark.parametrize(
    ("ledger", "name"), [(ledger, name) for ledger in REFUSED for name in REFUSED[ledger]]
)
def test_refusals_name_the_place_and_change_nothing(kit, ledger, name):
    change, field = REFUSED[ledger][name]
    ledgers = kit.base()
    before = kit.contents(ledgers)
    with pytest.raises(LedgerCorrupt) as error:
        getattr(ledgers, ledger).delta(change)
    assert (error.value.ledger, error.value.field) == (ledger, field)
    assert kit.contents(ledgers) == before


def test_columns_move_and_rings_stay(kit):
    ledgers = kit.base()
    for ledger in (ledgers.recurrent, ledgers.history):
        ledger.delta(advance(0, (4, 6)))
        ledger.apply(advance(0, (4, 6)))
        ledger.check()
        assert ledger.positions[0] == 5
    assert ledgers.recurrent.units[0] == (4, 6)
    assert ledgers.history.units[0] == (0,)
    assert ledgers.recurrent.free(0) == [0, 1, 3]
    assert ledgers.recurrent.free(1) == [0, 1, 3, 4]


def test_a_column_may_stay_where_it_is(kit):
    # An executor that folds the accepted rows into the current column commits it again.
    recurrent = kit.base().recurrent
    recurrent.delta(advance(0, (1, 0)))
    recurrent.apply(advance(0, (1, 0)))
    recurrent.check()
    assert recurrent.units[0] == (1, 0)


@pytest.mark.parametrize("change", [Evict(0, ()), Close(0, ()), advance(0, (), close=True)])
def test_leaving_frees_all_units(kit, change):
    ledgers = kit.base()
    for ledger in (ledgers.recurrent, ledgers.history):
        ledger.delta(change)
        ledger.apply(change)
        ledger.check()
        assert 0 not in ledger.units
        assert 0 not in ledger.positions
    assert ledgers.recurrent.free(0) == [0, 1, 3, 4]
    assert ledgers.history.free(0) == [0]


def test_closing_what_is_not_resident_is_nothing(kit):
    ledgers = kit.base()
    for ledger in (ledgers.recurrent, ledgers.history):
        before = kit.contents(ledgers)
        assert ledger.delta(Close(1, ())) == 0
        ledger.apply(Close(1, ()))
        assert kit.contents(ledgers) == before


def test_the_common_part_names_no_units():
    ledger = HoldingsLedger((), active=True)
    with pytest.raises(AssertionError, match="names its units"):
        ledger.granted(Admit(0, (), ()))
    with pytest.raises(AssertionError, match="names its units"):
        ledger.moved(advance(0, ()), ())
