"""The target distribution of a row: each step by its definition, and the prefix that it is conditioned on."""

from __future__ import annotations

import itertools
import math
import struct

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.transactions.target import GREEDY, History, Target, adjusted, filtered, nucleus, single

INF = math.inf
SAMPLED = Target(law="coupled")
LOGITS = st.lists(
    st.integers(-24, 24).map(lambda n: n / 4) | st.floats(-30, 30, width=32), min_size=6, max_size=12
)
IDS = st.lists(st.integers(0, 5), max_size=6).map(tuple)


def history(prompt=(), generated=()):
    counts = {token: generated.count(token) for token in generated}
    return History(tuple(prompt), counts, len(generated))


# Before the temperature.


def test_repetition_penalty_is_of_every_token_seen_once():
    target = Target(repetition_penalty=2.0)
    logits = [4.0, -4.0, 4.0, -4.0, 1.0]
    made = adjusted(logits, target, history((0, 0, 1), (2, 2, 2)), (3,))
    assert list(made) == [2.0, -8.0, 2.0, -8.0, 1.0]


def test_presence_and_frequency_are_of_generated_tokens_alone():
    target = Target(presence_penalty=0.5, frequency_penalty=0.25)
    made = adjusted([1.0] * 4, target, history((0, 0, 1), (1, 1, 2)), (2, 2))
    assert list(made) == [1.0, 0.0, -0.25, 1.0]


def test_bias_is_added_after_the_penalties():
    target = Target(repetition_penalty=2.0, bias=((0, 1.0), (2, -INF), (3, 0.5)))
    assert list(adjusted([4.0, 4.0, 4.0, 4.0], target, history((0,)), ())) == [3.0, 4.0, -INF, 4.5]


@pytest.mark.parametrize("drafts", range(4))
def test_minimum_length_holds_ids_until_enough_was_generated(drafts):
    target = Target(min_tokens=3, held=(1, 3))
    made = adjusted([1.0] * 4, target, history((0,), (0,)), (0,) * drafts)
    assert list(made) == ([1.0, -INF, 1.0, -INF] if 1 + drafts < 3 else [1.0] * 4)


@settings(deadline=None)
@given(LOGITS, IDS, IDS, IDS, st.integers(0, 9), st.data())
def test_a_draft_counts_as_if_it_were_committed(logits, prompt, generated, drafts, least, data):
    """Each row sees its conditional prefix: what a plain loop would have seen there."""
    target = Target(
        repetition_penalty=data.draw(st.sampled_from((1.0, 0.5, 1.3))),
        presence_penalty=data.draw(st.sampled_from((0.0, 0.7, -0.3))),
        frequency_penalty=data.draw(st.sampled_from((0.0, 0.4))),
        bias=data.draw(st.sampled_from(((), ((0, 1.5), (4, -INF))))),
        min_tokens=least,
        held=(2, 5),
    )
    speculative = adjusted(logits, target, history(prompt, generated), drafts)
    committed = adjusted(logits, target, history(prompt, generated + drafts), ())
    assert list(speculative) == list(committed)


def test_what_changes_nothing_is_not_touched():
    logits = [1.0, 2.0]
    assert adjusted(logits, SAMPLED, None, (1,)) is logits


def test_a_changed_logit_is_rounded_once_to_fp32():
    logit = struct.unpack("<f", struct.pack("<f", 3.3))[0]
    target = Target(repetition_penalty=1.1, frequency_penalty=0.1, bias=((0, 0.01),))
    made = adjusted([logit], target, history((), (0, 0)), ())
    assert made[0] == single(logit / 1.1 - 0.2 + 0.01)
    assert made[0] == struct.unpack("<f", struct.pack("<f", made[0]))[0]


@pytest.mark.parametrize(
    ("changes", "plain", "changed", "filters"),
    [
        ({}, True, False, False),
        ({"logprobs": 0}, False, False, False),
        ({"law": "coupled"}, False, False, False),
        ({"law": "chain", "top_k": 1}, False, False, True),
        ({"law": "coupled", "top_p": 0.5}, False, False, True),
        ({"law": "coupled", "min_p": 0.5}, False, False, True),
        ({"top_k": 1}, True, False, False),
        ({"repetition_penalty": 1.1}, False, True, False),
        ({"presence_penalty": 0.1}, False, True, False),
        ({"frequency_penalty": -0.1}, False, True, False),
        ({"bias": ((0, 1.0),)}, False, True, False),
        ({"min_tokens": 1}, False, True, False),
    ],
)
def test_what_a_target_says_of_itself(changes, plain, changed, filters):
    target = attrs.evolve(GREEDY, **changes)
    assert (target.plain, target.changes_logits, target.filters) == (plain, changed, filters)


