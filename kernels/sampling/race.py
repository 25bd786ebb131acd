"""Exponential races over many rows: the same winners as ``txdecode.transactions.accept.race``, to the bit.

Vector forms of logarithm differ from those of ``math`` in the last place. So they only find the candidates; where
several could have won, the scalar functions of the definition decide.
"""

from __future__ import annotations

import math

import torch

from txdecode.kernels.sampling.blocks import BLOCK, block_maxima, reaching
from txdecode.kernels.sampling.philox import fill, words
from txdecode.transactions.draws import TARGET, WORDS, exponential, word

_MARGIN = 1e-9
"""Relative and absolute: far above the errors of fp64 logarithms, far below the usual distance of the best two."""

_SINGLE_MAX = 1e5
"""Up to this size a score in fp32 is within a few hundredths, which ``_SLACK`` covers."""

_SLACK = 0.1
_SLACK_RELATIVE = 1e-12
"""Of a score in fp64, where its last place may be worth more than ``_SLACK``."""

_UNIFORM_MAX = 1 - 2.0**-33
_LEADING_BLOCKS = 16
_LOG_WORDS = 32 * math.log(2)


def race(
    scores: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """Winning ids [rows], int64, of races over weights exp(``scores``), fp64 [rows, n].

    Column j is the id ``ids[row, j]`` (int64, ascending but for padding, whose score is -inf), or j itself.
    ``keys`` [rows, 2] or [1, 2] and ``positions`` [rows] as in ``philox.words``. Every row needs a finite score.
    """
    drawn = words(keys, positions, TARGET, ids, scores.shape[1])
    uniform = drawn.double().add_(0.5).mul_(2.0**-32)
    reached = scores - uniform.neg_().log1p_().neg_().log_()
    best, winner = reached.max(-1)
    margin = _MARGIN * best.abs().clamp_(min=1.0)
    near = reached >= (best - margin).unsqueeze(1)
    for row in (near.sum(-1) > 1).nonzero().flatten().tolist():
        columns = near[row].nonzero().flatten()
        order = _settle(scores[row, columns].tolist(), drawn[row, columns].tolist())
        winner[row] = columns[order]
    return winner if ids is None else ids.gather(1, winner.unsqueeze(1)).squeeze(1)


def race_of_logits(
    logits: torch.Tensor, temperature: float, keys: torch.Tensor, positions: torch.Tensor
) -> list[int]:
    """Winning ids of races over the whole vocabulary at ``temperature``: scores are ``logits`` [rows, vocab], fp32,
    over it. Every row needs a finite largest logit. The rest as in ``race``.

    E of a word is at least its uniform u. So where some id is known to reach a score L, another can win only if
    u <= exp(score - L), which needs no logarithm of its word and leaves a few ids of a row.
    """
    rows, vocab = logits.shape
    drawn = torch.empty(rows, -(-vocab // WORDS), WORDS)
    fill(drawn, keys, positions, TARGET)
    approximate = drawn.view(rows, -1)[:, :vocab]
    maxima = block_maxima(logits)
    known = _known_reach(logits, temperature, approximate, maxima)
    leading = max(float(maxima.amax(-1).abs().max()) / temperature, float(known.abs().max()))
    exact = logits if leading <= _SINGLE_MAX else logits.double()
    offset = (_LOG_WORDS + _SLACK + _SLACK_RELATIVE * leading) - known
    thresholds = torch.mul(exact, 1.0 / temperature).add_(offset.to(exact.dtype).unsqueeze(1)).exp_()
    spare = thresholds.sub_(approximate)
    row, columns, _ = reaching(spare, spare.new_zeros(rows), block_maxima(spare))
    return _decide(logits, temperature, keys, positions, row, columns)


def _known_reach(
    logits: torch.Tensor, temperature: float, approximate: torch.Tensor, maxima: torch.Tensor
) -> torch.Tensor:
    """For each row a score - log E, fp64, that some id is sure to reach: the best of those that lead the leading
    blocks. ``approximate`` are the words, rounded to fp32."""
    vocab = logits.shape[1]
    blocks = maxima.topk(min(_LEADING_BLOCKS, maxima.shape[1])).indices
    columns = (blocks.unsqueeze(2) * BLOCK + torch.arange(BLOCK)).clamp_(max=vocab - 1)
    values, inside = logits.gather(1, columns.flatten(1)).view(columns.shape).max(-1)
    leaders = columns.gather(2, inside.unsqueeze(2)).squeeze(2)
    # Rounded up past the error of fp32, so that E is never too small and what is known is true.
    uniform = approximate.gather(1, leaders).double().mul_((1 + 2.0**-22) * 2.0**-32).add_(2.0**-32)
    noise = uniform.clamp_(max=_UNIFORM_MAX).neg_().log1p_().neg_().log_()
    return (values.double() / temperature - noise).amax(-1)


def _decide(
    logits: torch.Tensor,
    temperature: float,
    keys: torch.Tensor,
    positions: torch.Tensor,
    row: torch.Tensor,
    columns: torch.Tensor,
) -> list[int]:
    """Winners among the survivors, by the definition."""
    scores = (logits[row, columns].double() / temperature).tolist()
    seeds = [low | high << 32 for low, high in keys.tolist()]
    places = positions.tolist()
    winners, best = [-1] * len(places), [-math.inf] * len(places)
    for r, token, score in zip(row.tolist(), columns.tolist(), scores, strict=True):
        if score > -math.inf:
            x = word(seeds[r if len(seeds) > 1 else 0], TARGET, places[r], token)
            reached = score - math.log(exponential(x))
            if reached > best[r]:
                best[r], winners[r] = reached, token
    assert min(winners) >= 0, "a row with no token to choose"
    return winners


def _settle(scores: list[float], drawn: list[int]) -> int:
    """Which of several wins, by the scalar functions; the first of equals."""
    reached = [score - math.log(exponential(x)) for score, x in zip(scores, drawn, strict=True)]
    return max(range(len(reached)), key=reached.__getitem__)
