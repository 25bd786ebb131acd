"""The acceptance laws: exhaustively over small cases, against their definitions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest

from txdecode.transactions.accept import chain, coupled, greedy, inverse, probabilities, race, sum_in_order
from txdecode.transactions.draws import ACCEPT, RESIDUAL, TARGET, Words


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


# The coupled law.


def scripted(words):
    """Draws from a table by (role, row, index), 2^31 elsewhere."""
    return lambda role, row, index=0: words.get((role, row, index), 1 << 31)


def test_a_race_is_won_by_the_smallest_draw_over_weight():
    scores = [0.0, math.log(4), -math.inf, 0.5]
    for seed in range(300):
        words = Words(seed, 9)
        draws = {
            t: -math.log1p(-(words(TARGET, 2, t) + 0.5) / 2**32) / math.exp(scores[t]) for t in (0, 1, 3)
        }
        assert race(scores, words, 2) == min(draws, key=draws.__getitem__)


def test_a_race_does_not_depend_on_the_scale_of_the_weights():
    for seed in range(100):
        scores = [((seed * 7 + t * 13) % 11) / 8 for t in range(6)]
        shifted = [score - 300.0 for score in scores]
        assert race(scores, Words(seed, 1), 0) == race(shifted, Words(seed, 1), 0)


def test_equal_runners_tie_to_the_lowest_id():
    assert race([1.0] * 5, scripted({}), 0) == 0
    assert race([-math.inf, 1.0, 1.0], scripted({}), 0) == 1


@pytest.mark.parametrize("x", [0, (1 << 32) - 1])
def test_the_end_words_still_give_a_winner(x):
    # One runner with the worst word there is against another, with a weight that no fp64 product would hold.
    assert race([-800.0], scripted({(TARGET, 0, 0): x}), 0) == 0
    assert race([0.0, -800.0], scripted({(TARGET, 0, 0): (1 << 32) - 1, (TARGET, 0, 1): 0}), 0) == 0


def test_a_row_without_a_token_is_a_bug():
    with pytest.raises(AssertionError, match="no token"):
        race([-math.inf] * 3, scripted({}), 0)


@pytest.mark.parametrize("size", range(4))
def test_coupled_is_greedy_over_the_winners(size):
    for seed in range(12):
        words = Words(seed, 40)
        rows = [[((seed + 3 * row + 5 * t) % 7) / 2 for t in range(3)] for row in range(size + 1)]
        winners = [race(row, words, index) for index, row in enumerate(rows)]
        for drafts in itertools.product(range(3), repeat=size):
            assert coupled(drafts, rows, words) == naive(drafts, winners)


def test_coupled_wants_a_row_more_than_drafts():
    with pytest.raises(AssertionError, match="rows for"):
        coupled((0,), [[0.0, -math.inf]], scripted({}))


# The chain law.

QUARTERS = [tuple(Fraction(n, 4) for n in (a, b, 4 - a - b)) for a in range(5) for b in range(5 - a)]
GRID = [int((k + 0.5) / 12 * 2**32) for k in range(12)]
"""Twelve words in the middles of twelve equal parts: sums over them are exact for probabilities in quarters."""


@pytest.mark.parametrize("p", QUARTERS)
def test_chain_emits_by_the_target_whatever_the_proposal(p):
    """The law itself, summed over every draft and every word, for every p and q in quarters."""
    for q in [*QUARTERS, None]:
        emitted = [Fraction(0)] * 3
        for draft in range(3):
            drawn = Fraction(1, 3) if q is None else q[draft]
            if not drawn:
                continue
            made = Counter(
                token if len(path) == 1 else draft
                for x in GRID
                for y in GRID
                for path, token in [
                    chain(
                        (draft,),
                        [[float(v) for v in p], [0.0, 0.0, 1.0]],
                        None if q is None else [[float(v) for v in q]],
                        scripted({(ACCEPT, 0, 0): x, (RESIDUAL, 0, 0): y}),
                    )
                ]
            )
            if q is None:
                # Of a point mass the law holds for each draft by itself.
                assert [Fraction(made[t], 144) for t in range(3)] == list(p)
            emitted = [e + drawn * Fraction(made[t], 144) for t, e in enumerate(emitted)]
        assert emitted == list(p), (p, q)


@pytest.mark.parametrize("q", [QUARTERS[1], QUARTERS[5], QUARTERS[7], QUARTERS[9], QUARTERS[11]])
@pytest.mark.parametrize("p", [QUARTERS[2], QUARTERS[6], QUARTERS[8]])
def test_chain_keeps_the_law_over_a_drawn_draft_and_a_copy_behind_it(p, q):
    """Both tokens, summed over every draw of the first draft and every word. What is copied depends on the draw."""
    after = {0: QUARTERS[4], 1: QUARTERS[6], 2: QUARTERS[12]}
    emitted = [Fraction(0)] * 3
    for draft in range(3):
        if not q[draft]:
            continue
        first, second = Counter(), Counter()
        for x, y, z in itertools.product(GRID, repeat=3):
            # Of the two residual words of a round one is looked at.
            words = {(ACCEPT, 0, 0): x, (RESIDUAL, 0, 0): y, (ACCEPT, 1, 0): z, (RESIDUAL, 1, 0): y}
            rows = [[float(v) for v in row] for row in (p, after[draft], (0, 0, 1))]
            copied = (draft + 1) % 3
            path, token = chain(
                (draft, copied), rows, [[float(v) for v in q], None], scripted({**words, (TARGET, 2, 0): 0})
            )
            first[token if len(path) == 1 else draft] += 1
            if len(path) > 1:
                second[copied if len(path) == 3 else token] += 1
        emitted = [e + q[draft] * Fraction(first[t], 12**3) for t, e in enumerate(emitted)]
        if second:
            assert [Fraction(second[t], second.total()) for t in range(3)] == list(after[draft])
    assert emitted == list(p)


def test_a_rejection_ends_the_path_and_draws_from_the_residual():
    p, q = [0.2, 0.5, 0.3], [0.7, 0.2, 0.1]
    low, high = 0, (1 << 32) - 1
    words = {(ACCEPT, 0, 0): low, (ACCEPT, 1, 0): high, (RESIDUAL, 1, 0): low}
    assert chain((0, 0), [p] * 3, [q] * 2, scripted(words)) == ((0, 1), 1)
    words[RESIDUAL, 1, 0] = high
    assert chain((0, 0), [p] * 3, [q] * 2, scripted(words)) == ((0, 1), 2)


def test_words_past_the_first_rejection_are_not_looked_at():
    seen = []

    def draw(role, row, index=0):
        seen.append((role, row))
        return (1 << 32) - 1

    assert chain((0, 1, 2), [[0.1, 0.2, 0.7]] * 4, None, draw) == ((0,), 2)
    assert seen == [(ACCEPT, 0), (RESIDUAL, 0)]


def test_full_acceptance_draws_the_bonus_with_the_target_word():
    words = {(ACCEPT, 0, 0): 0, (TARGET, 1, 0): (1 << 32) - 1}
    assert chain((1,), [[0.5, 0.5], [0.25, 0.75]], None, scripted(words)) == ((0, 1), 1)
    assert chain((), [[0.25, 0.75]], None, scripted({(TARGET, 0, 0): 0})) == ((0,), 0)


@pytest.mark.parametrize("x", [0, 1 << 31, (1 << 32) - 1])
def test_what_has_no_residual_stands(x):
    """p equal to q, and a one-hot target that was copied: no word may reject."""
    p = [0.1, 0.2, 0.7]
    words = scripted({(ACCEPT, 0, 0): x})
    for draft in range(3):
        assert chain((draft,), [p, p], [p], words)[0] == (0, 1)
    assert chain((2,), [[0.0, 0.0, 1.0]] * 2, None, words)[0] == (0, 1)
    # Rounding may leave q a little above p everywhere: that is no residual either.
    assert chain((0,), [[0.1, 0.9], p[:2]], [[0.10000000000000002, 0.9]], words)[0] == (0, 1)


def test_a_draft_that_its_own_drafter_could_not_draw_is_rejected():
    assert chain((1,), [[0.5, 0.5]] * 2, [[1.0, 0.0]], scripted({(ACCEPT, 0, 0): 0})) == ((0,), 1)


@pytest.mark.parametrize(("drafts", "rows"), [((1,), 1), ((), 0), ((1,), 3)])
def test_chain_wants_a_row_more_than_drafts(drafts, rows):
    with pytest.raises(AssertionError, match="target rows"):
        chain(drafts, [[0.5, 0.5]] * rows, None, scripted({}))


@pytest.mark.parametrize("x", [*GRID, 0, (1 << 32) - 1])
def test_inverse_takes_the_first_id_past_the_word(x):
    weights = [0.0, 0.125, 0.0, 0.5, 0.375, 0.0]
    v = (x + 0.5) / 2**32
    assert inverse(weights, x) == (1 if v < 0.125 else 3 if v < 0.625 else 4)
    assert inverse([1e-300 * weight for weight in weights], x) == inverse(weights, x)


def test_probabilities_are_the_softmax():
    scores = [1.0, -math.inf, 3.0, 1.0, -900.0]
    found = probabilities(scores)
    assert sum(found) == pytest.approx(1.0)
    assert found[1] == 0.0
    assert found[2] / found[0] == pytest.approx(math.exp(2))
    assert probabilities([score + 1000 for score in scores]) == found


def test_sum_in_order_is_the_last_of_the_cumulative_sums():
    values = [0.1] * 10 + [1e16, 1.0, -1e16]
    assert sum_in_order(values) == list(itertools.accumulate(values))[-1]
    assert sum_in_order(values) != math.fsum(values)
