"""From the logits of a round to what it decided: the vector form of ``txdecode.transactions.judge``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from txdecode.kernels.sampling.adjust import adjusted
from txdecode.kernels.sampling.argmax import lowest_argmax
from txdecode.kernels.sampling.chain import chain_of_candidates
from txdecode.kernels.sampling.filters import Candidates, candidates
from txdecode.kernels.sampling.logprobs import logprobs
from txdecode.kernels.sampling.race import race, race_of_logits
from txdecode.transactions import accept
from txdecode.transactions.accept import Verdict
from txdecode.transactions.draws import Words, key
from txdecode.transactions.executor import ExecutorFault
from txdecode.transactions.judge import Judgement
from txdecode.transactions.target import NO_LOGPROBS, History, Target, filtered

_RACED_TOGETHER = 4
"""Rows whose races over the whole vocabulary are run at once: most rounds are decided by the first few."""

_TEMPERATURES = (1e-30, 1e30)
"""Between these, distinct logits stay distinct as scores and scores stay finite."""


def judge(
    logits: torch.Tensor,
    target: Target,
    history: History | None,
    drafts: Sequence[int],
    position: int,
    proposals: torch.Tensor | None = None,
    prompt: torch.Tensor | None = None,
    copied: int = 0,
) -> Judgement:
    """Decide a round: the same path, token and, within 1e-9, logprobs as the definition.

    ``logits`` [W, vocab], fp32, contiguous, are left as they are; there are W - 1 ``drafts``, and ``position`` is
    the output position that row 0 decides. ``proposals`` [W - 1 - copied, vocab], fp64, are the probabilities that
    the drafts were drawn from, ``None`` for point masses; the last ``copied`` drafts are point masses in any case.
    Only the chain law looks at them. ``history`` is needed where the target changes logits; ``prompt`` may give its
    prompt ids as an int64 tensor, to save making one.

    What is said of a row does not depend on W or on other rows, to the bit. Raises ``ExecutorFault`` where a row
    that matters, one of the path, has a NaN or no finite largest logit.
    """
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.is_contiguous(), logits.stride()
    assert logits.shape[0] == len(drafts) + 1, f"{logits.shape[0]} rows for {len(drafts)} drafts"
    assert proposals is None or proposals.shape[0] + copied == len(drafts), (
        proposals.shape,
        copied,
        len(drafts),
    )
    assert _TEMPERATURES[0] <= target.temperature <= _TEMPERATURES[1], target.temperature
    raw, faults = _sound(logits, "the model")
    changed = adjusted(raw, target, history, drafts, prompt)
    if changed is not raw:
        changed, more = _sound(changed, "penalties, bias and minimum length")
        faults = [first or second for first, second in zip(faults, more, strict=True)]
    kept: Candidates | None = None
    if target.law == "greedy":
        verdict = accept.greedy(drafts, lowest_argmax(changed))
    elif target.law == "coupled" and not target.filters:
        verdict = _coupled(drafts, changed, target, position)
    else:
        kept = candidates(changed, target)
        verdict = _over_candidates(drafts, changed, kept, target, position, proposals)
    path, token = verdict
    for row in path:
        if faults[row]:
            raise ExecutorFault(f"row {row} of a round: {faults[row]}; the launch rolls back")
    if target.logprobs == NO_LOGPROBS:
        return Judgement(path, token)
    rows = len(path)
    if kept is None:
        kept = candidates(changed[:rows], target)
    else:
        kept = Candidates(None if kept.ids is None else kept.ids[:rows], kept.scores[:rows])
    chosen = (*drafts[: rows - 1], token)
    return Judgement(path, token, logprobs(logits[:rows], changed[:rows], kept, chosen, target))


def _sound(logits: torch.Tensor, source: str) -> tuple[torch.Tensor, list[str]]:
    """The logits, and for each row what is wrong with it, or nothing. Where a row is wrong it is of a copy, in which
    such rows are zero: they may lie behind the path, and then nobody minds."""
    largest: list[float] = logits.amax(-1).tolist()
    if all(map(math.isfinite, largest)):
        return logits, [""] * len(largest)
    faults = []
    logits = logits.clone()
    for row, value in enumerate(largest):
        sound = math.isfinite(value)
        if not sound:
            logits[row] = 0.0
        left = "no token to choose" if value == -math.inf else f"a largest logit of {value}"
        faults.append("" if sound else f"{source} left {left}, expected a finite one")
    return logits, faults


def _coupled(drafts: Sequence[int], logits: torch.Tensor, target: Target, position: int) -> Verdict:
    """The coupled law over the whole vocabulary, a few rows at a time, until a draft is rejected."""
    winners: list[int] = []
    keys = torch.tensor([key(target.seed)])
    while True:
        start = len(winners)
        rows = logits[start : start + _RACED_TOGETHER]
        positions = torch.arange(position + start, position + start + rows.shape[0])
        winners += race_of_logits(rows, target.temperature, keys, positions)
        if len(winners) == logits.shape[0] or winners[start:] != list(drafts[start : len(winners)]):
            # What is not raced lies behind a rejection.
            winners += [-1] * (logits.shape[0] - len(winners))
            return accept.greedy(drafts, winners)


def _over_candidates(
    drafts: Sequence[int],
    logits: torch.Tensor,
    kept: Candidates,
    target: Target,
    position: int,
    proposals: torch.Tensor | None,
) -> Verdict:
    if target.law == "coupled":
        positions = torch.arange(position, position + logits.shape[0])
        keys = torch.tensor([key(target.seed)])
        return accept.greedy(drafts, race(kept.scores, keys, positions, kept.ids).tolist())
    draw = Words(target.seed, position)
    verdict = chain_of_candidates(drafts, kept, proposals, draw)
    if verdict is None:
        rows = [accept.probabilities(filtered(row, target)) for row in logits.tolist()]
        points = [None] * (0 if proposals is None else len(drafts) - proposals.shape[0])
        drawn = None if proposals is None else [*proposals.tolist(), *points]
        verdict = accept.chain(drafts, rows, drawn, draw)
    return verdict
