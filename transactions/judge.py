"""From the logits of a round to what it decided: target distribution, law, logprobs. Pure, and the definition that
vectorised executors are tested against."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import attrs

from txdecode.transactions.accept import argmax, chain, coupled, greedy, probabilities
from txdecode.transactions.draws import Words
from txdecode.transactions.target import NO_LOGPROBS, History, Target, TokenLogprobs, adjusted, filtered


@attrs.frozen
class Judgement:
    """The accepted path of rows, the token after it, and logprobs of every candidate where they are wanted: the
    accepted drafts and that token, in order."""

    path: tuple[int, ...]
    token: int
    logprobs: tuple[TokenLogprobs, ...] = ()


def judge(
    logits: Sequence[Sequence[float]],
    target: Target,
    history: History | None,
    drafts: Sequence[int],
    position: int,
    proposals: Sequence[Sequence[float] | None] | None = None,
) -> Judgement:
    """Decide a round.

    ``logits[i]`` are the model's after row i, one row more than there are ``drafts``; ``position`` is the output
    position that row 0 decides. ``proposals[i]`` are the probabilities that draft i was drawn from, ``None`` for a
    point mass, and no list where all of them are; only the chain law looks at them. ``history`` is needed where the
    target changes logits.
    """
    scores = [
        filtered(adjusted(row, target, history, drafts[:index]), target) for index, row in enumerate(logits)
    ]
    words = Words(target.seed, position)
    if target.law == "greedy":
        path, token = greedy(drafts, [argmax(row) for row in scores])
    elif target.law == "coupled":
        path, token = coupled(drafts, scores, words)
    else:
        path, token = chain(drafts, [probabilities(row) for row in scores], proposals, words)
    if target.logprobs == NO_LOGPROBS:
        return Judgement(path, token)
    chosen = (*drafts[: len(path) - 1], token)
    reported = tuple(
        logprobs(logits[row], scores[row], token, target.logprobs)
        for row, token in zip(path, chosen, strict=True)
    )
    return Judgement(path, token, reported)


def logprobs(raw: Sequence[float], scores: Sequence[float], token: int, count: int) -> TokenLogprobs:
    """Logprobs of ``token`` and of the ``count`` most likely ids, from the model's logits and from the scores of
    the target distribution."""
    before, after = log_sum(raw), log_sum(scores)
    return TokenLogprobs(
        token,
        raw[token] - before,
        scores[token] - after,
        _top(raw, before, count),
        _top(scores, after, count),
    )


def log_sum(scores: Sequence[float]) -> float:
    """Logarithm of the sum of exp(``scores``)."""
    most = max(scores)
    return most + math.log(math.fsum(math.exp(score - most) for score in scores))


def _top(scores: Sequence[float], norm: float, count: int) -> tuple[tuple[int, float], ...]:
    ids = heapq.nsmallest(count, range(len(scores)), key=lambda token: (-scores[token], token))
    return tuple((token, scores[token] - norm) for token in ids if scores[token] > -math.inf)
