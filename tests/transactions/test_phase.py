"""The transition table, pair by pair."""

from __future__ import annotations

import itertools

import pytest

from txdecode.state.errors import TxDecodeError
from txdecode.transactions.phase import TRANSITIONS, IllegalTransition, Phase, Signal, step

LEGAL = {
    "IDLE BEGIN DRAFT",
    "DRAFT DRAFTED VERIFY",
    "VERIFY VERIFIED ACCEPT",
    "ACCEPT ACCEPTED COMMIT",
    "COMMIT COMMITTED IDLE",
    "COMMIT REFUSED ROLLBACK",
    "ROLLBACK ROLLED_BACK IDLE",
    *(
        f"{phase} {signal} ROLLBACK"
        for phase in ("DRAFT", "VERIFY", "ACCEPT")
        for signal in ("FAULT", "CANCEL")
    ),
    *(f"{phase} PREEMPT ROLLBACK" for phase in ("DRAFT", "VERIFY", "ACCEPT")),
}


def test_the_table_is_what_the_diagram_says():
    assert {f"{a.name} {s.name} {b.name}" for (a, s), b in TRANSITIONS.items()} == LEGAL


@pytest.mark.parametrize(("phase", "signal"), list(itertools.product(Phase, Signal)))
def test_every_pair_is_in_the_table_or_refused(phase, signal):
    if (phase, signal) in TRANSITIONS:
        assert f"{phase.name} {signal.name} {step(phase, signal).name}" in LEGAL
        return
    with pytest.raises(IllegalTransition) as error:
        step(phase, signal)
    assert (error.value.phase, error.value.signal) == (phase, signal)
    assert isinstance(error.value, TxDecodeError)
    assert phase.name.lower() in str(error.value)
    assert signal.name.lower() in str(error.value)
    for name in (s.name.lower() for p, s in TRANSITIONS if p is phase):
        assert name in str(error.value)


def test_numbers_are_in_the_log():
    assert [(phase.name, phase.value) for phase in Phase] == [
        ("IDLE", 0),
        ("DRAFT", 1),
        ("VERIFY", 2),
        ("ACCEPT", 3),
        ("COMMIT", 4),
        ("ROLLBACK", 5),
    ]
    assert [(signal.name, signal.value) for signal in Signal] == [
        ("BEGIN", 0),
        ("DRAFTED", 1),
        ("VERIFIED", 2),
        ("ACCEPTED", 3),
        ("COMMITTED", 4),
        ("FAULT", 5),
        ("CANCEL", 6),
        ("PREEMPT", 7),
        ("REFUSED", 8),
        ("ROLLED_BACK", 9),
    ]
