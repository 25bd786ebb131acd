"""State groups: what a description may say, and the errors' words."""

from __future__ import annotations

import pytest

from txdecode.state.errors import LedgerCorrupt, LedgerExhausted, TxDecodeError
from txdecode.state.groups import StateGroup, of_kind


def test_groups_of_a_kind_keep_their_order(kit):
    assert [group.name for group in of_kind(kit.groups, "pages")] == ["kv", "pairs"]
    assert [group.name for group in of_kind(kit.groups, "column")] == ["gdn", "kda"]
    assert [group.name for group in of_kind(kit.groups, "tokens")] == ["ngram"]


def test_a_pooled_group_needs_a_pool():
    StateGroup("ngram", "tokens", 1, 1, 8, capacity=0)
    for kind in ("pages", "column", "ring"):
        StateGroup("kv", kind, 1, 1, 8, capacity=1)
        with pytest.raises(AssertionError, match="capacity 0"):
            StateGroup("kv", kind, 1, 1, 8, capacity=0)
    with pytest.raises(AssertionError, match="granularity 0"):
        StateGroup("kv", "pages", 0, 1, 8, capacity=1)


@pytest.mark.parametrize(("columns", "counts"), [("row", [0, 1, 2, 8]), ("round", [0, 1, 1, 1])])
def test_columns_that_a_round_reserves(columns, counts):
    group = StateGroup("gdn", "column", 1, 1, 8, "target", 9, columns)
    assert [group.reserved_columns(rows) for rows in (0, 1, 2, 8)] == counts


@pytest.mark.parametrize("kind", ["pages", "ring", "tokens"])
def test_only_columns_are_reserved_by_the_round(kind):
    with pytest.raises(AssertionError, match=f"columns of kind {kind}"):
        StateGroup("kv", kind, 1, 1, 8, capacity=1, columns="round")


def test_errors_keep_what_they_say():
    corrupt = LedgerCorrupt("pages", "request 3 length", 4, 5)
    assert str(corrupt) == "ledger 'pages', request 3 length: expected 4, found 5"
    assert (corrupt.expected, corrupt.found) == (4, 5)
    assert isinstance(corrupt, TxDecodeError)
    assert isinstance(LedgerExhausted("kv", 1, 0), TxDecodeError)
