"""Pools: lowest free first, all or nothing, and no unit ever lost or held twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.state.changes import Admit, Advance, Close, Evict, Submit
from txdecode.state.errors import LedgerCorrupt, LedgerExhausted
from txdecode.state.groups import StateGroup
from txdecode.state.ledgers import Ledgers
from txdecode.state.reservations import NOTHING, Pool, Pools, Reservation


@settings(deadline=None)
@given(st.sets(st.integers(0, 40)), st.integers(0, 45))
def test_a_pool_gives_its_lowest_first_or_nothing(free, count):
    pool = Pool("kv", free)
    assert len(pool) == len(free)
    if count > len(free):
        with pytest.raises(LedgerExhausted) as error:
            pool.take(count)
        assert (error.value.ledger, error.value.wanted, error.value.free) == ("kv", count, len(free))
        assert pool.free() == sorted(free)
        return
    taken = pool.take(count)
    assert taken == tuple(sorted(free)[:count])
    assert pool.free() == sorted(free)[count:]
    pool.give(reversed(taken))
    assert pool.free() == sorted(free)


def test_exhaustion_is_one_line_that_says_what_to_do():
    text = str(LedgerExhausted("kv", 3, 1))
    assert "\n" not in text
    assert "'kv'" in text
    assert "3 wanted, 1 free" in text
    assert "finish or preempt" in text


def test_a_group_of_one_column_a_round_gives_one(kit):
    by_row, by_round = (
        StateGroup("gdn", "column", 1, 1, 8, "target", 6),
        StateGroup("kda", "column", 1, 1, 8, "target", 3, "round"),
    )
    pools = Pools(Ledgers((by_row, by_round)))
    taken = pools.reserve(0, 4, 4)
    assert taken.columns == ((0, 1, 2, 3), (0,))
    pools.close(taken, Reservation((), ((2,), (0,))))
    assert [pool.free() for pool in pools.columns] == [[0, 1, 3, 4, 5], [1, 2]]
    # A chunk of prompt takes one of each.
    assert pools.reserve(0, 9, 1).columns == ((0,), (1,))


def free_of(pools):
    return [pool.free() for pool in (*pools.pages, *pools.columns, *pools.slots)]


@pytest.mark.parametrize(
    ("rows", "columns", "leave", "group"),
    [
        (1, 1, {"kv": 0}, "kv"),
        (3, 1, {"pairs": 0}, "pairs"),
        (1, 3, {"gdn": 2}, "gdn"),
        (1, 3, {"kda": 2}, "kda"),
    ],
)
def test_reserve_is_all_or_nothing_and_names_the_group(kit, rows, columns, leave, group):
    pools = Pools(kit.base())
    for pool in (*pools.pages, *pools.columns):
        if pool.name in leave:
            pool.take(len(pool) - leave[pool.name])
    before = free_of(pools)
    with pytest.raises(LedgerExhausted) as error:
        pools.reserve(0, rows, columns)
    assert error.value.ledger == group
    assert error.value.free == leave[group]
    assert free_of(pools) == before
    assert pools.reserved == 0


@pytest.mark.parametrize("group", ["gdn", "kda", "conv"])
def test_admission_is_all_or_nothing_and_names_the_group(kit, group):
    pools = Pools(kit.fold(kit.ledgers(), [Submit(0, (1,), 1, 1)]))
    for pool in (*pools.columns, *pools.slots):
        if pool.name == group:
            pool.take(len(pool))
    before = free_of(pools)
    with pytest.raises(LedgerExhausted) as error:
        pools.admit()
    assert error.value.ledger == group
    assert free_of(pools) == before


def test_the_boundary_page_is_not_reserved_again(kit):
    # Request 3 has 2 of the 4 rows of its kv page and 2 of the 3 of its pairs page.
    pools = Pools(kit.base())
    assert pools.reserve(3, 1, 1) == Reservation(((), ()), ((0,), (0,)))
    assert pools.reserve(3, 2, 2) == Reservation(((), (3,)), ((3, 4), (3, 4)))
    assert pools.reserve(3, 3, 0) == Reservation(((2,), (5,)), ((), ()))
    assert pools.reserved == 3


def test_close_keeps_what_was_committed(kit):
    pools = Pools(kit.base())
    before = free_of(pools)
    reservation = pools.reserve(0, 6, 2)
    assert reservation == Reservation(((2, 3), (3, 5)), ((0, 3), (0, 3)))
    pools.close(reservation, Reservation(((2,), (3, 5)), ((3,), (0,))))
    assert pools.reserved == 0
    assert free_of(pools) == [
        [unit for unit in units if unit not in kept]
        for units, kept in zip(before, ((2,), (3, 5), (3,), (0,), ()), strict=True)
    ]
    other = pools.reserve(0, 6, 2)
    pools.close(other, NOTHING)
    assert free_of(pools)[0] == before[0][1:]


@pytest.mark.parametrize("group", ["kv", "pairs", "gdn", "kda", "conv"])
def test_check_names_the_group_that_lost_a_unit(kit, group):
    pools = Pools(kit.base())
    pools.check()
    for pool in (*pools.pages, *pools.columns, *pools.slots):
        if pool.name == group:
            pool.give(pool.take(1) * 2) if group != "conv" else pool.give((0,))
    with pytest.raises(LedgerCorrupt, match=f"group '{group}' free") as error:
        pools.check()
    assert error.value.ledger == "reservations"


def test_check_finds_an_open_reservation(kit):
    pools = Pools(kit.base())
    # One that holds nothing is still a round that was never closed.
    pools.reserve(3, 1, 0)
    with pytest.raises(LedgerCorrupt, match="open when idle"):
        pools.check()


def test_holdings_are_what_the_ledgers_say(kit):
    pools = Pools(kit.base())
    assert pools.holdings(0) == Reservation(((0,), (0, 1)), ((1,), (1,)), ((0,),))
    assert pools.holdings(1) == Reservation()


class Machine:
    """Random operations the way the runtime performs them, with every unit accounted for."""

    def __init__(self, ledgers, choices):
        self.ledgers = ledgers
        self.choices = choices
        self.pools = Pools(self.ledgers)
        self.open: dict[int, tuple[Reservation, int]] = {}
        self.made = 0

    def change(self, change):
        self.ledgers.apply(self.ledgers.delta(change))

    def step(self):
        sequences = self.ledgers.tokens.sequences
        if len(sequences) < 4 and self.choices.pick(4) == 0:
            prompt = (1,) * (1 + self.choices.pick(6))
            self.change(Submit(self.made, prompt, 20, 1))
            self.made += 1
            return
        if not sequences:
            return
        r = list(sequences)[self.choices.pick(len(sequences))]
        if not sequences[r].resident:
            self.admit(r)
        elif r in self.open:
            self.end(r, self.choices.pick(3) == 0)
        elif self.choices.pick(5) == 0:
            self.leave(r, Evict if self.choices.pick(2) else Close)
        else:
            self.reserve(r)

    def attempt(self, take):
        """What ``take`` took, or ``None`` where it refused, and then it took nothing."""
        before = free_of(self.pools)
        try:
            return take()
        except LedgerExhausted as error:
            refusal = error
        assert refusal.free < refusal.wanted
        assert free_of(self.pools) == before
        return None

    def admit(self, r):
        before = free_of(self.pools)
        taken = self.attempt(self.pools.admit)
        if taken is None:
            return
        columns, slots = taken
        lowest = [units[0] for units in before[2:]]
        assert [*columns, *slots] == lowest
        self.change(Admit(r, columns, slots))

    def reserve(self, r):
        state = self.ledgers.tokens.sequences[r]
        rows = 1 + self.choices.pick(6) if state.ready else state.known - 1 - state.consumed
        rows = min(rows, state.budget - len(state.generated)) if state.ready else rows
        if not rows:
            self.leave(r, Close)
            return
        columns = rows if state.ready else 1
        before = free_of(self.pools)
        reservation = self.attempt(lambda: self.pools.reserve(r, rows, columns))
        if reservation is None:
            return
        for units, free in zip((*reservation.pages, *reservation.columns), before, strict=False):
            assert list(units) == free[: len(units)]
        self.open[r] = (reservation, rows)

    def end(self, r, rolled_back):
        reservation, rows = self.open.pop(r)
        if rolled_back:
            self.pools.close(reservation, NOTHING)
            return
        state = self.ledgers.tokens.sequences[r]
        ready = state.ready
        count = 1 + self.choices.pick(rows) if ready else rows
        held = self.pools.holdings(r)
        adopted = tuple(
            pages[: self.ledgers.pages.needed(g, state.consumed + count) - len(held.pages[g])]
            for g, pages in enumerate(reservation.pages)
        )
        columns = tuple(units[count - 1 if ready else 0] for units in reservation.columns)
        emitted = (3,) * count if ready else ()
        rng = (state.known + count,) if ready else ()
        self.change(Advance(r, count, emitted, adopted, columns, rng, ready))
        self.pools.close(reservation, Reservation(adopted, tuple((column,) for column in columns)))
        self.pools.give(Reservation((), held.columns))

    def leave(self, r, how):
        held = self.pools.holdings(r)
        self.change(how(r, held.pages))
        self.pools.give(held)

    def check(self):
        """free + reserved + committed is the pool, and the three do not meet."""
        reserved = [reservation for reservation, _ in self.open.values()]
        committed = [self.pools.holdings(r) for r in self.ledgers.tokens.sequences]
        for what, pools, ledger in (
            ("pages", self.pools.pages, self.ledgers.pages),
            ("columns", self.pools.columns, self.ledgers.recurrent),
            ("slots", self.pools.slots, self.ledgers.history),
        ):
            for g, pool in enumerate(pools):
                held = [
                    unit for each in (*reserved, *committed) for unit in (getattr(each, what) or [()] * 9)[g]
                ]
                assert sorted(pool.free() + held) == list(range(ledger.groups[g].capacity))
        assert self.pools.reserved == len(self.open)
        self.ledgers.check()


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=30, max_size=250))
def test_units_are_conserved_under_any_operations(kit, data):
    machine = Machine(kit.ledgers(), kit.Choices(data))
    while machine.choices:
        machine.step()
        machine.check()
    for r in list(machine.open):
        machine.end(r, True)
    machine.pools.check()
    # Pools built afresh, as recovery builds them, are the same pools.
    assert free_of(Pools(machine.ledgers)) == free_of(machine.pools)
