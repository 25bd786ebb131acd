"""Temperature, top-k, top-p and min-p over rows of logits, as ``txdecode.transactions.target.filtered`` has them.

The vocabulary is never sorted. What could be kept is found by a bound first, and only that is sorted. Sums here
run in another order than in the definition, and exponentials differ in the last place; where that could move a
border the definition is applied to the row.
"""

from __future__ import annotations

import math

import attrs
import torch

from txdecode.kernels.sampling.blocks import block_maxima, largest, padded, reaching
from txdecode.transactions.target import Target, nucleus

_MARGIN = 1e-10
"""Relative to the total of a row, above the error of a sum of 2**18 weights in fp64."""

_BINS, _BINS_PER_UNIT = 256, 8
_DEPTH_SLACK = 1e-6


@attrs.frozen(eq=False)
class Candidates:
    """The tokens that the filters leave: ``ids`` [rows, n], int64, ascending, and ``scores`` [rows, n], fp64.

    Rows are padded with id 0 and score -inf. ``ids`` of ``None`` are all ids of the vocabulary.
    """

    ids: torch.Tensor | None
    scores: torch.Tensor


def candidates(logits: torch.Tensor, target: Target) -> Candidates:
    """The target distribution of adjusted ``logits`` [rows, vocab], fp32: exp(scores), not normalised.

    Every row needs a finite largest logit. A row's result does not depend on the other rows, but for its padding.
    """
    if target.law == "greedy":
        return Candidates(None, logits.double())
    if not target.filters:
        return Candidates(None, logits.double().div_(target.temperature))
    if target.top_k:
        ids, values = largest(logits, target.top_k)
        scores = values.double().div_(target.temperature)
        total = None
    else:
        ids, scores, total = _reaching_filters(logits, target)
    kept = _kept(logits, scores, total, target)
    widest = max(kept)
    beyond = torch.arange(widest) >= torch.tensor(kept).unsqueeze(1)
    return _by_id(ids[:, :widest], scores[:, :widest].masked_fill(beyond, -math.inf), logits.shape[1])


def _by_id(ids: torch.Tensor, scores: torch.Tensor, vocab: int) -> Candidates:
    """Candidates in the order of ids, from any order."""
    padding = scores == -math.inf
    order = ids.masked_fill(padding, vocab).sort(-1)
    return Candidates(order.values % vocab, scores.gather(1, order.indices))


def _reaching_filters(
    logits: torch.Tensor, target: Target
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """All that top-p and min-p could keep, best first: ids, scores, and the total weight of the row [rows, 1]."""
    rows = logits.shape[0]
    maxima = block_maxima(logits)
    largest_logits = maxima.amax(-1).double()
    # How far below the best score a kept one can lie.
    depth = torch.full((rows,), math.inf, dtype=torch.float64)
    total = None
    if target.top_p < 1.0:
        below = (largest_logits / target.temperature).unsqueeze(1) - logits.double().div_(target.temperature)
        weights = below.neg().exp_()
        total = weights.cumsum(-1)[:, -1:]
        depth = _depth_of_mass(below, weights, (target.top_p + _MARGIN) * total)
    if target.min_p > 0.0:
        depth.clamp_(max=-math.log(target.min_p))
    bounds = largest_logits - target.temperature * (depth + _DEPTH_SLACK)
    # Rounding to fp32 may raise a bound by half a unit in the last place.
    single = bounds.float()
    single = torch.nextafter(single, torch.full_like(single, -math.inf)).clamp(min=torch.finfo().min)
    ids, values = padded(*reaching(logits, single, maxima), rows)
    order = values.sort(dim=-1, descending=True, stable=True)
    return ids.gather(1, order.indices), order.values.double().div_(target.temperature), total


def _depth_of_mass(below: torch.Tensor, weights: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """For each row a depth [rows] such that scores less far ``below`` the best have at least the mass ``wanted``
    [rows, 1], found by the masses of bins. ``below`` [rows, vocab], fp64, is overwritten."""
    rows = below.shape[0]
    place = below.mul_(_BINS_PER_UNIT).clamp_(max=_BINS - 1).long()
    place += torch.arange(rows).unsqueeze(1) * _BINS
    masses = torch.bincount(place.flatten(), weights.flatten(), minlength=rows * _BINS).view(rows, _BINS)
    short = (masses.cumsum(-1) < wanted).sum(-1)
    # The last bin has no lower end.
    return torch.where(short < _BINS - 1, (short + 1) / _BINS_PER_UNIT, math.inf).double()


def _kept(
    logits: torch.Tensor, scores: torch.Tensor, total: torch.Tensor | None, target: Target
) -> list[int]:
    """How many of the ``scores`` [rows, n], best first, every row keeps."""
    weights = (scores - scores[:, :1]).exp_()
    valid = (scores > -math.inf).sum(-1)
    kept = valid
    close = torch.zeros(scores.shape[0], dtype=torch.bool)
    if target.top_p < 1.0:
        reached = weights.cumsum(-1)
        if total is None:
            total = reached[:, -1:]
        gap = reached - target.top_p * total
        kept = torch.minimum((gap < 0).sum(-1) + 1, valid)
        close = (gap.abs() <= _MARGIN * total).any(-1)
    if target.min_p > 0.0:
        kept = torch.minimum(kept, (weights >= target.min_p).sum(-1))
        close |= ((weights - target.min_p).abs() <= _MARGIN * target.min_p).any(-1)
    counts: list[int] = kept.tolist()
    for row in close.nonzero().flatten().tolist():
        ranked = scores[row, : int(valid[row])]
        if not target.top_k and target.top_p < 1.0:
            ranked = logits[row][logits[row] > -math.inf].double().div_(target.temperature)
            ranked = ranked.sort(descending=True).values
        counts[row] = _settle(ranked.tolist(), target)
    return counts


def _settle(ranked: list[float], target: Target) -> int:
    """How many of the scores of a row, best first, are kept by the definition."""
    weights = [math.exp(score - ranked[0]) for score in ranked]
    return sum(weight >= target.min_p for weight in weights[: nucleus(weights, target.top_p)])
