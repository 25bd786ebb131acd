"""Logprobs of emitted tokens and of the most likely alternatives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from txdecode.kernels.sampling.blocks import largest
from txdecode.kernels.sampling.filters import Candidates
from txdecode.transactions.target import Target, TokenLogprobs

_Top = tuple[tuple[int, float], ...]


def logprobs(
    logits: torch.Tensor,
    adjusted: torch.Tensor,
    kept: Candidates,
    tokens: Sequence[int],
    target: Target,
) -> tuple[TokenLogprobs, ...]:
    """Of row i of each and of ``tokens[i]``: raw logprobs from ``logits`` [rows, vocab], fp32, those of the target
    distribution from the candidates that it left of the ``adjusted`` logits, with ``target.logprobs`` alternatives.

    A row's values do not depend on other rows or on padding, to the bit.
    """
    count = target.logprobs
    raw = logits.double()
    raw_norms = _log_sums(raw)
    raw_tops = _tops(*_largest(logits, count), 1.0, raw_norms)
    norms = _log_sums(kept.scores)
    if kept.ids is None:
        temperature = 1.0 if target.law == "greedy" else target.temperature
        tops = _tops(*_largest(adjusted, count), temperature, norms)
    else:
        order = kept.scores.sort(dim=-1, descending=True, stable=True)
        ids = kept.ids.gather(1, order.indices[:, :count]).tolist()
        tops = _tops(ids, order.values[:, :count].tolist(), 1.0, norms)
    made = []
    for row, token in enumerate(tokens):
        if kept.ids is None:
            score = float(kept.scores[row, token])
        else:
            # A token that no filter left can only be a draft that stands where p and q agree.
            score = max(kept.scores[row][kept.ids[row] == token].tolist(), default=-math.inf)
        value = float(raw[row, token]) - raw_norms[row]
        made.append(TokenLogprobs(token, value, score - norms[row], raw_tops[row], tops[row]))
    return tuple(made)


def _largest(values: torch.Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
    if not count:
        return [[]] * values.shape[0], [[]] * values.shape[0]
    ids, found = largest(values, count)
    return ids.tolist(), found.tolist()


def _tops(
    ids: list[list[int]], values: list[list[float]], temperature: float, norms: list[float]
) -> list[_Top]:
    return [
        tuple(
            (token, value / temperature - norm)
            for token, value in zip(*pairs, strict=True)
            if value > -math.inf
        )
        for *pairs, norm in zip(ids, values, norms, strict=True)
    ]


def _log_sums(scores: torch.Tensor) -> list[float]:
    """Logarithms of the sums of exp(``scores``), one for each row.

    A cumulative sum runs from the left whatever the shape, where ``torch.sum`` groups terms by it.
    """
    most = scores.amax(-1, keepdim=True)
    totals = (scores - most).exp_().cumsum(-1)[:, -1].tolist()
    return [top + math.log(total) for top, total in zip(most.flatten().tolist(), totals, strict=True)]
