"""Races: the winners of the definition, whatever the rows look like."""

from __future__ import annotations

import math

import pytest
import torch

from txdecode.kernels.sampling import race as fast
from txdecode.kernels.sampling import reference
from txdecode.transactions.draws import TARGET, exponential, key, word

INF = math.inf


def rows_of(kind: str, rows: int, vocab: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    made = 3 * torch.randn(rows, vocab, generator=random)
    if kind == "flat":
        made.zero_()
    elif kind == "peaked":
        made[:, vocab // 2] += 40.0
    elif kind == "ties":
        made.round_()
    elif kind == "holes":
        made[torch.rand(rows, vocab, generator=random) < 0.8] = -INF
        made[:, vocab - 1] = 0.5
    elif kind == "alone":
        made.fill_(-INF)
        made[:, vocab // 3] = -7.0
    elif kind == "low":
        made -= 5000.0
    return made


KINDS = ("normal", "flat", "peaked", "ties", "holes", "alone", "low")


def addresses(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.tensor([key(seed * 7919 + (row << 33)) for row in range(rows)])
    return keys, torch.arange(rows) * 3 + seed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [1, 5, 17, 256, 1000])
def test_winners_over_scores(kind: str, vocab: int) -> None:
    rows = 40 if vocab < 100 else 6
    for seed in range(3):
        scores = rows_of(kind, rows, vocab, seed).double() / 0.7
        keys, positions = addresses(rows, seed)
        expected = reference.race(scores, keys, positions)
        assert torch.equal(fast.race(scores, keys, positions), expected)
        ids = torch.arange(vocab).expand(rows, -1) * 5 + 2
        named = fast.race(scores, keys, positions, ids)
        assert torch.equal(named, reference.race(scores, keys, positions, ids))
        shared = fast.race(scores, keys[:1], positions)
        assert torch.equal(shared, reference.race(scores, keys[:1], positions))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [5, 17, 1000, 1024, 3001])
def test_winners_over_the_vocabulary(kind: str, vocab: int) -> None:
    for seed in range(4):
        logits = rows_of(kind, 3, vocab, seed)
        keys, positions = addresses(3, seed)
        for temperature in (0.02, 0.8, 1.5, 30.0):
            expected = reference.race_of_logits(logits, temperature, keys, positions)
            assert fast.race_of_logits(logits, temperature, keys, positions) == expected
        assert fast.race_of_logits(logits, 1.0, keys[:1], positions) == reference.race_of_logits(
            logits, 1.0, keys[:1], positions
        )


@pytest.mark.parametrize("temperature", [1e-30, 1e-12, 1e-6, 1e-4, 1e30])
def test_scores_beyond_single_precision(temperature: float) -> None:
    keys, positions = addresses(4, 1)
    logits = rows_of("ties", 4, 300, 5)
    expected = reference.race_of_logits(logits, temperature, keys, positions)
    assert fast.race_of_logits(logits, temperature, keys, positions) == expected


@pytest.mark.parametrize("temperature", [1e-6 * 1.37**step for step in range(8)])
def test_single_precision_is_left_where_it_would_lose_the_winner(temperature: float) -> None:
    """Scores of ten millions, whose last place in fp32 is worth more than the whole race."""
    keys, positions = addresses(12, 6)
    logits = torch.full((12, 64), 37.3)
    expected = reference.race_of_logits(logits, temperature, keys, positions)
    assert fast.race_of_logits(logits, temperature, keys, positions) == expected


def test_many_small_rows() -> None:
    """Also where the only leader drew one of the largest words, which no margin may lose."""
    logits = rows_of("normal", 3000, 5, 11)
    keys, positions = addresses(3000, 4)
    expected = reference.race_of_logits(logits, 1.0, keys, positions)
    assert fast.race_of_logits(logits, 1.0, keys, positions) == expected


def test_the_largest_words_win_where_nothing_else_can() -> None:
    """A vocabulary of one, so that the winner's word is whatever it is; the largest is met by giving it."""
    for x in (0, 1, 2**31, 2**32 - 2, 2**32 - 1):
        logits = torch.tensor([[0.0, -INF, -INF]])

        def fill(out: torch.Tensor, *_: object, x: int = x) -> None:
            out.fill_(float(x))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast, "fill", fill)
            patch.setattr(fast, "word", lambda *_, x=x: x)
            assert fast.race_of_logits(logits, 1.0, *addresses(1, 1)) == [0]


def test_finishes_within_rounding_are_settled_by_the_definition() -> None:
    """Scores chosen so that every id reaches the same number but for the last place: vector logarithms would choose
    another winner in some of the rows."""
    vocab, rows = 24, 150
    keys, positions = addresses(rows, 2)
    seeds = reference.seeds(keys, rows)
    scores = torch.tensor(
        [
            [1.0 + math.log(exponential(word(seed, TARGET, int(place), token))) for token in range(vocab)]
            for seed, place in zip(seeds, positions, strict=True)
        ],
        dtype=torch.float64,
    )
    expected = reference.race(scores, keys, positions)
    assert torch.equal(fast.race(scores, keys, positions), expected)
    assert expected.unique().numel() > 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "_MARGIN", 0.0)
        assert not torch.equal(fast.race(scores, keys, positions), expected)


def test_equal_finishes_go_to_the_lowest_id() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "words", lambda *_: torch.full((2, 6), 12345))
        patch.setattr(fast, "fill", lambda out, *_: out.fill_(12345))
        patch.setattr(fast, "word", lambda *_: 12345)
        scores = torch.tensor([[0.0, 2, 1, 2, 2, 0], [3, 3, 3, 3, 3, 3]])
        assert fast.race(scores.double(), *addresses(2, 0)).tolist() == [1, 0]
        assert fast.race_of_logits(scores, 0.9, *addresses(2, 0)) == [1, 0]


@pytest.mark.parametrize("vocab", [1000, 49_152, 32_001])
def test_a_winner_does_not_depend_on_other_rows(vocab: int) -> None:
    logits = rows_of("normal", 4, vocab, 9)
    keys, positions = addresses(4, 3)
    together = fast.race_of_logits(logits, 1.0, keys, positions)
    apart = [
        fast.race_of_logits(logits[row : row + 1], 1.0, keys[row : row + 1], positions[row : row + 1])[0]
        for row in range(4)
    ]
    assert together == apart
    assert len(set(together)) > 1
