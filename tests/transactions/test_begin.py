"""What begin reserves, and what it refuses to begin."""

from __future__ import annotations

import pytest

from txdecode.state.errors import LedgerExhausted
from txdecode.transactions.phase import IllegalTransition, Signal

RIGHT = (True, True, False)


@pytest.mark.parametrize("group", ["kv", "gdn"])
def test_begin_takes_all_or_nothing(kit, group):
    rig = kit.prepared()
    for pool in (*rig.store.pools.pages, *rig.store.pools.columns):
        if pool.name == group:
            pool.take(len(pool))
    free = rig.free()
    with pytest.raises(LedgerExhausted, match=group):
        rig.coordinator.begin(rig.ask(0, RIGHT))
    assert rig.free() == free
    assert rig.store.pools.reserved == 0


def test_begin_leaks_nothing_where_the_audit_fails(kit):
    rig = kit.prepared()
    before = rig.standing()
    rig.executor.audit = lambda view: 1 // 0
    with pytest.raises(ZeroDivisionError):
        rig.coordinator.begin(rig.ask(0, RIGHT))
    del rig.executor.audit
    kit.again(rig, before)


def test_begin_wants_a_request_that_is_ready(kit):
    rig = kit.prepared()
    ask = rig.ask(0, (True,) * 7)
    with pytest.raises(AssertionError, match="width 9"):
        rig.coordinator.begin(type(ask)(0, 8, ask.rules))
    with pytest.raises(AssertionError, match="width 0"):
        rig.coordinator.begin(type(ask)(0, -1, ask.rules))
    with pytest.raises(AssertionError, match="7 drafts for a budget of 3"):
        rig.coordinator.begin(type(ask)(0, 7, rig.ask(0, (), budget=3).rules))
    rig.coordinator.begin(type(ask)(0, 2, rig.ask(0, (), budget=3).rules))
    rig.submit(1, kit.PROMPT, 9)
    with pytest.raises(AssertionError, match="not resident"):
        rig.coordinator.begin(rig.ask(1))
    rig.residency.admit(1)
    with pytest.raises(AssertionError, match="not ready"):
        rig.coordinator.begin(rig.ask(1))


def test_a_plan_names_what_the_round_may_touch(kit):
    rig = kit.prepared()
    tx = rig.coordinator.begin(rig.ask(0, (True,) * 4))
    plan, state = tx.plan, rig.state(0)
    assert (plan.request, plan.ordinal, plan.pending, plan.width) == (0, 1, state.pending, 5)
    assert (plan.view.length, plan.view.epoch) == (6, 0)
    assert plan.parents == (-1, 0, 1, 2, 3)
    # 6 + 5 rows take three pages of 4, of which two are the request's own.
    assert [len(pages) for pages in plan.view.pages] == [2, 2]
    assert [len(pages) for pages in plan.pages] == [3, 3]
    assert [pages[:2] for pages in plan.pages] == list(plan.view.pages)
    assert [len(columns) for columns in plan.columns] == [5]
    assert set(plan.columns[0]).isdisjoint(plan.view.columns)
    assert plan.rng == (7, 12)
    assert plan.budget == 15


def test_a_round_has_no_path_before_it_is_accepted(kit):
    rig = kit.prepared()
    with pytest.raises(AssertionError):
        _ = rig.coordinator.begin(rig.ask(0, RIGHT)).path


def test_a_request_has_one_round_at_a_time(kit):
    rig = kit.prepared()
    launch = rig.open(rig.ask(0, RIGHT))
    assert rig.coordinator.has_round(0)
    free = rig.free()
    for act in (
        lambda: rig.coordinator.begin(rig.ask(0, ())),
        lambda: rig.residency.evict(0, "asked"),
        lambda: rig.residency.finish(0, "cancelled"),
    ):
        with pytest.raises(AssertionError, match="has an open round"):
            act()
    assert rig.free() == free
    rig.go(launch)
    assert not rig.coordinator.has_round(0)
    rig.hook.armed = "verify"
    rig.go(rig.open(rig.ask(0, RIGHT)))
    assert not rig.coordinator.has_round(0)
    rig.round(0)
    rig.residency.finish(0, "cancelled")
    rig.check()


def test_a_round_is_over_once(kit):
    rig = kit.prepared()
    launch = rig.open(rig.ask(0, RIGHT))
    (tx,) = launch.transactions
    rig.coordinator.rollback(launch, tx, Signal.CANCEL, "by hand")
    assert rig.coordinator.advance(launch)
    with pytest.raises(IllegalTransition):
        rig.coordinator.rollback(launch, tx, Signal.CANCEL, "again")
    rig.check()
