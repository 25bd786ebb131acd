"""The target distribution of a row: what a request asks for, applied to the logits of its prefix. Pure.

Order of operations: repetition penalty, presence and frequency penalty, logit bias, minimum length, temperature,
top-k, top-p, min-p. Penalties see the conditional prefix of the row: the prompt, what was generated, and the
drafts before the row. Normative text: specs/sampling.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs
import msgspec

from txdecode.state.changes import Ids

Law = Literal["greedy", "coupled", "chain"]

NO_LOGPROBS = -1


@attrs.frozen
class Target:
    """How the tokens of a request are chosen; fixed for its life.

    ``law``: how drafts are judged. ``seed``: 64 bits. ``temperature`` is above 0 and does not apply to the greedy
    law, nor do ``top_k`` (0 keeps all), ``top_p``, ``min_p``. ``bias``: pairs of id and what is added to its
    logit (-inf forbids it). ``held``: ids that may not come among the first ``min_tokens`` generated tokens.
    ``logprobs``: how many alternatives are reported with every token; ``NO_LOGPROBS`` for none at all.
    """

    law: Law = "greedy"
    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    held: Ids = ()
    logprobs: int = NO_LOGPROBS

    @property
    def plain(self) -> bool:
        """Whether it is the argmax of the logits as they come, and nothing is reported."""
        return self.law == "greedy" and not self.changes_logits and self.logprobs == NO_LOGPROBS

    @property
    def penalises(self) -> bool:
        """Whether logits depend on the tokens before them."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def changes_logits(self) -> bool:
        """Whether anything happens to logits before the temperature."""
        return self.penalises or bool(self.bias) or self.min_tokens > 0

    def after(self, generated: int) -> Target:
        """This target once ``generated`` tokens were generated: without a minimum that has been reached."""
        if not self.min_tokens or generated < self.min_tokens:
            return self
        return attrs.evolve(self, min_tokens=0, held=())

    @property
    def filters(self) -> bool:
        """Whether tokens may be left out of the distribution."""
        return self.law != "greedy" and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


GREEDY = Target()


@attrs.frozen
class History:
    """The committed tokens that a row's logits are conditioned on: ``prompt`` ids, ``counts`` of generated ones
    (the pending token included), and how many were generated. A snapshot: later commits do not change it."""

    prompt: Ids
    counts: Mapping[int, int]
    generated: int


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Natural logarithms of the probability of one emitted token, and of the most likely alternatives.

    ``raw`` is of the model's distribution as it comes; ``target`` of the one that the token was chosen from, after
    penalties, bias, temperature and filters. ``raw_top`` and ``target_top`` are pairs of id and value, best
    first, the lowest id first on ties; tokens that were filtered out are not among the latter. Under the greedy
    law no temperature and no filter applies, so ``target`` is after penalties and bias.
    """

    token: int
    raw: float
    target: float
    raw_top: tuple[tuple[int, float], ...] = ()
    target_top: tuple[tuple[int, float], ...] = ()


def single(value: float) -> float:
    """The value rounded to fp32, as logits are."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def adjusted(
    logits: Sequence[float], target: Target, history: History | None, drafts: Sequence[int]
) -> Sequence[float]:
    """Logits of the row after ``drafts``, with penalties, bias and minimum length.

    Each changed logit is computed in fp64 and rounded once to fp32. ``history`` may be ``None`` where
    ``target.changes_logits`` is false.
    """
    if not target.changes_logits:
        return logits
    assert history is not None
    made = list(logits)
    counts = dict(history.counts)
    for draft in drafts:
        counts[draft] = counts.get(draft, 0) + 1
    bias = dict(target.bias)
    seen = counts.keys() | set(history.prompt) if target.penalises else set()
    for token in seen | bias.keys():
        made[token] = single(
            penalised(logits[token], target, token in seen, counts.get(token, 0)) + bias.get(token, 0.0)
        )
    if history.generated + len(drafts) < target.min_tokens:
        for token in target.held:
            made[token] = -math.inf
    return made


def penalised(logit: float, target: Target, seen: bool, count: int) -> float:
    """One logit after the penalties, fp64. ``seen``: the token is in the prefix, prompt included (Keskar et al.
    2019, as HF transformers applies it); ``count``: how often it was generated."""
    if seen and target.repetition_penalty != 1.0:
        logit = logit * target.repetition_penalty if logit < 0 else logit / target.repetition_penalty
    if count:
        logit -= target.presence_penalty + target.frequency_penalty * count
    return logit


def filtered(logits: Sequence[float], target: Target) -> list[float]:
    """Scores of the target distribution, fp64: logits over temperature, -inf for what the filters leave out.

    The distribution is exp(scores), normalised. Ties at the border of top-k and top-p go to the lowest id.
    """
    if target.law == "greedy":
        return list(logits)
    scores = [logit / target.temperature for logit in logits]
    if not target.filters:
        return scores
    order = sorted((t for t, s in enumerate(scores) if s > -math.inf), key=lambda t: (-scores[t], t))
    if target.top_k:
        order = order[: target.top_k]
    most = scores[order[0]]
    weights = [math.exp(scores[token] - most) for token in order]
    kept = nucleus(weights, target.top_p)
    keep = {t for t, w in zip(order[:kept], weights[:kept], strict=True) if w >= target.min_p}
    return [score if token in keep else -math.inf for token, score in enumerate(scores)]


def nucleus(weights: Sequence[float], top_p: float) -> int:
    """Length of the shortest beginning of ``weights``, largest first, with at least the share ``top_p`` of all."""
    if top_p >= 1.0:
        return len(weights)
    total = 0.0
    for weight in weights:
        total += weight
    bound, reached = top_p * total, 0.0
    for index, weight in enumerate(weights):
        reached += weight
        if reached >= bound:
            return index + 1
    return len(weights)
