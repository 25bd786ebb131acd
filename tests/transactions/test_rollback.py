"""A round that ends without effect leaves nothing; one that was appended stands."""

from __future__ import annotations

import pytest

from txdecode.transactions.events import RoundRolledBack
from txdecode.transactions.phase import TRANSITIONS, Phase, Signal

RIGHT = (True, True, False)
PHASES = {"draft": Phase.DRAFT, "verify": Phase.VERIFY, "accept": Phase.ACCEPT}


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("late", ["", ":late"])
@pytest.mark.parametrize("verb", PHASES)
def test_a_fault_before_or_after_the_work_of_a_verb(kit, verb, late, rounds):
    # With its own drafter the executor fails in every verb; requests 0 and 1 share the launch.
    rig = kit.prepared(rounds=rounds, requests=2, accuracy=6)
    before = rig.standing()
    launch = rig.open(*(rig.ask(request, None, drafts=3) for request in range(2)))
    rig.hook.armed = verb + late
    rig.go(launch)
    assert str(launch.fault) == f"{verb}{late} broke"
    for tx in launch.transactions:
        assert tx.ended_by is Signal.FAULT
        assert tx.phase is Phase.IDLE
        assert not tx.dirty
    notes = rig.log.events(RoundRolledBack)
    assert [(note.request, note.phase, note.signal) for note in notes] == [
        (request, PHASES[verb], Signal.FAULT) for request in range(2)
    ]
    assert notes[0].detail == f"RuntimeError: {verb}{late} broke"
    assert (notes[0].epoch, notes[0].ordinal, notes[0].launch) == (0, rounds, launch.number)
    kit.again(rig, before, requests=2)


@pytest.mark.parametrize("verb", ["launch", "collect", "collect:late"])
@pytest.mark.parametrize("host", [True, False])
def test_a_fault_of_a_fused_program(kit, verb, host):
    rig = kit.prepared(requests=2, fused=True, accuracy=0 if host else 6, delay=lambda launch: 2)
    before = rig.standing()
    launch = rig.open(*(rig.ask(request, RIGHT if host else None, drafts=3) for request in range(2)))
    rig.hook.armed = verb
    rig.go(launch)
    assert str(launch.fault) == f"{verb} broke"
    assert [tx.ended_by for tx in launch.transactions] == [Signal.FAULT] * 2
    assert not rig.coordinator.flights
    phase = Phase.DRAFT if verb == "launch" else Phase.VERIFY
    assert {note.phase for note in rig.log.events(RoundRolledBack)} == {phase}
    kit.again(rig, before, requests=2)


def test_a_host_drafter_that_fails_is_a_fault(kit):
    rig = kit.prepared()
    before = rig.standing()
    ask = rig.ask(0, RIGHT)

    def propose(count):
        raise KeyError(count)

    launch = rig.go(rig.open(type(ask)(0, 3, ask.rules, propose)))
    assert isinstance(launch.fault, KeyError)
    kit.again(rig, before)


def test_a_long_detail_is_cut(kit):
    rig = kit.prepared()
    rig.hook.error = lambda verb: ValueError("x" * 999)
    rig.hook.armed = "verify"
    rig.go(rig.open(rig.ask(0, RIGHT)))
    assert len(rig.log.events(RoundRolledBack)[0].detail) == 200


@pytest.mark.parametrize("fused", [False, True])
def test_a_programmer_error_rolls_back_and_is_raised(kit, fused):
    rig = kit.prepared(fused=fused)
    before = rig.standing()
    rig.hook.error = AssertionError
    rig.hook.armed = "collect" if fused else "verify"
    launch = rig.open(rig.ask(0, RIGHT))
    with pytest.raises(AssertionError):
        rig.go(launch)
    assert launch.done
    assert rig.log.events(RoundRolledBack)[0].detail == "programmer error"
    kit.again(rig, before)


# Interrupts.


def boundaries(kit, fused):
    """How many advances come before the border, by its phase."""
    if fused:
        return {Phase.DRAFT: 0, Phase.VERIFY: 2, Phase.COMMIT: 4}
    return {Phase.DRAFT: 0, Phase.VERIFY: 1, Phase.ACCEPT: 2, Phase.COMMIT: 3}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("signal", [Signal.CANCEL, Signal.PREEMPT])
