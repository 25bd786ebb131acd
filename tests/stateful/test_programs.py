"""Every program passes on the toy, in both styles of the protocol and with every kind of drafter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from txdecode.runtime.journal import SEGMENT_BYTES
from txdecode.runtime.testing import Setting, programs
from txdecode.runtime.testing.world import Draft

VERBS_ONLY = {"roll_back", "cancel_behind_a_fault"}
FUSED_ONLY = {"leave_a_flight", "preempt_a_flight"}
FSYNC = {"lose_power"}
SMALL_SEGMENTS = {"rotate", "sample_and_crash", "lose_power"}

CASES = [
    (name, fused)
    for name in programs.PROGRAMS
    for fused in (False, True)
    if name not in (VERBS_ONLY if fused else FUSED_ONLY)
]


@pytest.mark.parametrize("draft", ["executor", "scripted", "lookup", "none"])
@pytest.mark.parametrize(("name", "fused"), CASES)
def test_program_passes(name: str, fused: bool, draft: Draft, play: Callable[..., None]) -> None:
    options = {"accuracy": 6, "fused": fused, "delays": (2, 0, 3), "page_count": 16, "context": 60}
    setting = Setting(
        draft=draft,
        draft_len=5,
        durability="fsync" if name in FSYNC else "write",
        paranoid=True,
        segment_bytes=4096 if name in SMALL_SEGMENTS else SEGMENT_BYTES,
        audit_every=1,
    )
    play(programs.PROGRAMS[name], options, setting)
