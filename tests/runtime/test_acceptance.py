"""Acceptance by depth, read from a log, against the counts that the runtime kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from txdecode.runtime import Runtime
from txdecode.runtime.acceptance import Depth, acceptance_by_depth
from txdecode.runtime.journal import JournalError
from txdecode.transactions.toy import ToyExecutor


def test_depths_are_counted_round_by_round(opened: Callable[..., Runtime], log: Path) -> None:
    runtime = opened(ToyExecutor(accuracy=6, page_count=200, context=512), draft="mtp", draft_len=4)
    results = [runtime.submit([seed, 2, 3], max_tokens=40).result() for seed in (1, 5, 9)]
    found = acceptance_by_depth(log)
    assert [item.depth for item in found] == [1, 2, 3, 4]
    assert sum(item.offered for item in found) == sum(result.stats.drafted for result in results) > 0
    assert sum(item.accepted for item in found) == sum(result.stats.accepted for result in results) > 0
    assert found[0].reached == found[0].offered
    for before, item in itertools.pairwise(found):
        assert item.reached <= before.accepted
        assert item.accepted <= item.reached <= item.offered <= before.offered


def test_a_log_without_drafts_has_no_depths(opened: Callable[..., Runtime], log: Path) -> None:
    opened(ToyExecutor()).submit([1, 2], max_tokens=5).result()
    assert acceptance_by_depth(log) == ()


def test_shares() -> None:
    assert (Depth(2, 8, 4, 3).share, Depth(2, 8, 4, 3).conditional) == (0.375, 0.75)
    assert Depth(2, 8, 0, 0).conditional is None


def test_a_log_that_is_not_there(log: Path) -> None:
    with pytest.raises(JournalError):
        acceptance_by_depth(log)
