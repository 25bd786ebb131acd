"""Log and ledgers as one thing."""

from __future__ import annotations

import pytest

from txdecode.state.digest import pack
from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RequestAdmitted, RequestFinished, RequestSubmitted, RuntimeNote
from txdecode.transactions.fold import fold


def submitted(request):
    return RequestSubmitted(request, (1, 2, 3), 4, (), 1, {}, 0)


def test_prepare_changes_nothing_and_stacks_digests(kit):
    rig = kit.Rig()
    rig.enter(9, (1,), 3)
    before, written = rig.ledgers.snapshot(), len(rig.log.records)
    deltas, records = rig.store.prepare([submitted(0), submitted(1), RequestFinished(9, 0, "", "", ((), ()))])
    assert (rig.ledgers.snapshot(), len(rig.log.records)) == (before, written)
    rig.replay()
    for delta, record in zip(deltas, records, strict=True):
        event = decode(*record)
        assert event.digests == pack(delta.digests)
        fold(rig.replayed, event)
        assert rig.replayed.digests == delta.digests
    assert len({delta.digests for delta in deltas}) == 3


def test_a_batch_is_one_append_before_any_apply(kit):
    rig = kit.Rig()
    seen = []
    rig.log.watch = lambda: seen.append((rig.ledgers.digests, len(rig.log.records)))
    rig.store.commit([submitted(0), submitted(1)])
    assert seen == [((0, 0, 0, 0, 0), 0)]
    assert len(rig.log.records) == 2
    rig.check()


def test_what_replay_would_refuse_is_never_appended(kit):
    rig = kit.Rig()
    rig.store.commit([submitted(0)])
    before, written = rig.ledgers.snapshot(), len(rig.log.records)
    for events in (
        [submitted(0)],
        [submitted(1), submitted(0)],
        # The epoch is nothing that a ledger would look at.
        [RequestAdmitted(0, 5, (0,), (0,))],
        [RequestFinished(0, 1, "cancelled", "", ())],
    ):
        with pytest.raises(LedgerCorrupt):
            rig.store.commit(events)
        assert (rig.ledgers.snapshot(), len(rig.log.records)) == (before, written)


def test_a_note_changes_no_ledger(kit):
    rig = kit.Rig()
    rig.store.commit([submitted(0)])
    digests = rig.ledgers.digests
    rig.store.note(RuntimeNote("closed", {"unfinished": 1}))
    assert rig.ledgers.digests == digests
    assert rig.log.events(RuntimeNote) == [RuntimeNote("closed", {"unfinished": 1})]
    with pytest.raises(AssertionError, match="RuntimeNote changes no ledger"):
        rig.store.commit([RuntimeNote("closed", {})])


def test_pools_of_a_store_over_restored_ledgers_know_what_is_held(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 9)
    rig.round(0, (True,))
    other = kit.Rig()
    other.ledgers.restore(rig.ledgers.snapshot())
    assert [pool.free() for pool in type(rig.store)(other.ledgers, other.log).pools.pages] == rig.free()[:2]