# Temperature and filters.


def kept(scores):
    return {token for token, score in enumerate(scores) if score > -INF}


@given(LOGITS, st.sampled_from((0.3, 1.0, 1.5)))
def test_temperature_divides_and_leaves_nothing_out(logits, temperature):
    target = attrs.evolve(SAMPLED, temperature=temperature)
    assert filtered(logits, target) == [logit / temperature for logit in logits]


def test_the_greedy_law_has_no_temperature_and_no_filters():
    assert filtered([1.0, 2.0], Target(temperature=0.5, top_k=1)) == [1.0, 2.0]


@settings(deadline=None)
@given(LOGITS, st.integers(1, 12), st.sampled_from((0.3, 1.0)))
def test_top_k_keeps_the_largest_and_the_lowest_ids_of_equals(logits, k, temperature):
    scores = filtered(logits, attrs.evolve(SAMPLED, top_k=k, temperature=temperature))
    keep = kept(scores)
    assert len(keep) == min(k, len(logits))
    for inside, outside in itertools.product(keep, set(range(len(logits))) - keep):
        assert (logits[inside], -inside) > (logits[outside], -outside)


@settings(deadline=None)
@given(LOGITS, st.floats(0.01, 1.0))
def test_top_p_keeps_the_fewest_that_reach_the_share(logits, top_p):
    keep = kept(filtered(logits, attrs.evolve(SAMPLED, top_p=top_p)))
    most = max(logits)
    weights = [math.exp(logit - most) for logit in logits]
    total = math.fsum(weights)
    mass = math.fsum(weights[token] for token in keep)
    last = max(keep, key=lambda token: (-logits[token], token))
    assert mass >= top_p * total * (1 - 1e-12)
    assert len(keep) == 1 or mass - weights[last] < top_p * total * (1 + 1e-12)
    for inside, outside in itertools.product(keep, set(range(len(logits))) - keep):
        assert (logits[inside], -inside) > (logits[outside], -outside)


def test_top_p_of_one_keeps_all():
    assert kept(filtered([0.0, -800.0], attrs.evolve(SAMPLED, top_p=1.0, top_k=2))) == {0, 1}


@given(LOGITS, st.floats(0.01, 1.0))
def test_min_p_keeps_what_has_the_share_of_the_likeliest(logits, min_p):
    keep = kept(filtered(logits, attrs.evolve(SAMPLED, min_p=min_p)))
    most = max(logits)
    assert keep == {token for token, logit in enumerate(logits) if math.exp(logit - most) >= min_p}


def test_the_filters_follow_each_other():
    # Of the four likeliest, 0.4/0.95 + 0.3/0.95 reach 0.7 of what top-k left; of all they would not.
    logits = [math.log(p) for p in (0.4, 0.3, 0.15, 0.1, 0.05)]
    assert kept(filtered(logits, attrs.evolve(SAMPLED, top_k=4, top_p=0.73))) == {0, 1}
    assert kept(filtered(logits, attrs.evolve(SAMPLED, top_p=0.73))) == {0, 1, 2}
    # min-p compares with the likeliest, after both.
    assert kept(filtered(logits, attrs.evolve(SAMPLED, top_k=3, min_p=0.5))) == {0, 1}
    # The temperature comes before: a cold distribution is narrower.
    assert kept(filtered(logits, attrs.evolve(SAMPLED, top_p=0.73, temperature=0.2))) == {0}


def test_forbidden_tokens_stay_out():
    logits = [1.0, -INF, 2.0]
    for changes in ({}, {"top_k": 3}, {"top_p": 0.9999999}, {"min_p": 1e-9}):
        assert kept(filtered(logits, attrs.evolve(SAMPLED, **changes))) == {0, 2}


def test_nucleus_of_equal_weights():
    for count in range(1, 9):
        for n in range(1, count + 1):
            assert nucleus([1.0] * count, n / count) == n
    assert nucleus([1.0, 0.0, 0.0], 0.5) == 1
    assert nucleus([1.0, 0.0], 1.0) == 2
