"""The state machine over the toy executor, and proof that it reaches every state that it is there for.

``TXDECODE_MACHINE=nightly`` runs more and longer programs, drawn anew each time.
"""

from __future__ import annotations

import functools
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from txdecode.runtime.testing import BEHAVIOURS, DISK_FAULTS, VERBS, WHEN, Harness, machine_for, toy_harness
from txdecode.runtime.testing.faults import possible
from txdecode.runtime.testing.world import DRAFTS, Draft
from txdecode.state.rng import LAWS
from txdecode.transactions.executor import ROLLBACKS
from txdecode.transactions.phase import TRANSITIONS, Phase

PROFILES = {
    "ci": settings(max_examples=24, stateful_step_count=30, derandomize=True, database=None),
    "nightly": settings(max_examples=400, stateful_step_count=60, print_blob=True),
}
PROFILE = settings(
    PROFILES[os.environ.get("TXDECODE_MACHINE", "ci")],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def toys(fused: bool, accuracies: tuple[int, ...]) -> st.SearchStrategy[Harness]:
    return st.builds(
        toy_harness,
        fused=st.just(fused),
        accuracy=st.sampled_from(accuracies),
        page=st.sampled_from((2, 4, 8)),
        page_count=st.sampled_from((12, 20, 40)),
        context=st.sampled_from((48, 128)),
        batch_max=st.sampled_from((2, 3, 4)),
        rows_max=st.sampled_from((2, 5, 8)),
        rollback=st.sampled_from(ROLLBACKS),
        delays=st.sampled_from(((0,), (0, 2, 1), (3, 0, 1, 0))),
    )


SEEDS = (6, 7, 8, 9)

# Apart, so that each gets its share: what is drawn together is not drawn evenly.
SHARES: dict[str, tuple[st.SearchStrategy[Harness], tuple[Draft, ...]]] = {
    "verbs, drafted by the executor": (toys(False, (4, 7, 8)), ("executor",)),
    "verbs, drafted by both": (toys(False, (4, 7)), ("mtp+lookup",)),
    "verbs, drafted by the host": (toys(False, (0, 7)), ("scripted", "lookup", "scripted", "none")),
    "fused": (toys(True, (0, 4, 7, 8)), DRAFTS),
}

EVENTS = sorted(
    {f"edge {phase.name} {signal.name}" for phase, signal in TRANSITIONS}
    | {f"fault {verb} {when}" for verb in VERBS for when in WHEN if possible(verb, when)}
    | {f"{interrupt} at {phase.name}" for interrupt in ("cancel", "preempt") for phase in Phase}
    | {f"drafter {behaviour}" for behaviour in BEHAVIOURS}
    | {f"disk {fault}" for fault in DISK_FAULTS}
    | {f"preempted {reason}" for reason in ("pages", "asked", "fault", "dirty", "recovered")}
    | {f"finish {reason}" for reason in ("stop", "length", "cancelled", "error")}
    | {f"style {style}" for style in ("verbs", "fused")}
    | {f"rollback {form}" for form in ROLLBACKS}
    | {f"draft {draft}" for draft in DRAFTS}
    | {"drafts extended", "drafts extended, and accepted"}
    | {f"durability {durability}" for durability in ("none", "write", "fsync")}
    | {f"law {law}" for law in LAWS}
    | {
        "crash",
        "crash with cut tail",
        "recover",
        "reopen",
        "rotated",
        "journal failed",
        "note stale result dropped",
    }
    | {"submit", "submit while others run", "submit refused", "cancel", "preempt", "finish"}
)


@functools.cache
def run(share: str, seed: int) -> Counter[str]:
    """Run the machine once; counts of what happened."""
    tally: Counter[str] = Counter()
    harnesses, drafts = SHARES[share]
    machine = machine_for(harnesses, drafts=drafts, tally=tally)
    run_state_machine_as_test(seeded(seed)(machine) if PROFILE.derandomize else machine, settings=PROFILE)
    return tally


@functools.cache
def reached() -> Counter[str]:
    """What happened in all shares together; more programs where something did not."""
    total: Counter[str] = Counter()
    for seed in SEEDS:
        for share in SHARES:
            total += run(share, seed)
        if all(total[event] for event in EVENTS):
            break
    return total


@pytest.mark.parametrize("share", SHARES)
def test_no_promise_is_broken(share: str) -> None:
    run(share, SEEDS[0])


@pytest.mark.parametrize("event", EVENTS)
def test_the_machine_gets_there(event: str) -> None:
    assert reached()[event]
