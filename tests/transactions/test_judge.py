"""A round decided from logits: laws by their words, logprobs by their definition, and no effect of the drafts."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.transactions.accept import argmax, coupled, probabilities
from txdecode.transactions.draws import ACCEPT, Words, uniform, word
from txdecode.transactions.judge import judge, log_sum
from txdecode.transactions.target import History, Target, TokenLogprobs, adjusted, filtered
from txdecode.transactions.toy_model import toy_hash

VOCAB = 6


def row(prefix):
    """Logits as a function of the tokens before."""
    state = 7
    for token in prefix:
        state = toy_hash(state, token, 1)
    return [(toy_hash(state, token, 2) % 64) / 16 for token in range(VOCAB)]


def history(prompt, generated):
    return History(prompt, {token: generated.count(token) for token in generated}, len(generated))


def plain(prompt, count, target):
    """One token at a time, without drafts; tokens and their logprobs."""
    out, entries = [], []
    while len(out) < count:
        known = (*prompt, *out)
        made = judge([row(known)], target, history(prompt, tuple(out)), (), len(known))
        out.append(made.token)
        entries.extend(made.logprobs)
    return out, entries


def speculative(prompt, count, target, guesses):
    """Rounds with the drafts that ``guesses`` makes of the text so far."""
    out, entries = [], []
    while len(out) < count:
        known = (*prompt, *out)
        drafts = guesses(len(out))
        rows = [row((*known, *drafts[:i])) for i in range(len(drafts) + 1)]
        made = judge(rows, target, history(prompt, tuple(out)), drafts, len(known))
        out += [*drafts[: len(made.path) - 1], made.token]
        entries.extend(made.logprobs)
    return out[:count], entries[:count]


TARGETS = st.builds(
    Target,
    law=st.sampled_from(("greedy", "coupled")),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from((0.3, 1.0, 1.5)),
    top_k=st.sampled_from((0, 1, 3)),
    top_p=st.sampled_from((1.0, 0.6)),
    min_p=st.sampled_from((0.0, 0.1)),
    repetition_penalty=st.sampled_from((1.0, 1.4)),
    presence_penalty=st.sampled_from((0.0, 0.5)),
    frequency_penalty=st.sampled_from((0.0, 0.5)),
    bias=st.sampled_from(((), ((1, 2.0), (3, -math.inf)))),
    min_tokens=st.sampled_from((0, 4)),
    held=st.just((0, 5)),
    logprobs=st.sampled_from((-1, 0, 2)),
)


@settings(max_examples=60, deadline=None)
@given(TARGETS, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(tuple), st.data())
def test_drafts_change_neither_text_nor_logprobs(target, prompt, data):
    text, entries = plain(prompt, 10, target)

    def guesses(done):
        right = text[done : done + data.draw(st.integers(0, 4))]
        return tuple(token if data.draw(st.integers(0, 3)) else (token + 1) % VOCAB for token in right)

    found, found_entries = speculative(prompt, 10, target, guesses)
    assert found == text
    assert found_entries == entries
    assert len(entries) == (0 if target.logprobs < 0 else 10)


def test_the_laws_take_the_words_of_their_positions():
    rows = [row((1,)), row((1, 2))]
    target = Target(law="coupled", seed=5)
    assert judge(rows, target, None, (2,), 17).token == coupled((2,), rows, Words(5, 17))[1]
    p = probabilities(rows[0])[2]
    accepted = [
        len(judge(rows, Target(law="chain", seed=seed), None, (2,), 17).path) == 2 for seed in range(400)
    ]
    assert accepted == [uniform(word(seed, ACCEPT, 17)) < p for seed in range(400)]
    assert True in accepted
    assert False in accepted


def test_chain_uses_the_proposals():
    rows = [row((1,)), row((1, 2))]
    p = probabilities(rows[0])
    accepted = [
        len(judge(rows, Target(law="chain", seed=seed), None, (2,), 17, [p]).path) for seed in range(50)
    ]
    assert set(accepted) == {2}


def test_greedy_takes_the_lowest_of_the_largest_after_the_adjustments():
    target = Target(bias=((4, 10.0), (2, 10.0)))
    made = judge([[1.0] * VOCAB], target, history((0,), ()), (), 1)
    assert made.token == 2
    assert argmax([1.0, 3.0, 3.0]) == 1


@pytest.mark.parametrize("law", ["greedy", "coupled", "chain"])
def test_logprobs_are_before_and_after(law):
    target = Target(
        law=law,
        seed=3,
        temperature=0.5,
        top_k=2,
        presence_penalty=1.0,
        bias=((1, 1.0),),
        logprobs=4,
    )
    past = history((0,), (2,))
    raw = row((0, 2))
    made = judge([raw], target, past, (), 2)
    (entry,) = made.logprobs
    assert isinstance(entry, TokenLogprobs)
    assert entry.token == made.token
    scores = filtered(adjusted(raw, target, past, ()), target)
    before = {token: math.log(p) for token, p in enumerate(probabilities(raw))}
    after = {token: math.log(p) for token, p in enumerate(probabilities(scores)) if p}
    assert entry.raw == pytest.approx(before[made.token])
    assert entry.target == pytest.approx(after[made.token])
    assert dict(entry.raw_top) == pytest.approx(
        dict(sorted(before.items(), key=lambda pair: (-pair[1], pair[0]))[:4])
    )
    assert dict(entry.target_top) == pytest.approx(
        dict(sorted(after.items(), key=lambda pair: (-pair[1], pair[0]))[:4])
    )
    assert len(entry.target_top) == (4 if law == "greedy" else 2)
    values = [value for _, value in entry.raw_top]
    assert values == sorted(values, reverse=True)


def test_alternatives_tie_to_the_lowest_id():
    made = judge([[0.0, 1.0, 1.0, 1.0]], Target(logprobs=2), None, (), 1)
    assert [token for token, _ in made.logprobs[0].raw_top] == [1, 2]


def test_accepted_drafts_have_logprobs_of_their_own_rows():
    target = Target(logprobs=0)
    text, _ = plain((1,), 4, target)
    rows = [row((1, *text[:i])) for i in range(4)]
    made = judge(rows, target, None, text[:3], 1)
    assert [entry.token for entry in made.logprobs] == text
    for entry, raw in zip(made.logprobs, rows, strict=True):
        assert entry.raw == raw[entry.token] - log_sum(raw)
        assert entry.raw_top == ()


def test_log_sum_is_of_large_scores_too():
    assert log_sum([1000.0, 1000.0]) == pytest.approx(1000 + math.log(2))
    assert log_sum([-math.inf, -1000.0]) == -1000.0


def test_a_target_is_a_value():
    assert Target(seed=1) == Target(seed=1)
    assert attrs.evolve(Target(seed=1), seed=2) != Target(seed=1)