@pytest.mark.parametrize("phase", [Phase.DRAFT, Phase.VERIFY, Phase.ACCEPT, Phase.COMMIT])
def test_an_interrupt_at_every_border(kit, phase, signal, fused):
    steps = boundaries(kit, fused).get(phase)
    if steps is None:
        # A fused program does not stop between verify and accept.
        assert fused
        assert phase is Phase.ACCEPT
        return
    rig = kit.prepared(requests=2, fused=fused, delay=lambda launch: 2)
    standing = rig.audits()[0], rig.state(0).consumed
    launch = rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT))
    for _ in range(steps):
        assert not rig.coordinator.advance(launch)
    assert [tx.phase for tx in launch.transactions] == [phase] * 2
    rig.coordinator.interrupts[0] = signal
    rig.go(launch)
    del rig.coordinator.interrupts[0]
    first, second = launch.transactions
    assert launch.fault is None
    assert second.ended_by is Signal.COMMITTED
    if phase is Phase.COMMIT:
        # Too late: the block stands, and the caller acts on the request instead.
        assert first.ended_by is Signal.COMMITTED
        assert not rig.log.events(RoundRolledBack)
    else:
        assert first.ended_by is signal
        assert (rig.audits()[0], rig.state(0).consumed) == standing
        (note,) = rig.log.events(RoundRolledBack)
        assert (note.request, note.phase, note.signal, note.detail) == (0, phase, signal, "asked")
    rig.check()
    for request in range(2):
        expected = rig.oracle(request, 16)
        assert rig.finish(request, (RIGHT,)) == expected


@pytest.mark.parametrize("signal", [Signal.CANCEL, Signal.PREEMPT])
def test_all_of_a_launch_interrupted_is_a_launch_done(kit, signal):
    rig = kit.prepared(requests=2)
    before = rig.standing()
    launch = rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT))
    rig.coordinator.advance(launch)
    rig.coordinator.interrupts.update({0: signal, 1: signal})
    assert rig.coordinator.advance(launch)
    rig.coordinator.interrupts.clear()
    kit.again(rig, before, requests=2)


# The log.


@pytest.mark.parametrize("fused", [False, True])
def test_a_log_that_refuses_the_append(kit, fused):
    rig = kit.prepared(requests=2, fused=fused)
    settled = []
    rig.executor.settle = settled.append
    before, written = rig.standing(), len(rig.log.records)
    launch = rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT))
    rig.log.refusing = True
    with pytest.raises(kit.LogRefused):
        rig.go(launch)
    for tx in launch.transactions:
        assert tx.ended_by is Signal.REFUSED
        assert tx.phase is Phase.IDLE
    assert launch.done
    assert not settled
    assert len(rig.log.records) == written
    rig.log.refusing = False
    del rig.executor.settle
    kit.again(rig, before, requests=2)


def test_a_log_that_refuses_a_note_does_not_stop_the_rollback(kit):
    rig = kit.prepared(requests=2)
    before, written = rig.standing(), len(rig.log.records)
    rig.hook.armed = "verify"
    rig.log.refusing = True
    launch = rig.go(rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT)))
    assert [tx.ended_by for tx in launch.transactions] == [Signal.FAULT] * 2
    assert len(rig.log.records) == written
    rig.log.refusing = False
    kit.again(rig, before, requests=2)


def test_an_abandon_that_fails_is_a_dirty_device(kit):
    rig = kit.prepared()
    before = rig.standing()

    def abandon(plans):
        raise RuntimeError("abandon broke")

    rig.executor.abandon = abandon
    rig.hook.armed = "accept"
    launch = rig.go(rig.open(rig.ask(0, RIGHT)))
    assert launch.transactions[0].dirty
    assert launch.transactions[0].ended_by is Signal.FAULT
    del rig.executor.abandon
    kit.again(rig, before)


def test_a_stop_rule_that_fails_is_a_fault_of_all_its_launch(kit):
    # The second request's rule fails after the first one's was decided; both must still roll back.
    for fused in (False, True):
        rig = kit.prepared(requests=2, fused=fused)
        before = rig.standing()

        def broken(tokens):
            raise ValueError("broken rule")

        launch = rig.go(rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT, stop_text=broken)))
        assert str(launch.fault) == "broken rule"
        assert [tx.ended_by for tx in launch.transactions] == [Signal.FAULT] * 2
        kit.again(rig, before, requests=2)


def test_every_edge_of_the_table(kit):
    """One run after another until each transition was taken; the report names those that were not."""
    taken = set()

    def done(rig):
        taken.update(((before, signal), after) for _, before, signal, after in rig.edges)
        rig.check()

    for fused in (False, True):
        rig = kit.prepared(fused=fused)
        rig.finish(0, (RIGHT,))
        done(rig)
    for verb in PHASES:
        rig = kit.prepared(accuracy=6)
        rig.hook.armed = verb
        rig.go(rig.open(rig.ask(0, None, drafts=2)))
        done(rig)
        for signal in (Signal.CANCEL, Signal.PREEMPT):
            rig = kit.prepared()
            launch = rig.open(rig.ask(0, RIGHT))
            for _ in range(boundaries(kit, False)[PHASES[verb]]):
                rig.coordinator.advance(launch)
            rig.coordinator.interrupts[0] = signal
            rig.go(launch)
            done(rig)
    rig = kit.prepared()
    launch = rig.open(rig.ask(0, RIGHT))
    rig.log.refusing = True
    with pytest.raises(kit.LogRefused):
        rig.go(launch)
    done(rig)
    assert taken == set(TRANSITIONS.items())
