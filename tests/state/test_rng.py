"""The random-number ledger: positions by role, and every change that it refuses."""

from __future__ import annotations

import pytest

from txdecode.state.changes import Admit, Advance, Close, Evict, Submit
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.rng import ROLES


def advance(request, emitted, rng, *, round=True, close=False):  # noqa: A002
    return Advance(request, len(emitted), emitted, (), (), rng, round, close)


# Request 0 has two roles at position 5, request 2 one at 4.
REFUSED = {
    "advance a stranger": (advance(9, (5,), (1,)), "request 9"),
    "end a stranger": (advance(9, (5,), (1,), close=True), "request 9"),
    "close a stranger": (Close(9, ()), "request 9"),
    "no role": (Submit(9, (1,), 1, 0), "request 9 roles"),
    "more roles than there are": (Submit(9, (1,), 1, 5), "request 9 roles"),
    "a role too few": (advance(0, (5,), (6,)), "request 0 roles"),
    "a role too many": (advance(0, (5,), (6, 6, 6)), "request 0 roles"),
    "a position that stays": (advance(0, (5,), (5, 6)), "request 0 role 'target' position"),
    "a position that runs ahead": (advance(0, (5, 5), (7, 8)), "request 0 role 'accept' position"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_field_and_change_nothing(kit, name):
    change, field = REFUSED[name]
    ledgers = kit.base()
    before = kit.contents(ledgers)
    with pytest.raises(LedgerCorrupt) as error:
        ledgers.rng.delta(change)
    assert (error.value.ledger, error.value.field) == ("rng", field)
    assert kit.contents(ledgers) == before


def test_a_wrong_position_says_the_right_one(kit):
    with pytest.raises(LedgerCorrupt) as error:
        kit.base().rng.delta(advance(0, (5, 5), (7, 8)))
    assert (error.value.expected, error.value.found) == (7, 8)


@pytest.mark.parametrize("roles", range(1, len(ROLES) + 1))
def test_positions_start_after_the_prompt(kit, roles):
    ledgers = kit.base()
    kit.fold(ledgers, [Submit(9, (1, 2, 3), 4, roles)])
    assert ledgers.rng.positions[9] == (3,) * roles


def test_positions_move_with_rounds_alone(kit):
    ledgers = kit.base()
    rng = ledgers.rng
    assert rng.delta(advance(0, (), (), round=False)) == 0
    rng.apply(advance(0, (), (), round=False))
    assert rng.positions[0] == (5, 5)
    for change in (Evict(0, ()), Admit(1, (), ())):
        before = dict(rng.positions)
        assert rng.delta(change) == 0
        rng.apply(change)
        assert rng.positions == before
    rng.apply(advance(0, (8, 8), (7, 7)))
    assert rng.positions[0] == (7, 7)


@pytest.mark.parametrize("change", [Close(2, ()), advance(2, (5,), (5,), close=True)])
def test_the_end_forgets_the_positions(kit, change):
    rng = kit.base().rng
    rng.delta(change)
    rng.apply(change)
    assert 2 not in rng.positions
