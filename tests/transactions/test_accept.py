"""The greedy law over every small case, against its definition."""

from __future__ import annotations

import itertools

import pytest

from txdecode.transactions.accept import greedy


def naive(drafts, targets):
    """The longest prefix of drafts, each of which is what the row before it says."""
    accepted = max(k for k in range(len(drafts) + 1) if list(drafts[:k]) == list(targets[:k]))
    return tuple(range(accepted + 1)), targets[accepted]


@pytest.mark.parametrize("size", range(5))
def test_greedy_exhaustively(size):
    for drafts in itertools.product(range(3), repeat=size):
        for targets in itertools.product(range(3), repeat=size + 1):
            assert greedy(drafts, targets) == naive(drafts, targets)
            assert greedy(list(drafts), list(targets)) == naive(drafts, targets)


@pytest.mark.parametrize(("drafts", "targets"), [((1,), (1,)), ((), ()), ((1,), (1, 2, 3))])
def test_one_target_row_more_than_drafts(drafts, targets):
    with pytest.raises(AssertionError, match="target rows"):
        greedy(drafts, targets)
