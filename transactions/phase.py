"""The phases of a round, as data.

Idle ─begin─► Draft ─drafted─► Verify ─verified─► Accept ─accepted─► Commit ─committed─► Idle
                └──── fault, cancel, preempt ────► Rollback ─rolled_back─► Idle
                            (from Draft, Verify, Accept; from Commit only a refused append)
"""

from __future__ import annotations

from enum import IntEnum

from txdecode.state.errors import TxDecodeError


class Phase(IntEnum):
    """What a round is doing. The numbers are in the log."""

    IDLE = 0
    DRAFT = 1
    VERIFY = 2
    ACCEPT = 3
    COMMIT = 4
    ROLLBACK = 5


class Signal(IntEnum):
    """What moves a round on."""

    BEGIN = 0
    DRAFTED = 1
    VERIFIED = 2
    ACCEPTED = 3
    COMMITTED = 4
    FAULT = 5
    CANCEL = 6
    PREEMPT = 7
    REFUSED = 8
    ROLLED_BACK = 9


TRANSITIONS: dict[tuple[Phase, Signal], Phase] = {
    (Phase.IDLE, Signal.BEGIN): Phase.DRAFT,
    (Phase.DRAFT, Signal.DRAFTED): Phase.VERIFY,
    (Phase.VERIFY, Signal.VERIFIED): Phase.ACCEPT,
    (Phase.ACCEPT, Signal.ACCEPTED): Phase.COMMIT,
    (Phase.COMMIT, Signal.COMMITTED): Phase.IDLE,
    # Before the append a commit has no effect, so a journal that refuses it is still a rollback.
    (Phase.COMMIT, Signal.REFUSED): Phase.ROLLBACK,
    (Phase.ROLLBACK, Signal.ROLLED_BACK): Phase.IDLE,
    **{
        (phase, signal): Phase.ROLLBACK
        for phase in (Phase.DRAFT, Phase.VERIFY, Phase.ACCEPT)
        for signal in (Signal.FAULT, Signal.CANCEL, Signal.PREEMPT)
    },
}


class IllegalTransition(TxDecodeError):
    """A signal that the phase does not know: a fault of the runtime or of a log."""

    def __init__(self, phase: Phase, signal: Signal) -> None:
        known = ", ".join(s.name.lower() for p, s in TRANSITIONS if p is phase)
        super().__init__(
            f"phase {phase.name.lower()} does not know '{signal.name.lower()}'; it knows {known}"
        )
        self.phase = phase
        self.signal = signal


def step(phase: Phase, signal: Signal) -> Phase:
    """The next phase; raises ``IllegalTransition``."""
    after = TRANSITIONS.get((phase, signal))
    if after is None:
        raise IllegalTransition(phase, signal)
    return after
