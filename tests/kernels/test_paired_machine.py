"""The property machine on pairs of toys: random schedules with faults, crashes and preemptions, in all forms of
rollback, and the new host drafters on one toy."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import strategies as st

from tests.kernels import pairs
from txdecode.runtime.testing import check_executor, toy_harness
from txdecode.runtime.testing.world import Draft
from txdecode.transactions.executor import ROLLBACKS, Rollback

EXAMPLES = 150 if os.environ.get("TXDECODE_FULL") else 8
PAIRED: tuple[Draft, ...] = ("model", "mtp+lookup", "model+suffix", "mtp+lookup+shared", "scripted", "none")
COPIED: tuple[Draft, ...] = ("suffix", "shared", "suffix:2+shared")


@pytest.mark.parametrize("rollback", ROLLBACKS)
@pytest.mark.parametrize("paged", [False, True], ids=["all kinds of state", "pages alone"])
def test_every_promise_holds_on_a_pair(paged: bool, rollback: Rollback) -> None:
    tally: Counter[str] = Counter()
    harnesses = st.builds(
        pairs.harness,
        st.just(rollback),
        paged=st.just(paged),
        page=st.sampled_from((2, 4)),
        drafter_page=st.sampled_from((2, 8)),
        wrong=st.sampled_from((0, 2, 5)),
        page_count=st.sampled_from((16, 40)),
        context=st.just(96),
        batch_max=st.sampled_from((2, 4)),
        rows_max=st.sampled_from((3, 8)),
    )
    check_executor(harnesses, drafts=PAIRED, examples=EXAMPLES, steps=25, seed=3, shrink=False, tally=tally)
    assert tally["recover"]
    assert tally["preempted pages"]
    assert tally["preempted dirty"]
    assert tally["draft model"]
    assert tally["drafts extended, and accepted"]


def test_every_promise_holds_with_copies() -> None:
    tally: Counter[str] = Counter()
    check_executor(
        toy_harness(), drafts=COPIED, examples=EXAMPLES, steps=25, seed=4, shrink=False, tally=tally
    )
    assert all(tally[f"draft {name}"] for name in COPIED)
