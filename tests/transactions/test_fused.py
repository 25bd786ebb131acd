"""Programs in flight: late and reordered results, stale ones, and pages that stay taken until they retire."""

from __future__ import annotations

import itertools

import pytest

from txdecode.state.errors import LedgerExhausted
from txdecode.transactions.events import RoundCommitted, RoundRolledBack, RuntimeNote
from txdecode.transactions.phase import Phase, Signal
from txdecode.transactions.toy import ToyExecutor

RIGHT = (True, True, False)


def flying(kit, requests=1, polls=2, **toy):
    rig = kit.Rig(fused=True, delay=lambda launch: polls, **toy)
    for request in range(requests):
        rig.enter(request, kit.PROMPT[request:], 16)
    return rig


@pytest.mark.parametrize("delays", list(itertools.permutations((0, 2, 5))))
def test_launches_may_end_in_any_order(kit, delays):
    rig = kit.Rig(fused=True, delay=lambda launch: delays[(launch - 1) % 3])
    for request in range(3):
        rig.enter(request, kit.PROMPT[request:], 10)
    expected = {request: rig.oracle(request, 10) for request in range(3)}
    text = {request: [] for request in range(3)}
    launches = [rig.open(rig.ask(request, RIGHT)) for request in range(3)]
    while launches:
        for launch in list(launches):
            if rig.coordinator.advance(launch):
                launches.remove(launch)
                (tx,) = launch.transactions
                text[tx.request] += tx.emitted
                if tx.clip == "none":
                    launches.append(rig.open(rig.ask(tx.request, RIGHT)))
        rig.check([tx for launch in launches for tx in launch.open])
    assert text == expected
    assert not rig.coordinator.flights


def test_a_program_that_runs_leaves_everything_as_it_is(kit):
    rig = flying(kit, polls=3)
    launch = rig.open(rig.ask(0, RIGHT))
    before = rig.standing()
    for _ in range(4):
        assert not rig.coordinator.advance(launch)
        assert launch.transactions[0].phase is Phase.VERIFY
        assert rig.coordinator.in_flight(0) is launch
        assert rig.standing() == before
    assert not rig.coordinator.advance(launch)
    assert launch.transactions[0].phase is Phase.COMMIT
    assert rig.coordinator.in_flight(0) is None
    assert rig.standing() == before
    assert rig.coordinator.advance(launch)
    rig.check()


def test_a_round_that_ended_before_the_program_began_is_not_in_it(kit):
    rig = flying(kit, requests=2)
    launch = rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT))
    rig.coordinator.interrupts[0] = Signal.CANCEL
    rig.coordinator.advance(launch)
    assert rig.coordinator.in_flight(0) is None
    assert rig.coordinator.in_flight(1) is launch
    rig.residency.finish(0, "cancelled")
    rig.conserve(launch.open)
    rig.go(launch)
    assert launch.fault is None
    assert launch.transactions[1].ended_by is Signal.COMMITTED
    assert not rig.log.events(RuntimeNote)
    rig.check()


@pytest.mark.parametrize("signal", [Signal.CANCEL, Signal.PREEMPT])
@pytest.mark.parametrize("leave", ["evict", "finish"])
def test_what_a_program_names_stays_taken_until_it_retires(kit, signal, leave):
    # 4 pages a group: the request holds 2 and reserved 1, so a second one of 9 tokens can't be had yet.
    rig = flying(kit, page_count=4)
    rig.round(0)
    launch = rig.open(rig.ask(0, RIGHT))
    rig.coordinator.advance(launch)
    (tx,) = launch.transactions
    rig.coordinator.interrupts[0] = signal
    assert not rig.coordinator.advance(launch)
    del rig.coordinator.interrupts[0]
    assert tx.ended_by is signal
    assert launch.retained == [tx.reservation]
    held = rig.store.pools.holdings(0)
    if leave == "evict":
        rig.residency.evict(0, "asked")
    else:
        rig.residency.finish(0, "cancelled")
    assert launch.retired == [held]
    named = {*tx.plan.pages[0]}
    assert named.isdisjoint(rig.store.pools.pages[0].free())
    rig.conserve()
    rig.submit(1, (7,) * 9, 8)
    rig.residency.admit(1)
    with pytest.raises(LedgerExhausted, match="kv"):
        rig.prefill(1)
    rig.conserve()
    # The program writes at the last moment; only then are its pages anybody's.
    rig.go(launch)
    assert not launch.retained
    assert not launch.retired
    (note,) = rig.log.events(RuntimeNote)
    assert note.kind == "stale result dropped"
    assert note.data == {"request": 0, "epoch": 0, "current": 1 if leave == "evict" else -1}
    rig.prefill(1)
    rig.check()
    expected = rig.oracle(1, 8)
    assert rig.finish(1, ((True, False),)) == expected
    if leave == "evict":
        rig.residency.admit(0)
        rig.prefill(0)
        rig.round(0, RIGHT)
        rig.check()


