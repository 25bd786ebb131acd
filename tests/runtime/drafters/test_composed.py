"""When a copy replaces learned drafts, and what extends them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.runtime.drafters import PromptLookup
from txdecode.runtime.drafters.composed import REPLACE_MATCH, extension, matches, replacement
from txdecode.transactions.executor import Copy, MatchingDrafter

TOKENS = st.lists(st.integers(0, 2), max_size=30)


def scan(known: Sequence[int], after: Sequence[int], count: int, low: int, high: int) -> Copy:
    """The definition: the longest suffix of all tokens, at its latest occurrence that ends within the known ones."""
    whole = [*known, *after]
    for n in range(min(high, len(whole)), low - 1, -1):
        for end in range(len(known) - 1, n - 1, -1):
            if list(known[end - n : end]) == whole[len(whole) - n :]:
                return Copy(tuple(known[end : end + count]), n)
    return Copy()


@settings(max_examples=300, deadline=None)
@given(TOKENS, TOKENS, st.integers(0, 6), st.integers(1, 3), st.integers(0, 3))
def test_a_match_is_the_naive_scan(
    known: list[int], after: list[int], count: int, low: int, more: int
) -> None:
    drafter: MatchingDrafter = PromptLookup(low, low + more)
    drafter.begin(1, known)
    assert drafter.match(1, count, after[:8]) == scan(known, after[:8], count, low, low + more)
    assert drafter.propose(1, count) == drafter.match(1, count).tokens


class Plain:
    """A drafter of the caller's own, with nothing but the protocol."""

    name = "plain"

    def begin(self, request: int, tokens: Sequence[int]) -> None: ...

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        return (7, 8, 9)[:count]

    def commit(self, request: int, tokens: Sequence[int]) -> None: ...

    def end(self, request: int) -> None: ...


def test_a_drafter_that_does_not_match_proposes_and_never_extends() -> None:
    assert not matches(Plain())
    assert replacement(Plain(), 0, 2) == (7, 8)
    assert extension(Plain(), 0, 2, (1,)) == ()


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], (4, 9)),
        ([1, 2, 3, 4, 9, 5, 2, 3], ()),  # Two tokens agree.
        ([1, 2, 3, 4, 9, 5, 6, 3], ()),
        ([1, 2, 3], ()),
    ],
)
def test_a_copy_replaces_where_enough_agrees(known: list[int], expected: tuple[int, ...]) -> None:
    drafter = PromptLookup()
    assert matches(drafter)
    drafter.begin(0, known)
    assert tuple(replacement(drafter, 0, 2)) == expected
    assert REPLACE_MATCH == 3


def test_a_copy_extends_where_the_learned_drafts_end() -> None:
    drafter = PromptLookup()
    drafter.begin(0, [1, 2, 3, 4, 5, 9, 8])
    assert tuple(extension(drafter, 0, 2, (2, 3))) == (4, 5)
    assert tuple(extension(drafter, 0, 9, (6, 4))) == (5, 9, 8)
    assert tuple(extension(drafter, 0, 2, (6, 7))) == ()
