"""Prompt lookup against the scan it replaces, and its cost in operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, overload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.runtime.drafters import PromptLookup
from txdecode.transactions.executor import Drafter

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def scan(known: Sequence[int], count: int, low: int, high: int) -> tuple[int, ...]:
    """The definition: longest suffix first, latest earlier occurrence with a token after it."""
    for n in range(high, low - 1, -1):
        for end in range(len(known) - 1, n - 1, -1):
            if list(known[end - n : end]) == list(known[len(known) - n :]):
                return tuple(known[end : end + count])
    return ()


@settings(max_examples=300, deadline=None)
@given(
    prompt=TOKENS,
    commits=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=12),
    count=st.integers(0, 8),
    sizes=st.tuples(st.integers(1, 4), st.integers(0, 3)),
)
def test_equals_the_naive_scan(
    prompt: list[int], commits: list[list[int]], count: int, sizes: tuple[int, int]
) -> None:
    low, high = sizes[0], sizes[0] + sizes[1]
    drafter = PromptLookup(low, high)
    known = list(prompt)
    drafter.begin(7, prompt)
    assert drafter.propose(7, count) == scan(known, count, low, high)
    for block in commits:
        drafter.commit(7, block)
        known += block
        assert drafter.propose(7, count) == scan(known, count, low, high)
        assert drafter.propose(7, count) == scan(known, count, low, high)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), max_size=3)), max_size=40))
def test_requests_do_not_see_each_other(steps: list[tuple[int, list[int]]]) -> None:
    drafter = PromptLookup()
    known: dict[int, list[int]] = {}
    for request, block in steps:
        if request not in known:
            known[request] = []
            drafter.begin(request, ())
        drafter.commit(request, block)
        known[request] += block
        for each, tokens in known.items():
            assert drafter.propose(each, 5) == scan(tokens, 5, 1, 3)


@pytest.mark.parametrize(
    ("known", "count", "expected"),
    [
        ([], 4, ()),
        ([5], 4, ()),
        ([5, 6, 7], 4, ()),
        ([5, 5], 4, (5,)),  # The occurrence may touch the suffix; one token follows it.
        ([5, 5, 5, 5], 4, (5,)),  # The longest match, 5 5 5, ends one before the suffix.
        ([1, 2, 3, 9, 1, 2, 3, 8, 4, 1, 2, 3], 2, (8, 4)),  # The latest occurrence.
        ([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1, (7,)),  # A longer match beats a later one.
        ([1, 2, 1], 9, (2, 1)),  # Only known tokens: copying does not go on through the copy.
        ([4, 0, 0, 9, 0, 0], 1, (9,)),  # Token 0 is a token like any other.
        ([0], 3, ()),
    ],
)
def test_examples(known: list[int], count: int, expected: tuple[int, ...]) -> None:
    drafter = PromptLookup()
    drafter.begin(1, known)
    assert drafter.propose(1, count) == expected


def test_large_ids_do_not_run_into_each_other() -> None:
    drafter = PromptLookup(2, 2)
    drafter.begin(1, [1, 0, 50, 0, 1 << 31, 60, 1, 0])
    assert drafter.propose(1, 1) == (50,)


def test_begin_again_forgets_what_was_known() -> None:
    drafter = PromptLookup()
    drafter.begin(1, [1, 2, 1])
    drafter.begin(1, [1, 3, 1])
    assert drafter.propose(1, 1) == (3,)


def test_end_frees_and_later_use_is_a_programming_error() -> None:
    drafter: Drafter = PromptLookup()
    drafter.begin(1, [1, 2, 1])
    drafter.begin(2, [1, 2, 1])
    drafter.end(1)
    assert drafter.propose(2, 1) == (2,)
    assert list(vars(drafter)["_streams"]) == [2]
    with pytest.raises(AssertionError, match="request 1 has not begun"):
        drafter.propose(1, 1)
    with pytest.raises(AssertionError, match="request 1 has not begun"):
        drafter.commit(1, [1])
    with pytest.raises(AssertionError, match="request 1 has not begun"):
        drafter.end(1)


@pytest.mark.parametrize("token", [-1, 1 << 32])
def test_ids_out_of_range_are_a_programming_error(token: int) -> None:
    drafter = PromptLookup()
    with pytest.raises(AssertionError):
        drafter.begin(1, [token])


def test_wrong_arguments_are_programming_errors() -> None:
    for low, high in ((0, 3), (3, 2)):
        with pytest.raises(AssertionError):
            PromptLookup(low, high)
    drafter = PromptLookup()
    drafter.begin(1, [])
    with pytest.raises(AssertionError):
        drafter.propose(1, -1)
    assert drafter.name == "prompt_lookup"


class Counter:
    operations = 0


class CountedList(list[int]):
    """Counts the elements that are read, one by one or in slices."""

    counter: Counter

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[int]: ...
    def __getitem__(self, index: Any, /) -> Any:
        found = super().__getitem__(index)
        self.counter.operations += len(found) if isinstance(found, list) else 1
        return found

    def __iter__(self) -> Any:
        self.counter.operations += len(self)
        return super().__iter__()

    def append(self, token: int, /) -> None:
        self.counter.operations += 1
        super().append(token)


class CountedDict(dict[int, int]):
    """Counts look-ups and insertions, and forbids walks."""

    counter: Counter

    def get(self, key: int, default: Any = None, /) -> Any:
        self.counter.operations += 1
        return super().get(key, default)

    def __getitem__(self, key: int, /) -> int:
        self.counter.operations += 1
        return super().__getitem__(key)

    def __setitem__(self, key: int, value: int, /) -> None:
        self.counter.operations += 1
        super().__setitem__(key, value)

    def __iter__(self) -> Any:
        raise AssertionError("the index is walked")


@pytest.mark.parametrize("length", [100, 10_000])
@pytest.mark.parametrize("alphabet", [1, 7, 10_000])
def test_cost_does_not_depend_on_the_length_known(length: int, alphabet: int) -> None:
    drafter = PromptLookup()
    drafter.begin(1, [index * index % alphabet for index in range(length)])
    counter = Counter()
    CountedList.counter = CountedDict.counter = counter
    stream = drafter._streams[1]
    stream.tokens = CountedList(stream.tokens)
    stream.ends = tuple(CountedDict(one) for one in stream.ends)
    counter.operations = 0
    blocks = 50
    for number in range(blocks):
        drafter.commit(1, [number % alphabet, 3])
    assert counter.operations == blocks * 2 * 4  # Three insertions and one append a token.
    for count in (0, 1, 8):
        counter.operations = 0
        drafter.propose(1, count)
        assert counter.operations <= 3 + count
