"""The random-number ledger: positions by role, and every change that it refuses."""

from __future__ import annotations

import pytest

from txdecode.state.changes import Admit, Advance, Close, Evict, Submit
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.rng import LAW, LAWS, POSITION, ROLES, ROLES_OF_LAW, SEED, Stream


def advance(request, emitted, rng, *, round=True, close=False):  # noqa: A002
    return Advance(request, len(emitted), emitted, (), (), rng, round, close)


# Request 0 draws by the chain law and has four roles at position 5; request 2 is greedy and has one at 4.
REFUSED = {
    "advance a stranger": (advance(9, (5,), (1,)), "request 9"),
    "end a stranger": (advance(9, (5,), (1,), close=True), "request 9"),
    "close a stranger": (Close(9, ()), "request 9"),
    "no role": (Submit(9, (1,), 1, 0), "request 9 roles"),
    "a role more than the law has": (Submit(9, (1,), 1, 2, 1), "request 9 roles"),
    "the roles of another law": (Submit(9, (1,), 1, 1, 2), "request 9 roles"),
    "a law that there is not": (Submit(9, (1,), 1, 4, 3), "request 9 law"),
    "a negative law": (Submit(9, (1,), 1, 4, -1), "request 9 law"),
    "a seed below 64 bits": (Submit(9, (1,), 1, 1, 1, -1), "request 9 seed"),
    "a seed above 64 bits": (Submit(9, (1,), 1, 1, 1, 1 << 64), "request 9 seed"),
    "a role too few": (advance(0, (5,), (6,) * 3), "request 0 roles"),
    "a role too many": (advance(0, (5,), (6,) * 5), "request 0 roles"),
    "more roles than memory": (Submit(9, (1,), 1, 1 << 60, 2), "request 9 roles"),
    "the end at another position": (
        advance(0, (5,), (6, 7, 6, 6), close=True),
        "request 0 role 'accept' position",
    ),
    "the end with other roles": (advance(0, (5,), (6,), close=True), "request 0 roles"),
    "a position that stays": (advance(0, (5,), (5, 6, 6, 6)), "request 0 role 'target' position"),
    "a position that runs ahead": (advance(0, (5, 5), (7, 8, 7, 7)), "request 0 role 'accept' position"),
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
        kit.base().rng.delta(advance(0, (5, 5), (7, 8, 7, 7)))
    assert (error.value.expected, error.value.found) == (7, 8)


@pytest.mark.parametrize("law", range(len(LAWS)))
def test_positions_start_after_the_prompt(kit, law):
    ledgers = kit.base()
    kit.fold(ledgers, [Submit(9, (1, 2, 3), 4, ROLES_OF_LAW[law], law, 2**64 - 1)])
    assert ledgers.rng.streams[9] == Stream(law, 2**64 - 1, (3,) * ROLES_OF_LAW[law])


def test_a_law_has_no_more_roles_than_there_are():
    assert len(ROLES_OF_LAW) == len(LAWS)
    assert max(ROLES_OF_LAW) == len(ROLES)


def test_positions_move_with_rounds_alone(kit):
    ledgers = kit.base()
    rng = ledgers.rng
    assert rng.delta(advance(0, (), (), round=False)) == 0
    rng.apply(advance(0, (), (), round=False))
    assert rng.streams[0] == Stream(2, 77, (5,) * 4)
    for change in (Evict(0, ()), Admit(1, (), ())):
        before = dict(rng.streams)
        assert rng.delta(change) == 0
        rng.apply(change)
        assert rng.streams == before
    rng.apply(advance(0, (8, 8), (7,) * 4))
    assert rng.streams[0] == Stream(2, 77, (7,) * 4)


@pytest.mark.parametrize("change", [Close(2, ()), advance(2, (5,), (5,), close=True)])
def test_the_end_forgets_the_stream(kit, change):
    rng = kit.base().rng
    rng.delta(change)
    rng.apply(change)
    assert 2 not in rng.streams


def test_a_seed_and_a_law_have_cells_and_zeros_have_none(kit):
    rng = kit.base().rng
    assert (LAW, 0, 0, 2) in set(rng.cells())
    assert (SEED, 0, 0, 77) in set(rng.cells())
    assert {cell for cell in rng.cells() if cell[1] == 2} == {(POSITION, 2, 0, 4)}
