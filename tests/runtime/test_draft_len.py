"""Draft lengths, request by request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import Runtime
from txdecode.runtime.journal import iterate
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted
from txdecode.transactions.toy import ToyExecutor, plain

Open = Callable[..., Runtime]


def offered(log: Path, request: int) -> list[int]:
    """Drafts offered in each round of a request."""
    rounds = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    return [len(e.drafts) for e in rounds if isinstance(e, RoundCommitted) and e.request == request]


@pytest.mark.parametrize("fused", [False, True])
def test_each_request_has_its_own(fused: bool, opened: Open, log: Path) -> None:
    toy = ToyExecutor(accuracy=8, fused=fused, rows_max=6)
    runtime = opened(toy, draft="executor", draft_len=2)
    lengths: list[Any] = [None, 0, 1, 4, 15, "additive", "additive:3"]
    handles = [runtime.submit([7, i], max_tokens=40, draft_len=length) for i, length in enumerate(lengths)]
    runtime.run()
    runtime.close()
    for i, handle in enumerate(handles):
        assert list(handle.result().ids) == plain([7, i], 40, 48)
    by_length = [offered(log, request) for request in range(len(lengths))]
    # The first round is the last prompt row; then what was asked, as far as the executor is wide.
    assert [rounds[0] for rounds in by_length] == [0] * len(lengths)
    assert set(by_length[0][1:-1]) == {2}
    assert set(by_length[1]) == {0}
    assert set(by_length[2][1:-1]) == {1}
    assert set(by_length[3][1:-1]) == {4}
    assert set(by_length[4][1:-1]) == {5}
    # All drafts are right: one, then two more each time, up to the cap.
    assert by_length[5][1:4] == [1, 3, 5]
    assert set(by_length[6][2:-1]) == {3}


def test_no_more_drafts_than_the_budget_leaves(opened: Open, log: Path) -> None:
    runtime = opened(ToyExecutor(accuracy=8), draft="executor", draft_len=7)
    runtime.submit([7], max_tokens=4)
    runtime.run()
    runtime.close()
    # One token from the prompt row, then two drafts and the token after them.
    assert offered(log, 0) == [0, 2]


def test_a_controller_hears_of_accepted_drafts_before_the_clip(opened: Open, log: Path) -> None:
    text = plain([7], 40, 48)
    stop = next(i for i in range(8, 40) if text[i] not in text[:i])
    runtime = opened(ToyExecutor(accuracy=8), draft="executor", draft_len=7)
    handle = runtime.submit([7], max_tokens=40, stop_ids=[text[stop]])
    runtime.run()
    stats = handle.result().stats
    assert stats.accepted == stats.drafted > stats.emitted - stats.rounds


def test_drafts_get_shorter_before_somebody_is_preempted(opened: Open, log: Path) -> None:
    runtime = opened(ToyExecutor(accuracy=8, page_count=4, page=4), draft="executor", draft_len=3)
    older = runtime.submit([7, 7, 7], max_tokens=10)
    younger = runtime.submit([5] * 5, max_tokens=4, draft_len=0)
    for _ in range(3):
        runtime.step()
    # Each of them held two of the four pages, and the older one had room for one row more: it took that.
    assert (len(older.published), len(younger.published)) == (6, 3)
    runtime.run()
    # At the next row there was none left.
    assert [older.result().stats.preemptions, younger.result().stats.preemptions] == [0, 1]
    runtime.close()
    assert offered(log, 0)[:3] == [0, 3, 0]


def test_preempted_requests_keep_their_length(opened: Open, log: Path) -> None:
    runtime = opened(ToyExecutor(accuracy=8), draft="executor", draft_len=2)
    handle = runtime.submit([7], max_tokens=30, draft_len=3)
    runtime.step()
    runtime.preempt(handle)
    runtime.run()
    runtime.close()
    assert set(offered(log, 0)[1:-1]) == {3}
