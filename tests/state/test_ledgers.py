"""All ledgers together: digests, purity, snapshots, and the invariants that cross ledgers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.state.changes import Admit, Advance, Close, Evict, Submit
from txdecode.state.digest import LEDGERS, add
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.ledgers import Ledgers
from txdecode.state.rng import Stream

SCRIPT = st.binary(min_size=20, max_size=240)


@settings(max_examples=60, deadline=None)
@given(SCRIPT)
def test_digests_equal_recomputation_and_the_shadow(kit, data):
    ledgers, shadow = kit.ledgers(), kit.Shadow()
    for change in kit.changes(data):
        before = kit.contents(ledgers)
        delta = ledgers.delta(change)
        assert kit.contents(ledgers) == before
        ledgers.apply(delta)
        shadow.perform(change)
        assert ledgers.digests == delta.digests == shadow.digests()
        ledgers.check()
    assert ledgers.recompute() == ledgers.digests


@settings(max_examples=60, deadline=None)
@given(SCRIPT)
def test_deltas_of_a_batch_stack(kit, data):
    live, replayed, shadow = kit.ledgers(), kit.ledgers(), kit.Shadow()
    choices = kit.Choices(data)
    while choices:
        busy, taken = set(), set()
        batch = [shadow.next(choices, taken, busy) for _ in range(1 + choices.pick(3))]
        batch = [change for change in batch if change is not None]
        base = live.digests
        deltas = []
        for change in batch:
            deltas.append(live.delta(change, base))
            base = deltas[-1].digests
        for delta in deltas:
            live.apply(delta)
        for change, delta in zip(batch, deltas, strict=True):
            shadow.perform(change)
            kit.fold(replayed, [change])
            assert replayed.digests == delta.digests
        assert live.digests == replayed.digests == shadow.digests()
        assert kit.contents(live) == kit.contents(replayed)


@settings(max_examples=40, deadline=None)
@given(SCRIPT, st.integers(0, 255))
def test_fold_of_all_is_fold_of_snapshot_and_tail(kit, data, cut):
    changes = kit.changes(data)
    cut %= len(changes) + 1
    whole = kit.fold(kit.ledgers(), changes)
    head = kit.fold(kit.ledgers(), changes[:cut])
    # Through bytes, as in a log: keys are text and tuples become lists.
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(head.snapshot()))
    again = kit.base()
    again.restore(plain)
    assert kit.contents(again) == kit.contents(head)
    kit.fold(again, changes[cut:])
    assert kit.contents(again) == kit.contents(whole)
    assert again.snapshot() == whole.snapshot()


def test_a_refused_change_changes_nothing(kit):
    ledgers = kit.base()
    before = kit.contents(ledgers)
    for change in (
        Submit(0, (1,), 1, 1),
        Admit(1, (0, 5), (1,)),
        Advance(0, 1, (5,), ((), ()), (1, 1), (6,), True),
        Evict(0, ((9,), ())),
        Close(3, ()),
    ):
        with pytest.raises(LedgerCorrupt):
            ledgers.delta(change)
        assert kit.contents(ledgers) == before


def test_cells_are_named(kit):
    cells = list(kit.base().cells())
    assert {cell.ledger for cell in cells} == set(LEDGERS)
    fields = {(cell.ledger, cell.field) for cell in cells}
    assert {("tokens", "count"), ("pages", "references"), ("recurrent", "column")} <= fields
    assert {("history", "ring"), ("rng", "position"), ("tokens", "consumed at round")} <= fields


def poke_tokens(ledgers, request, **values):
    """Write past ``apply`` and hide it from the digests, so that only the invariant itself can find it."""
    state = ledgers.tokens.sequences[request]
    for name, value in values.items():
        setattr(state, name, value)
    data = ledgers.tokens.snapshot()
    counts = {r: dict(s.counts) for r, s in ledgers.tokens.sequences.items()}
    ledgers.tokens.restore(data)
    for r, held in counts.items():
        ledgers.tokens.sequences[r].counts = held


def forget_pages(ledgers, request):
    for references, pages in zip(ledgers.pages.references, ledgers.pages.tables.pop(request), strict=True):
        for page in pages:
            references[page] -= 1
    del ledgers.pages.lengths[request]


def forget_holding(ledger, request):
    for owners, unit in zip(ledger.owners, ledger.units.pop(request), strict=True):
        del owners[unit]
    del ledger.positions[request]


def hold_without_residence(ledgers):
    ledgers.recurrent.units[1] = (0, 0)
    ledgers.recurrent.positions[1] = 0
    ledgers.recurrent.owners[0][0] = ledgers.recurrent.owners[1][0] = 1


def raise_length(ledgers, by):
    ledgers.pages.lengths[2] += by


BROKEN = {
    "more consumed than known": (lambda k: poke_tokens(k, 1, consumed=1), "tokens", "request 1 consumed"),
    "less than nothing": (lambda k: poke_tokens(k, 0, consumed=-1), "tokens", "request 0 consumed"),
    "consumed without residence": (
        lambda k: poke_tokens(k, 3, resident=False),
        "tokens",
        "request 3 consumed while not resident",
    ),
    "more than the budget": (lambda k: poke_tokens(k, 2, budget=1), "tokens", "request 2 generated"),
    "a wrong count": (
        lambda k: k.tokens.sequences[2].counts.update({9: 1}),
        "tokens",
        "request 2 counts",
    ),
    "a count of a rejected draft": (
        lambda k: k.tokens.sequences[2].counts.update({4: 1}),
        "tokens",
        "request 2 counts",
    ),
    "a wrong weight": (
        lambda k: setattr(k.tokens.sequences[0], "weight", 5),
        "tokens",
        "request 0 digest",
    ),
    "rng without tokens": (lambda k: k.rng.streams.update({9: Stream(0, 0, (1,))}), "rng", "requests"),
    "tokens without rng": (lambda k: k.rng.streams.pop(1), "rng", "requests"),
    "rng behind": (
        lambda k: k.rng.streams.update({2: Stream(0, 0, (3,))}),
        "rng",
        "request 2 position",
    ),
    "one role ahead": (
        lambda k: k.rng.streams.update({0: Stream(2, 77, (5, 6, 5, 5))}),
        "rng",
        "request 0 position",
    ),
    "no role": (lambda k: k.rng.streams.update({2: Stream(0, 0, ())}), "rng", "request 2 roles"),
    "too many roles": (lambda k: k.rng.streams.update({2: Stream(0, 0, (4, 4))}), "rng", "request 2 roles"),
    "an unknown law": (lambda k: k.rng.streams.update({2: Stream(3, 0, (4,))}), "rng", "request 2 law"),
    "a seed of 65 bits": (
        lambda k: k.rng.streams.update({2: Stream(0, 1 << 64, (4,))}),
        "rng",
        "request 2 seed",
    ),
    "pages of nobody": (
        lambda k: (k.pages.tables.update({9: ((), ())}), k.pages.lengths.update({9: 0})),
        "pages",
        "resident requests",
    ),
    "resident without pages": (lambda k: forget_pages(k, 3), "pages", "resident requests"),
    "rows that were not consumed": (lambda k: raise_length(k, -1), "pages", "request 2 position"),
    "a page too few": (lambda k: raise_length(k, 4), "pages", "request 2 group 'kv' pages"),
    "a length without a table": (lambda k: k.pages.lengths.update({9: 0}), "pages", "requests"),
    "a page counted twice": (
        lambda k: k.pages.references[1].__setitem__(4, 2),
        "pages",
        "group 'pairs' page 4 references",
    ),
    "a page of nobody": (
        lambda k: k.pages.references[0].__setitem__(7, 1),
        "pages",
        "group 'kv' page 7 references",
    ),
    "resident without columns": (
        lambda k: forget_holding(k.recurrent, 0),
        "recurrent",
        "resident requests",
    ),
    "columns without residence": (hold_without_residence, "recurrent", "resident requests"),
    "recurrence behind": (
        lambda k: k.recurrent.positions.update({2: 2}),
        "recurrent",
        "request 2 position",
    ),
    "a position without columns": (lambda k: k.recurrent.positions.update({9: 0}), "recurrent", "requests"),
    "a column beyond the pool": (
        lambda k: (k.recurrent.units.update({0: (6, 1)}), k.recurrent.owners[0].update({6: 0})),
        "recurrent",
        "request 0 group 'gdn' column",
    ),
    "one column, two owners": (
        lambda k: (k.recurrent.units.update({0: (1, 2)}), k.recurrent.owners[1].pop(1)),
        "recurrent",
        "group 'kda' columns",
    ),
    "a column of nobody": (
        lambda k: k.recurrent.owners[1].update({6: 0}),
        "recurrent",
        "group 'kda' owners",
    ),
    "resident without a ring": (lambda k: forget_holding(k.history, 0), "history", "resident requests"),
    "history ahead": (lambda k: k.history.positions.update({3: 3}), "history", "request 3 position"),
    "a ring's owner forgotten": (
        lambda k: k.history.owners[0].pop(0),
        "history",
        "group 'conv' owners",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_invariant_is_found_and_named(kit, name):
    poke, ledger, field = BROKEN[name]
    ledgers = kit.base()
    ledgers.check()
    poke(ledgers)
    ledgers.digests = ledgers.recompute()
    with pytest.raises(LedgerCorrupt) as error:
        ledgers.check()
    assert (error.value.ledger, error.value.field) == (ledger, field)
    assert error.value.expected != error.value.found
    assert ledger in str(error.value)
    assert field in str(error.value)


@pytest.mark.parametrize("index", range(5))
def test_a_write_past_apply_shows_in_the_digest(kit, index):
    ledgers = kit.base()
    ledgers.digests = add(ledgers.digests, tuple(int(i == index) for i in range(5)))
    with pytest.raises(LedgerCorrupt) as error:
        ledgers.check()
    assert (error.value.ledger, error.value.field) == (LEDGERS[index], "digest")


def test_restore_checks_what_it_reads(kit):
    good = kit.base().snapshot()
    for damage, ledger, field in (
        (lambda d: d["pages"].pop("3"), "pages", "resident requests"),
        (lambda d: d["pages"]["3"][0].pop(), "pages", "request 3 groups"),
        (lambda d: d["pages"]["3"][0][0].__setitem__(0, 10), "pages", "group 'kv' page 10"),
        (lambda d: d["pages"]["3"][0][0].__setitem__(0, -1), "pages", "group 'kv' page -1"),
        (lambda d: d["recurrent"]["0"][0].pop(), "recurrent", "request 0 groups"),
        (lambda d: d["recurrent"]["0"][0].__setitem__(0, -1), "recurrent", "request 0 group 'gdn' column"),
        (lambda d: d["history"].pop("2"), "history", "resident requests"),
        (lambda d: d["rng"].pop("1"), "rng", "requests"),
        (lambda d: d["tokens"]["2"].__setitem__(3, 2), "pages", "request 2 position"),
    ):
        data = msgspec.msgpack.decode(msgspec.msgpack.encode(good))
        damage(data)
        with pytest.raises(LedgerCorrupt) as error:
            kit.ledgers().restore(data)
        assert (error.value.ledger, error.value.field) == (ledger, field)
    kit.ledgers().restore(good)


def test_ledgers_without_pools_keep_tokens_only():
    ledgers = Ledgers(())
    for change in (
        Submit(0, (1, 2), 3, 1),
        Admit(0, (), ()),
        Advance(0, 1, (), (), (), (), False),
        Advance(0, 2, (3, 4), (), (), (4,), True),
        Evict(0, ()),
        Admit(0, (), ()),
        Close(0, ()),
    ):
        ledgers.apply(ledgers.delta(change))
        ledgers.check()
        assert not ledgers.pages.tables
        assert not ledgers.recurrent.units
        assert not ledgers.history.units
    assert not ledgers.tokens.sequences
    assert ledgers.digests == (0, 0, 0, 0, 0)


def test_a_token_context_is_history_without_rings(kit):
    ledgers = Ledgers((kit.groups[4],))
    kit.fold(ledgers, [Submit(0, (1, 2), 3, 1), Admit(0, (), ()), Advance(0, 1, (), (), (), (), False)])
    assert ledgers.history.positions == {0: 1}
    ledgers.check()
    ledgers.history.positions.clear()
    with pytest.raises(LedgerCorrupt, match="history"):
        ledgers.check()


def test_another_seed_is_found_by_the_digest(kit):
    ledgers = kit.base()
    ledgers.rng.streams[0] = Stream(2, 78, (5,) * 4)
    with pytest.raises(LedgerCorrupt) as error:
        ledgers.check()
    assert (error.value.ledger, error.value.field) == ("rng", "digest")
