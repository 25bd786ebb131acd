"""Drafting with an MTP layer: one row a request and depth, by the request's own law."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.models.mtp import MtpLayer
from txdecode.kernels.sampling.argmax import lowest_argmax
from txdecode.kernels.sampling.filters import candidates
from txdecode.kernels.sampling.race import race
from txdecode.kernels.sampling.reference import NOTHING
from txdecode.transactions.accept import inverse
from txdecode.transactions.draws import DRAFT, key, salt, word
from txdecode.transactions.executor import NO_PROPOSAL, Proposal, RoundPlan

SOURCE = "mtp"


def draft(mtp: MtpLayer, tails: torch.Tensor, plans: Sequence[RoundPlan]) -> list[Proposal]:
    """At most ``width - 1`` tokens for each plan.

    ``tails`` [slots, hidden] are the target's hidden rows at the last committed positions. The first step takes
    a tail and the pending token; each later one the step before and its draft. Their rows go to the slots past
    the committed pairs and are scratch. A request stops early where its logits are not finite: drafts are
    guesses, and the target finds out for itself.
    """
    drafts: list[list[int]] = [[] for _ in plans]
    drawn: list[list[torch.Tensor]] = [[] for _ in plans]
    active = [index for index, plan in enumerate(plans) if plan.width > 1 and plan.view.length]
    hidden = tails[[plans[index].view.slots[0] for index in active]] if active else tails[:0]
    depth = 0
    while active:
        segments = []
        for index in active:
            plan = plans[index]
            token = drafts[index][-1] if depth else plan.pending
            segments.append(Segment((token,), plan.view.length + depth, plan.pages[-1]))
        hidden, logits = mtp.step(segments, hidden)
        chosen = _choose([plans[index] for index in active], logits, depth)
        depth += 1
        stay = []
        for place, (index, (token, q)) in enumerate(zip(active, chosen, strict=True)):
            if token == NOTHING:
                continue
            drafts[index].append(token)
            if q is not None:
                drawn[index].append(q)
            if depth < plans[index].width - 1:
                stay.append(place)
        if len(stay) < len(active):
            hidden = hidden[stay]
            active = [active[place] for place in stay]
    return [_proposal(plan, *made) for plan, made in zip(plans, zip(drafts, drawn, strict=True), strict=True)]


def _proposal(plan: RoundPlan, tokens: list[int], drawn: list[torch.Tensor]) -> Proposal:
    if not tokens:
        return NO_PROPOSAL
    if plan.target.law == "greedy":
        return Proposal(tuple(tokens), SOURCE)
    # The coupled law accepts by equality and looks at no distribution.
    return Proposal(tuple(tokens), SOURCE, "sampled", torch.stack(drawn) if drawn else None)


def _choose(
    plans: Sequence[RoundPlan], logits: torch.Tensor, depth: int
) -> list[tuple[int, torch.Tensor | None]]:
    """A token for each row of ``logits`` [plans, vocab], ``NOTHING`` where none is finite, and the distribution
    [vocab], fp64, that it was drawn from where its law looks at that."""
    best = lowest_argmax(logits)
    chosen: list[tuple[int, torch.Tensor | None]] = []
    for row, plan in enumerate(plans):
        if best[row] == NOTHING or plan.target.law == "greedy":
            chosen.append((best[row], None))
        elif plan.target.law == "coupled":
            chosen.append((_race(plan, logits[row : row + 1].float(), depth), None))
        else:
            chosen.append(draw(plan, logits[row : row + 1].float(), depth))
    return chosen


def _race(plan: RoundPlan, logits: torch.Tensor, depth: int) -> int:
    """The winner over the drafter's own distribution by the noise that the target will use at this position."""
    kept = candidates(logits, plan.target)
    keys = torch.tensor([key(plan.target.seed)])
    positions = torch.tensor([plan.rng[0] + depth])
    return int(race(kept.scores, keys, positions, kept.ids)[0])


def draw(plan: RoundPlan, logits: torch.Tensor, depth: int) -> tuple[int, torch.Tensor]:
    """A draft for the chain law and the distribution [vocab], fp64, that it was drawn from, of ``logits`` [1, vocab]:
    by a word of its own, salted with epoch and attempt: a draft length that looked at discarded drafts
    must not meet the same draws again."""
    kept = candidates(logits, plan.target)
    weights = torch.softmax(kept.scores[0], -1)
    ids = torch.arange(logits.shape[1]) if kept.ids is None else kept.ids[0]
    real = kept.scores[0] > -math.inf
    weights, ids = weights[real], ids[real]
    fourth = salt(plan.view.epoch, plan.attempt)
    drawn = word(plan.target.seed, DRAFT, plan.rng[0] + depth, fourth=fourth)
    token = int(ids[inverse(weights.tolist(), drawn)])
    q = torch.zeros(logits.shape[1], dtype=torch.float64)
    q[ids] = weights
    return token, q
