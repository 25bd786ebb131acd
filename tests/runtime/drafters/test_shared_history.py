"""Shared history against the scan of all committed tokens that it replaces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.runtime.drafters import SharedHistory
from txdecode.runtime.drafters.shared_history import CAPACITY, COPY_MAX, SIZES
from txdecode.transactions.executor import Copy, MatchingDrafter


class Model:
    """The definition: everything in the ring as one list, found by scanning."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[tuple[int, int]] = []  # Text, token; in the order of commits.
        self.context: dict[int, list[int]] = {}
        self.text: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.texts = 0

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        if self.context.get(request) != list(tokens):
            self.texts += 1
            self.text[request] = self.texts
            self.last.pop(request, None)
        self.context[request] = list(tokens)

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            # A text whose newest token has left the ring begins anew.
            if self.last.get(request, 0) <= len(self.entries) - self.capacity:
                self.texts += 1
                self.text[request] = self.texts
            self.last[request] = len(self.entries)
            self.entries.append((self.text[request], token))
            self.context[request].append(token)

    def match(self, request: int, count: int, after: Sequence[int]) -> Copy:
        whole = [*self.context[request], *after]
        oldest = max(len(self.entries) - self.capacity, 0)
        for size in SIZES:
            if len(whole) < size:
                continue
            for end in range(len(self.entries) - 1, oldest - 1, -1):
                text = self.entries[end][0]
                before = [t for n, t in self.entries[: end + 1] if n == text]
                following = [t for n, t in self.entries[end + 1 :] if n == text]
                if following and before[-size:] == whole[-size:]:
                    return Copy(tuple(following[: min(count, COPY_MAX)]), size)
        return Copy()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 2), st.lists(st.integers(0, 1), max_size=6)),
        st.tuples(st.just("begin"), st.integers(0, 2), st.lists(st.integers(0, 1), max_size=10)),
        st.tuples(st.just("again"), st.integers(0, 2), st.just([])),
        st.tuples(st.just("end"), st.integers(0, 2), st.just([])),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, capacity=st.sampled_from((3, 9, 20, 500)), after=st.lists(st.integers(0, 1), max_size=9))
def test_equals_the_naive_scan(
    steps: list[tuple[str, int, list[int]]], capacity: int, after: list[int]
) -> None:
    drafter: MatchingDrafter = SharedHistory(capacity)
    model = Model(capacity)
    live: set[int] = set()
    for verb, request, tokens in steps:
        if verb == "begin" or request not in live:
            model.begin(request, tokens)
            drafter.begin(request, tokens)
            live.add(request)
        elif verb == "commit":
            model.commit(request, tokens)
            drafter.commit(request, tokens)
        elif verb == "again":
            drafter.begin(request, model.context[request])
        else:
            drafter.end(request)
            live.remove(request)
            del model.context[request]
        for each in live:
            assert drafter.match(each, 9, after) == model.match(each, 9, after)
            assert drafter.propose(each, 3) == model.match(each, 3, ()).tokens
    assert isinstance(drafter, SharedHistory)
    assert all(count <= capacity for count in drafter.indexed)


def made(*texts: Sequence[int]) -> SharedHistory:
    drafter = SharedHistory()
    for request, text in enumerate(texts):
        drafter.begin(request, ())
        drafter.commit(request, text)
        drafter.end(request)
    return drafter


