"""Penalties, bias and minimum length over the rows of a round, as ``txdecode.transactions.target.adjusted``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from txdecode.transactions.target import History, Target


def adjusted(
    logits: torch.Tensor,
    target: Target,
    history: History | None,
    drafts: Sequence[int],
    prompt: torch.Tensor | None = None,
) -> torch.Tensor:
    """``logits`` [rows, vocab], fp32, of the rows of a round, changed as ``target`` asks: a new tensor, or
    ``logits`` itself where it asks for nothing. Row i sees the first i ``drafts``.

    Computed in fp64 and rounded once. ``history`` is needed where the target changes logits. ``prompt`` may give
    its prompt as an int64 tensor, repetitions allowed; without it, it is made from the tuple.
    """
    if not target.changes_logits:
        return logits
    assert history is not None
    vocab = logits.shape[1]
    made = logits.clone()
    seen = torch.zeros(vocab, dtype=torch.bool)
    counts, bias = torch.zeros(2, vocab, dtype=torch.float64)
    biased = _ids([token for token, _ in target.bias])
    bias[biased] = torch.tensor([value for _, value in target.bias], dtype=torch.float64)
    if target.penalises:
        generated = _ids(list(history.counts))
        counts[generated] = torch.tensor(list(history.counts.values()), dtype=torch.float64)
        seen[generated] = True
        seen[_ids(history.prompt) if prompt is None else prompt] = True
    touched = seen.clone()
    touched[biased] = True
    ids = touched.nonzero().flatten()
    if ids.shape[0]:
        made[:, ids] = _changed(logits[:, ids], target, seen[ids], counts[ids], bias[ids])
    if target.penalises and drafts:
        # Only the ids of the drafts are seen differently by different rows.
        ids = _ids(sorted(set(drafts)))
        before = (_ids(drafts).unsqueeze(1) == ids).cumsum(0)
        before = torch.cat((torch.zeros_like(before[:1]), before))[: logits.shape[0]]
        made[:, ids] = _changed(
            logits[:, ids], target, seen[ids] | (before > 0), counts[ids] + before, bias[ids]
        )
    held = min(target.min_tokens - history.generated, logits.shape[0])
    if held > 0:
        made[:held, _ids(target.held)] = -math.inf
    return made


def _changed(
    logits: torch.Tensor, target: Target, seen: torch.Tensor, counts: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Logits [rows, n] after penalties and bias, rounded to fp32. The rest is [rows, n] or [n]; ``counts``, how often
    an id was generated, and ``bias`` are fp64."""
    values = logits.double()
    if target.repetition_penalty != 1.0:
        penalty = target.repetition_penalty
        values = torch.where(seen, torch.where(values < 0, values * penalty, values / penalty), values)
    if target.presence_penalty or target.frequency_penalty:
        less = target.presence_penalty + target.frequency_penalty * counts
        values = torch.where(counts > 0, values - less, values)
    return (values + bias).float()


def _ids(tokens: Sequence[int]) -> torch.Tensor:
    return torch.tensor(tokens, dtype=torch.int64)
