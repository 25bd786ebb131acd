"""The order of a commit, and what stands once its record is appended."""

from __future__ import annotations

import pytest

from txdecode.transactions.events import RequestPreempted, RoundCommitted
from txdecode.transactions.phase import Signal

RIGHT = (True, True, False)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_append_then_settle_then_apply(kit, fused, ends):
    rig = kit.prepared(requests=2, fused=fused)
    order = []
    before, held, written = rig.ledgers.digests, rig.free(), len(rig.log.records)
    launch = rig.open(rig.ask(0, RIGHT, budget=3 if ends else None, drafts=2), rig.ask(1, RIGHT))
    reserved = rig.free()
    assert reserved != held
    settle, drop, apply = rig.executor.settle, rig.executor.drop, rig.ledgers.apply

    def note(step):
        return step, len(rig.log.records) - written, rig.ledgers.digests == before, rig.free() == reserved

    def settling(settlements):
        order.append(note(f"settle {[(s.plan.request, s.path) for s in settlements]}"))
        settle(settlements)

    def dropping(request):
        order.append(note(f"drop {request}"))
        drop(request)

    def applying(delta):
        order.append((f"apply {delta.change.request}", len(rig.log.records) - written, None, None))
        apply(delta)

    rig.executor.settle, rig.executor.drop, rig.ledgers.apply = settling, dropping, applying
    rig.log.watch = lambda: order.append(note("append"))
    rig.coordinator.observe = lambda request, *edge: order.append((f"{edge[1].name} {request}",))
    rig.go(launch)
    # One append for both; nothing is applied or freed before settle is over; published last.
    wanted = [
        ("append", 0, True, True),
        ("settle [(0, (0, 1, 2)), (1, (0, 1, 2))]", 2, True, True),
        *([("drop 0", 2, True, True)] if ends else []),
        ("apply 0", 2, None, None),
        ("COMMITTED 0",),
        ("apply 1", 2, None, None),
        ("COMMITTED 1",),
    ]
    assert [
        entry for entry in order if entry[0].split()[0] not in ("DRAFTED", "VERIFIED", "ACCEPTED")
    ] == wanted
    rig.log.watch = lambda: None
    del rig.executor.settle, rig.executor.drop, rig.ledgers.apply
    rig.check()


@pytest.mark.parametrize("when", ["settle", "settle:late"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_fault_in_settle_leaves_the_device_dirty_and_the_log_right(kit, when, ends):
    rig = kit.prepared(requests=2)
    before, written = rig.ledgers.digests, len(rig.log.records)
    expected = rig.oracle(0, 16)
    rig.hook.armed = when
    launch = rig.go(rig.open(rig.ask(0, RIGHT, budget=3 if ends else None, drafts=2), rig.ask(1, RIGHT)))
    assert launch.fault is None
    for tx in launch.transactions:
        assert tx.dirty
        assert tx.ended_by is Signal.COMMITTED
        assert len(tx.emitted) == 3
    assert len(rig.log.records) == written + 2
    assert rig.ledgers.digests != before
    rig.replay()
    rig.ledgers.check()
    rig.conserve()
    # The caller rebuilds the device from the tokens.
    for request in rig.ledgers.tokens.sequences:
        rig.recompute(request, reason="dirty")
    rig.check()
    for request in list(rig.ledgers.tokens.sequences):
        expected = rig.oracle(request, 16)
        assert rig.finish(request, (RIGHT,)) == expected
    assert {event.reason for event in rig.log.events(RequestPreempted)} == {"dirty"}


@pytest.mark.parametrize("when", [None, "settle"])
def test_a_request_that_ended_is_dropped_whatever_the_device_says(kit, when):
    rig = kit.prepared(requests=2)
    dropped = []

    def drop(request):
        dropped.append(request)
        raise RuntimeError("drop broke")

    rig.executor.drop = drop
    rig.hook.armed = when
    asks = [rig.ask(request, RIGHT, budget=2, drafts=1) for request in range(2)]
    launch = rig.go(rig.open(*asks))
    assert dropped == [0, 1]
    for tx in launch.transactions:
        assert tx.dirty is (when is not None)
        assert tx.clip == "length"
        assert tx.ended_by is Signal.COMMITTED
    rig.check()


def test_rounds_are_numbered_and_launches_counted(kit):
    rig = kit.prepared()
    rig.hook.armed = "verify"
    rig.go(rig.open(rig.ask(0, RIGHT)))
    rig.round(0, RIGHT)
    committed = rig.log.events(RoundCommitted)
    # A rolled-back round gives its ordinal to the next try; a launch number is used once.
    assert [event.ordinal for event in committed] == [0, 1]
    assert [event.launch for event in committed] == [1, 3]


def test_time_is_counted_by_verb(kit):
    rig = kit.prepared(rounds=0)
    rig.round(0)
    spent = dict(rig.coordinator.device_ns)
    assert spent == {"draft": 1000, "verify": 1000, "accept": 1000, "settle": 1000}
    assert rig.coordinator.device_total == 4000
    times = rig.log.events(RoundCommitted)[0].times
    assert len(times) == 4
    assert times[1:] == (1, 1, 1)
    # Since the journal was opened, not since the clock began.
    assert 0 < times[0] < 1000


def test_time_of_a_program_is_its_launch_and_every_poll(kit):
    rig = kit.prepared(rounds=0, fused=True, delay=lambda launch: 2)
    rig.round(0)
    spent = dict(rig.coordinator.device_ns)
    assert spent == {"draft": 1000, "verify": 4000, "accept": 0, "settle": 1000}