def test_another_request_was_answered_so() -> None:
    drafter = made([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    drafter.begin(9, [50, 1, 2, 3, 4])
    assert drafter.match(9, 9) == Copy((5, 6, 7, 8, 9, 10, 11), 4)
    assert drafter.match(9, 2) == Copy((5, 6), 4)
    assert drafter.match(9, 9, (5, 6, 7, 8)) == Copy((9, 10, 11, 12), 8)
    assert drafter.match(9, 9, (5,)) == Copy((6, 7, 8, 9, 10, 11, 12), 4)


def test_eight_tokens_that_agree_beat_a_later_four() -> None:
    first, later = [1, 2, 3, 4, 5, 6, 7, 8, 70], [5, 6, 7, 8, 60]
    drafter = made(first, later)
    drafter.begin(9, [1, 2, 3, 4, 5, 6, 7, 8])
    assert drafter.match(9, 1) == Copy((70,), 8)
    drafter.begin(8, [5, 6, 7, 8])
    assert drafter.match(8, 1) == Copy((60,), 4)


def test_prompts_do_not_enter() -> None:
    drafter = SharedHistory()
    drafter.begin(0, [1, 2, 3, 4, 5, 6])
    drafter.begin(1, [1, 2, 3, 4])
    assert drafter.match(1, 9) == Copy()
    # Nor a context that is half prompt.
    drafter.commit(0, [7, 8, 9])
    drafter.begin(2, [5, 6, 7, 8])
    assert drafter.match(2, 9) == Copy()
    assert drafter.indexed == (0, 0)


def test_a_copy_stays_within_one_text() -> None:
    drafter = SharedHistory()
    drafter.begin(0, ())
    drafter.begin(1, ())
    for a, b in zip(range(1, 9), range(101, 109), strict=True):
        drafter.commit(0, [a])
        drafter.commit(1, [b])
    drafter.begin(2, [3, 4, 5, 6])
    assert drafter.match(2, 9) == Copy((7, 8), 4)
    drafter.begin(3, [103, 104, 105, 106])
    assert drafter.match(3, 9) == Copy((107, 108), 4)


@pytest.mark.parametrize("how", ["again", "in another state"])
def test_beginning_again_enters_nothing(how: str) -> None:
    drafter = SharedHistory()
    text = [1, 2, 3, 4, 5]
    drafter.begin(0, [50])
    drafter.commit(0, text)
    drafter.begin(0, [50, *text] if how == "again" else [50, *text, 9])
    drafter.commit(0, [6, 7, 8])
    drafter.begin(1, [2, 3, 4, 5])
    # What came after the restart follows only where the text is the same one.
    assert drafter.match(1, 9) == (Copy((6, 7, 8), 4) if how == "again" else Copy())


def test_what_a_request_committed_stays_when_it_ends() -> None:
    drafter = made([1, 2, 3, 4, 5])
    drafter.begin(5, [1, 2, 3, 4])
    assert drafter.match(5, 9) == Copy((5,), 4)
    with pytest.raises(AssertionError, match="request 0 has not begun"):
        drafter.commit(0, [1])
    with pytest.raises(AssertionError, match="request 0 has not begun"):
        drafter.match(0, 1)
    with pytest.raises(AssertionError, match="request 0 has not begun"):
        drafter.end(0)


def test_what_the_ring_overwrites_is_not_found() -> None:
    drafter = SharedHistory(16)
    drafter.begin(0, ())
    drafter.commit(0, [1, 2, 3, 4, 5])
    drafter.begin(1, ())
    drafter.commit(1, range(100, 111))
    drafter.begin(2, [1, 2, 3, 4])
    assert drafter.match(2, 9) == Copy((5,), 4)
    # The fifth token is still there, and what it followed is known without its tokens.
    drafter.commit(1, range(111, 114))
    assert drafter.match(2, 9) == Copy((5,), 4)
    drafter.commit(1, [114])
    assert drafter.match(2, 9) == Copy()


def test_the_latest_occurrence_outlives_the_first() -> None:
    drafter = SharedHistory(16)
    drafter.begin(0, ())
    drafter.commit(0, [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 7])
    drafter.begin(1, ())
    drafter.commit(1, range(100, 110))
    drafter.begin(2, [1, 2, 3, 4])
    assert drafter.match(2, 9) == Copy((7,), 4)


def test_a_short_stream_does_not_match_zeros() -> None:
    drafter = made([0, 0, 0, 0, 9])
    drafter.begin(1, [0, 0])
    assert drafter.match(1, 9) == Copy()
    assert drafter.match(1, 9, (0, 0)) == Copy((9,), 4)


def test_the_index_is_bounded() -> None:
    drafter = SharedHistory(64)
    drafter.begin(0, ())
    for token in range(1000):
        drafter.commit(0, [token])
    assert all(count <= 64 for count in drafter.indexed)
    assert min(drafter.indexed) > 50


@pytest.mark.parametrize("token", [-1, 1 << 32])
def test_ids_fit_into_their_places(token: int) -> None:
    drafter = SharedHistory(8)
    drafter.begin(0, ())
    with pytest.raises(AssertionError, match=str(token)):
        drafter.commit(0, [token])


def test_sizes() -> None:
    assert (CAPACITY, SIZES, COPY_MAX) == (65_536, (8, 4), 7)
    assert SharedHistory(1).name == "shared_history"
