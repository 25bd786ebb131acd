"""The three physical forms of recurrent state: one column a row, or one a round, and equal states."""

from __future__ import annotations

import itertools

import pytest

from txdecode.transactions.executor import ROLLBACKS
from txdecode.transactions.transaction import view

MASKS = tuple(itertools.product((True, False), repeat=3))


@pytest.mark.parametrize("fused", [False, True], ids=["verbs", "fused"])
@pytest.mark.parametrize("form", ROLLBACKS)
def test_every_acceptance_gives_the_plain_state(kit, form, fused):
    rig = kit.Rig(rollback=form, fused=fused)
    rig.enter(0, kit.PROMPT, 60)
    for mask in MASKS:
        tx = rig.round(0, mask)
        wide = len(mask) + 1
        assert [len(columns) for columns in tx.plan.columns] == [wide if form == "columns" else 1]
        # The state lies where the ledger says; what it was before is free again.
        assert rig.ledgers.recurrent.units[0][0] in tx.plan.columns[0]
        assert tx.plan.view.columns[0] in rig.store.pools.columns[0].free()
        rig.check()
        # A miss after an accepted round.
        rig.round(0, ())
        rig.check()


@pytest.mark.parametrize("form", ROLLBACKS)
def test_a_rollback_leaves_the_state(kit, form):
    for verb in kit.VERBS:
        rig = kit.prepared(rollback=form, accuracy=6)
        before = rig.standing()
        rig.hook.armed = f"{verb}:late"
        launch = rig.go(rig.open(rig.ask(0, None, drafts=5)))
        assert launch.fault is not None
        kit.again(rig, before)


@pytest.mark.parametrize("form", ROLLBACKS)
def test_a_batch_at_its_widest_has_columns_enough(kit, form):
    rig = kit.Rig(rollback=form)
    for request in range(4):
        rig.enter(request, kit.PROMPT, 20)
    launch = rig.go(rig.open(*(rig.ask(request, (True,) * 7) for request in range(4))))
    assert launch.fault is None
    rig.check()


def test_the_forms_audit_the_same(kit):
    found = set()
    for form in ROLLBACKS:
        rig = kit.Rig(rollback=form)
        rig.enter(0, kit.PROMPT, 40)
        for mask in MASKS[::3]:
            rig.round(0, mask)
        found.add(rig.executor.audit(view(rig.ledgers, 0), True))
    assert len(found) == 1


@pytest.mark.parametrize("form", ["replay", "restore"])
def test_the_current_column_is_not_written_before_settle(kit, form):
    rig = kit.Rig(rollback=form)
    rig.enter(0, kit.PROMPT, 20)
    launch = rig.open(rig.ask(0, (True, False)))
    held = list(rig.executor.columns)
    for _ in range(3):
        rig.coordinator.advance(launch)
        assert rig.executor.columns == held
    rig.go(launch)
    assert rig.executor.columns != held