@pytest.mark.parametrize("leave", ["evict", "finish"])
def test_a_result_of_an_older_epoch_is_dropped_and_noted(kit, leave):
    rig = flying(kit, requests=2, polls=1)
    launch = rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT))
    rig.coordinator.advance(launch)
    # Nobody rolled the round back: it is the epoch that tells.
    if leave == "evict":
        rig.recompute(0)
    else:
        rig.residency.finish(0, "cancelled")
    standing = rig.ledgers.digests
    rig.coordinator.advance(launch)
    assert rig.ledgers.digests == standing
    rig.go(launch)
    first, second = launch.transactions
    assert launch.fault is None
    assert (first.ended_by, second.ended_by) == (Signal.CANCEL, Signal.COMMITTED)
    (note,) = rig.log.events(RoundRolledBack)
    assert (note.request, note.phase, note.detail) == (0, Phase.VERIFY, "stale epoch")
    assert [event.kind for event in rig.log.events(RuntimeNote)] == ["stale result dropped"]
    assert [event.request for event in rig.log.events(RoundCommitted)] == [1]
    rig.check()
    for request in list(rig.ledgers.tokens.sequences):
        expected = rig.oracle(request, 16)
        assert rig.finish(request, (RIGHT,)) == expected


def test_pages_of_each_epoch_wait_for_their_own_program(kit):
    """Two programs of one request, of two epochs, the older one first to retire: what the second one names
    stays taken."""
    delays = {2: 3, 3: 9}
    rig = kit.Rig(fused=True, delay=lambda launch: delays.get(launch, 0))
    rig.enter(0, kit.PROMPT, 16)
    rig.round(0)
    launches = []
    for _ in range(2):
        launch = rig.open(rig.ask(0, RIGHT))
        rig.coordinator.advance(launch)
        rig.recompute(0)
        launches.append(launch)
    older, younger = launches
    rig.go(older)
    assert older.done
    assert younger.ticket is not None
    named = set(younger.transactions[0].plan.pages[0])
    assert named.isdisjoint(rig.store.pools.pages[0].free())
    rig.check(younger.open)
    rig.go(younger)
    rig.check()
    assert len(rig.log.events(RuntimeNote)) == 2
    expected = rig.oracle(0, 16)
    assert rig.finish(0, (RIGHT,)) == expected


def test_no_round_begins_under_a_program_of_the_same_epoch(kit):
    # Its late rows would fall on those of the new round.
    rig = flying(kit)
    launch = rig.open(rig.ask(0, RIGHT))
    rig.coordinator.advance(launch)
    rig.coordinator.interrupts[0] = Signal.PREEMPT
    rig.coordinator.advance(launch)
    rig.coordinator.interrupts.clear()
    assert not rig.coordinator.has_round(0)
    with pytest.raises(AssertionError, match="program still holds request 0"):
        rig.coordinator.begin(rig.ask(0, ()))
    rig.go(launch)
    rig.round(0, RIGHT)
    rig.check()


@pytest.mark.parametrize("verb", ["collect", "collect:late"])
def test_a_program_that_fails_gives_back_what_it_held(kit, verb):
    rig = flying(kit, requests=2)
    launch = rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT))
    rig.coordinator.advance(launch)
    rig.coordinator.interrupts[0] = Signal.CANCEL
    rig.coordinator.advance(launch)
    rig.coordinator.interrupts.clear()
    rig.residency.finish(0, "cancelled")
    rig.hook.armed = verb
    rig.go(launch)
    assert str(launch.fault) == f"{verb} broke"
    assert launch.transactions[1].ended_by is Signal.FAULT
    assert not launch.retained
    assert not launch.retired
    rig.check()
    expected = rig.oracle(1, 16)
    assert rig.finish(1, (RIGHT,)) == expected


def test_a_log_that_refuses_the_note_of_a_stale_result_is_a_fault(kit):
    rig = flying(kit, requests=2, polls=0)
    launch = rig.open(rig.ask(1, RIGHT), rig.ask(0, RIGHT))
    rig.coordinator.advance(launch)
    rig.recompute(0)
    before = rig.standing()
    rig.log.refusing = True
    rig.go(launch)
    assert isinstance(launch.fault, kit.LogRefused)
    assert [tx.ended_by for tx in launch.transactions] == [Signal.FAULT] * 2
    rig.log.refusing = False
    # The reservations of both are free again; nothing else moved.
    assert rig.standing()[:2] == before[:2]
    rig.check()


def test_the_toy_forgets_rounds_that_were_abandoned_in_flight(kit):
    rig = flying(kit, requests=2)
    launch = rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT))
    rig.coordinator.advance(launch)
    rig.coordinator.interrupts[0] = Signal.CANCEL
    rig.go(launch)
    rig.coordinator.interrupts.clear()
    assert not rig.executor._scratch
    # A program that failed leaves no mark on the next one of that sequence.
    launch = rig.open(rig.ask(0, RIGHT))
    rig.coordinator.advance(launch)
    rig.coordinator.interrupts[0] = Signal.CANCEL
    rig.coordinator.advance(launch)
    rig.coordinator.interrupts.clear()
    rig.hook.armed = "collect"
    rig.go(launch)
    tx = rig.round(0, RIGHT)
    assert not tx.dirty
    assert not rig.executor._scratch
    rig.check()


def test_an_executor_that_is_not_fused_cannot_launch():
    with pytest.raises(Exception, match="not fused"):
        ToyExecutor().launch(1, [])
