"""The suffix automaton against the scan that it replaces, and its size and cost in operations."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.runtime.drafters import SuffixAutomaton
from txdecode.runtime.drafters.suffix_automaton import Automaton
from txdecode.transactions.executor import Copy, Drafter, MatchingDrafter

TOKENS = st.lists(st.integers(0, 2), max_size=40)


def scan(known: Sequence[int], after: Sequence[int], count: int, low: int) -> Copy:
    """The definition: the longest suffix of all tokens, at its latest occurrence with a known token after it."""
    whole = [*known, *after]
    for n in range(len(whole), low - 1, -1):
        for end in range(len(known) - 1, n - 1, -1):
            if list(known[end - n : end]) == whole[len(whole) - n :]:
                return Copy(tuple(known[end : end + count]), n)
    return Copy()


@settings(max_examples=400, deadline=None)
@given(
    prompt=TOKENS,
    commits=st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=12),
    afters=st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=4),
    count=st.integers(0, 8),
    low=st.integers(1, 4),
)
def test_equals_the_naive_scan(
    prompt: list[int], commits: list[list[int]], afters: list[list[int]], count: int, low: int
) -> None:
    drafter: MatchingDrafter = SuffixAutomaton(low)
    known = list(prompt)
    drafter.begin(7, prompt)
    for block in [[], *commits]:
        drafter.commit(7, block)
        known += block
        for after in ([], *afters):
            expected = scan(known, after, count, low)
            assert drafter.match(7, count, after) == expected
            # Looking changes nothing.
            assert drafter.match(7, count, after) == expected
        assert drafter.propose(7, count) == scan(known, (), count, low).tokens


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=8), st.integers(1, 12), st.lists(st.integers(0, 3), max_size=6))
def test_texts_that_repeat(part: list[int], times: int, rest: list[int]) -> None:
    known = [*part * times, *rest, *part * 2]
    drafter = SuffixAutomaton()
    drafter.begin(0, known)
    for after in ((), tuple(part[:1]), tuple(part), tuple(rest)):
        assert drafter.match(0, 9, after) == scan(known, after, 9, 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_every_substring_ended_last_where_it_did(tokens: list[int]) -> None:
    made = Automaton()
    for count, token in enumerate(tokens, 1):
        made.append(token)
        for length in range(1, count + 1):
            for end in range(length - 1, count):
                wanted = tokens[end - length + 1 : end + 1]
                ends = [e for e in range(length - 1, count) if tokens[e - length + 1 : e + 1] == wanted]
                assert made.owner(end, length) == ends[-1]


def fibonacci(count: int) -> list[int]:
    word, following = [0], [0, 1]
    while len(following) < count:
        word, following = following, following + word
    return following[:count]


def texts(count: int) -> dict[str, list[int]]:
    draw = random.Random(3)
    block = [draw.randrange(50) for _ in range(97)]
    return {
        "one token": [5] * count,
        "two tokens": [0, 1] * (count // 2),
        "Fibonacci": fibonacci(count),
        "Thue-Morse": [bin(i).count("1") & 1 for i in range(count)],
        "a block, again and again": (block * (count // len(block) + 1))[:count],
        "random bits": [draw.randrange(2) for _ in range(count)],
        "random words": [draw.randrange(50_000) for _ in range(count)],
        "worst for states": [0] + [1] * (count - 2) + [2],
        "powers": [token for k in range(count // 64) for token in (1,) * (k % 63) + (2,)][:count],
    }


@pytest.mark.parametrize("name", texts(8))
def test_size_is_linear_and_so_are_steps_but_for_a_logarithm(name: str) -> None:
    tokens = texts(6000)[name]
    made = Automaton()
    for token in tokens:
        made.append(token)
    assert made.states <= 2 * len(tokens)
    edges = sum(edge >= 0 for edge in made.edge) + sum(map(len, made.more.values()))
    assert edges <= 3 * len(tokens)
    # A text of few tokens in ever new orders is the worst; a walk along all suffixes would take 3,000 for one token.
    assert made.steps <= math.log2(len(tokens)) * len(tokens), made.steps / len(tokens)
    if "token" in name or "block" in name or "words" in name:
        assert made.steps <= 4 * len(tokens)


def test_every_state_is_needed_at_most() -> None:
    # 2n - 1 states is what a text of this form has.
    made = Automaton()
    for token in [0] + [1] * 100:
        made.append(token)
    assert made.states == 2 * 101 - 1


def test_requests_do_not_see_each_other() -> None:
    drafter = SuffixAutomaton()
    drafter.begin(1, [1, 2, 3, 1, 2])
    drafter.begin(2, [1, 2, 9, 1, 2])
    assert (drafter.propose(1, 1), drafter.propose(2, 1)) == ((3,), (9,))
    drafter.end(1)
    assert drafter.propose(2, 1) == (9,)
    with pytest.raises(AssertionError, match="request 1 has not begun"):
        drafter.propose(1, 1)
    with pytest.raises(AssertionError, match="request 1 has not begun"):
        drafter.commit(1, [1])
    with pytest.raises(AssertionError, match="request 1 has not begun"):
        drafter.end(1)


def test_beginning_again_forgets() -> None:
    drafter: Drafter = SuffixAutomaton()
    drafter.begin(1, [1, 2, 3, 1, 2])
    drafter.begin(1, [1, 2])
    assert drafter.propose(1, 4) == ()
    assert drafter.name == "suffix_automaton"


@pytest.mark.parametrize(
    ("known", "after", "expected"),
    [
        ([], (), Copy()),
        ([5], (), Copy()),
        ([5, 5], (), Copy((5,), 1)),
        ([5, 5, 5, 5], (), Copy((5,), 3)),
        ([1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5], (), Copy((9, 1), 5)),
        ([1, 2, 9, 1, 2, 8, 1, 2], (), Copy((8, 1), 2)),  # The latest.
        ([7, 1, 2, 3, 8, 2, 3, 9, 1, 2, 3], (), Copy((8, 2), 3)),  # A longer match beats a later one.
        ([1, 2, 3], (2,), Copy((3,), 1)),  # The whole text with a draft behind it.
        ([1, 2, 3], (3,), Copy()),  # The only occurrence has no token after it.
        ([4, 3, 1, 3], (3,), Copy((1, 3), 1)),  # Of two the last has none.
        ([1, 2, 3, 4], (1, 2), Copy((3, 4), 2)),
        ([1, 2, 3, 4], (9,), Copy()),
    ],
)
def test_examples(known: list[int], after: tuple[int, ...], expected: Copy) -> None:
    drafter = SuffixAutomaton()
    drafter.begin(0, known)
    assert drafter.match(0, 2, after) == expected


def test_a_short_match_is_none() -> None:
    drafter = SuffixAutomaton(3)
    drafter.begin(0, [1, 2, 9, 1, 2])
    assert drafter.match(0, 4) == Copy()
    drafter.commit(0, [9])
    assert drafter.match(0, 4) == Copy((1, 2, 9), 3)


@pytest.mark.parametrize("token", [-1, 1 << 32])
def test_ids_fit_into_their_places(token: int) -> None:
    drafter = SuffixAutomaton()
    drafter.begin(0, [0, (1 << 32) - 1])
    with pytest.raises(AssertionError, match=str(token)):
        drafter.commit(0, [token])


def test_a_match_of_any_length() -> None:
    tokens = list(range(300))
    drafter = SuffixAutomaton()
    drafter.begin(0, [*tokens, 999, *tokens])
    assert drafter.match(0, 1) == Copy((999,), 300)
