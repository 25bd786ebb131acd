"""The token ledger: derived values, and every change that it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.state.changes import Admit, Advance, Close, Evict, Submit
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.tokens import TokenState


def advance(request, consumed, emitted=(), *, round=False, close=False):  # noqa: A002
    return Advance(request, consumed, emitted, (), (), (), round, close)


REFUSED = {
    "a known request again": (Submit(1, (7,), 4, 1), "request 1"),
    "an empty prompt": (Submit(9, (), 4, 1), "request 9 prompt"),
    "no budget": (Submit(9, (1,), 0, 1), "request 9 budget"),
    "admit a stranger": (Admit(9, (), ()), "request 9"),
    "admit twice": (Admit(0, (), ()), "request 0"),
    "advance a stranger": (advance(9, 1, (5,), round=True), "request 9"),
    "advance without residence": (advance(1, 1, (5,), round=True), "request 1"),
    "evict a stranger": (Evict(9, ()), "request 9"),
    "evict without residence": (Evict(1, ()), "request 1"),
    "close a stranger": (Close(9, ()), "request 9"),
    "a round before the prefill is done": (advance(3, 1, (5,), round=True), "request 3 consumed"),
    "a round that emits nothing": (advance(0, 0, (), round=True), "request 0 emitted"),
    "a round that consumes more than it emits": (advance(0, 2, (5,), round=True), "request 0 emitted"),
    "a round that emits more than it consumes": (advance(0, 1, (5, 5), round=True), "request 0 emitted"),
    "a round past the budget": (advance(2, 3, (5, 5, 5), round=True), "request 2 generated"),
    "a closing round past the budget": (
        advance(2, 3, (5, 5, 5), round=True, close=True),
        "request 2 generated",
    ),
    "a prefill that emits": (advance(3, 1, (5,)), "request 3 prefill"),
    "a prefill that closes": (advance(3, 1, close=True), "request 3 prefill"),
    "a prefill of nothing": (advance(3, 0), "request 3 prefill"),
    "a prefill backwards": (advance(3, -1), "request 3 prefill"),
    "a prefill of the pending token": (advance(3, 3), "request 3 prefill"),
    "a prefill when all is consumed": (advance(0, 1), "request 0 prefill"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_field_and_change_nothing(kit, name):
    change, field = REFUSED[name]
    ledgers = kit.base()
    before = kit.contents(ledgers)
    with pytest.raises(LedgerCorrupt) as error:
        ledgers.tokens.delta(change)
    assert (error.value.ledger, error.value.field) == ("tokens", field)
    assert kit.contents(ledgers) == before


@pytest.mark.parametrize(
    "change",
    [
        Submit(9, (7,), 1, 1),
        advance(0, 4, (5, 6, 7, 8), round=True),
        advance(2, 2, (5, 6), round=True),
        advance(3, 1),
        advance(3, 2),
        Close(1, ()),
    ],
)
def test_what_lies_at_the_border_is_taken(kit, change):
    kit.base().tokens.delta(change)


def test_derived_values(kit):
    sequences = kit.base().tokens.sequences
    first, waiting, later, filling = (sequences[r] for r in range(4))
    assert [s.known for s in (first, waiting, later, filling)] == [5, 1, 4, 5]
    assert [s.pending for s in (first, waiting, later, filling)] == [5, 7, 9, 5]
    assert [s.ready for s in (first, waiting, later, filling)] == [True, True, True, False]
    assert [s.drafter_pairs for s in (first, waiting, later, filling)] == [3, 0, 2, 1]
    assert [s.tail_owner for s in (first, waiting, later, filling)] == [3, -1, 2, 1]
    assert TokenState((1, 2), 9, generated=[7, 8]).pending == 8
    assert TokenState((1, 2), 9).pending == 2
    assert later.counts == {9: 2}
    assert later.rounds == 1


def test_eviction_keeps_tokens_and_raises_the_epoch(kit):
    ledgers = kit.base()
    state = ledgers.tokens.sequences[2]
    kept = (state.prompt, list(state.generated), dict(state.counts), state.rounds, state.budget)
    kit.fold(ledgers, [Evict(2, ((1,), (2,)))])
    assert (state.prompt, state.generated, state.counts, state.rounds, state.budget) == kept
    assert (state.epoch, state.consumed, state.resident) == (1, 0, False)
    assert state.pending == 9


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.integers(0, 9), max_size=6))
def test_ids_are_a_slice_of_all_that_is_known(prompt, generated):
    state = TokenState(tuple(prompt), 9, generated=generated)
    known = tuple(prompt + generated)
    assert state.ids() == known
    for start in range(len(known) + 1):
        assert state.ids(start) == known[start:]
        for stop in range(start, len(known) + 1):
            assert state.ids(start, stop) == known[start:stop]
