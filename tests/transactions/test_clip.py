"""Where a block ends, over every small case, against a token-by-token scan."""

from __future__ import annotations

import itertools

import pytest

from txdecode.transactions.clip import CLIP_REASONS, ClipRules, clip


def naive(candidates, budget, stop_ids, text_at):
    """Emit one by one; after each token ask why it might be the last: stop before length."""
    for index, token in enumerate(candidates):
        if token in stop_ids or index == text_at:
            return index + 1, "stop"
        if index + 1 == budget:
            return index + 1, "length"
    return len(candidates), "none"


def text_rule(text_at, probes):
    """A stop string that token ``text_at`` completes: found only where the probe reaches it."""
    if text_at is None:
        return None

    def probe(tokens):
        probes.append(tuple(tokens))
        return text_at if text_at < len(tokens) else None

    return probe


@pytest.mark.parametrize("size", range(1, 5))
def test_clip_exhaustively(size):
    for candidates in itertools.product(range(3), repeat=size):
        for budget in range(1, size + 2):
            for stop_ids in (frozenset(), frozenset({2}), frozenset({1, 2})):
                for text_at in (None, *range(size)):
                    probes = []
                    rules = ClipRules(budget, stop_ids, text_rule(text_at, probes))
                    found = clip(candidates, rules)
                    assert found == naive(candidates, budget, stop_ids, text_at)
                    assert clip(list(candidates), rules) == found
                    # What is probed is never more than could be emitted.
                    ids = naive(candidates, budget, stop_ids, None)[0]
                    assert all(probe == candidates[:ids] for probe in probes)
                    assert len(probes) == (0 if text_at is None else 2)


@pytest.mark.parametrize("index", range(4))
def test_a_stop_on_the_last_allowed_token_is_a_stop(index):
    candidates = [5, 6, 7, 8]
    by_id = ClipRules(index + 1, frozenset({candidates[index]}))
    by_text = ClipRules(index + 1, frozenset(), lambda tokens: index)
    assert clip(candidates, by_id) == clip(candidates, by_text) == (index + 1, "stop")
    assert clip(candidates, ClipRules(index + 1)) == (index + 1, "length")


def test_reasons_are_numbered_in_the_log():
    assert CLIP_REASONS == ("none", "stop", "length")


def test_a_round_has_candidates_and_budget():
    with pytest.raises(AssertionError, match="at least one candidate"):
        clip([], ClipRules(1))
    with pytest.raises(AssertionError, match="budget left"):
        clip([1], ClipRules(0))


@pytest.mark.parametrize("index", [-1, 2, 7])
def test_a_stop_text_lies_within_what_was_probed(index):
    with pytest.raises(AssertionError, match="stop text at"):
        clip([1, 2, 3], ClipRules(2, frozenset(), lambda tokens: index))
