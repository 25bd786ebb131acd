"""Speculative sampling over many rounds, word for word as ``txdecode.transactions.accept.chain``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from txdecode.kernels.sampling.filters import Candidates
from txdecode.kernels.sampling.philox import words
from txdecode.transactions.accept import Verdict
from txdecode.transactions.draws import ACCEPT, RESIDUAL, TARGET, Words, uniform

_exp = torch.Tensor.exp_
_MARGIN = 1e-10
"""Relative to a total of probabilities: above the error of a sum of 2**18 terms in fp64."""


def chain(
    targets: torch.Tensor,
    drafts: torch.Tensor,
    proposals: torch.Tensor | None,
    keys: torch.Tensor,
    positions: torch.Tensor,
    ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accepted drafts [B] and the token after them [B], int64, of B rounds of K drafts each.

    ``targets`` [B, K+1, n] are probabilities, fp64; ``proposals`` [B, L, n] those that the first L of the
    ``drafts`` [B, K] were drawn from; the drafts after them are point masses, and all are with ``None``. Column j is
    the id ``ids[b, i, j]`` (ascending), or j itself. ``keys`` [B, 2] or [1, 2]; ``positions`` [B] are the output
    positions that rows 0 decide.
    """
    rounds, width, _ = targets.shape
    count = width - 1
    accepted = torch.zeros(rounds, dtype=torch.int64)
    column = torch.zeros(rounds, dtype=torch.int64)
    active = torch.arange(rounds)
    for row in range(count):
        draft = drafts[active, row]
        p = targets[active, row]
        named = torch.arange(p.shape[1]) if ids is None else ids[active, row]
        point = (named == draft.unsqueeze(1)).double()
        q = point if proposals is None or row >= proposals.shape[1] else proposals[active, row]
        # One id at most is the draft, so these sums add zeros only.
        p_draft, q_draft = (p * point).sum(-1), (q * point).sum(-1)
        drawn = _uniforms(keys, positions, active, row, ACCEPT)
        rejected = ~((q_draft > 0) & (drawn * q_draft < p_draft))
        residual = (p[rejected] - q[rejected]).clamp_(min=0.0)
        # Where p exceeds q nowhere they agree, and the draft stands.
        some = (residual > 0).any(-1)
        rejected[rejected.nonzero().flatten()[~some]] = False
        lost = active[rejected]
        accepted[lost] = row
        column[lost] = _inverse(residual[some], _uniforms(keys, positions, lost, row, RESIDUAL))
        active = active[~rejected]
    accepted[active] = count
    column[active] = _inverse(targets[active, count], _uniforms(keys, positions, active, count, TARGET))
    tokens = column if ids is None else ids[torch.arange(rounds), accepted, column]
    return accepted, tokens


def chain_of_candidates(
    drafts: Sequence[int], kept: Candidates, proposals: torch.Tensor | None, draw: Words
) -> Verdict | None:
    """The verdict over one round's candidates; ``None`` where it is too close to call in vector arithmetic, and the
    definition has to decide.

    ``proposals`` [L, vocab], fp64, of the first L drafts, or ``None``: drafts without any are point masses. The
    residual is made for the one row that needs it.
    """
    weights = _exp(kept.scores - kept.scores.amax(-1, keepdim=True))
    totals: list[float] = weights.cumsum(-1)[:, -1].tolist()
    for row, draft in enumerate(drafts):
        column = _column(kept, row, draft)
        p_draft = 0.0 if column < 0 else float(weights[row, column]) / totals[row]
        q = None if proposals is None or row >= proposals.shape[0] else proposals[row]
        q_draft = 1.0 if q is None else float(q[draft])
        bound = uniform(draw(ACCEPT, row)) * q_draft
        if q_draft > 0 and abs(bound - p_draft) <= _MARGIN * max(bound, p_draft):
            return None
        if q_draft > 0 and bound < p_draft:
            continue
        residual = weights[row] / totals[row]
        if q is not None:
            residual = (residual - (q if kept.ids is None else q[kept.ids[row]])).clamp_(min=0.0)
        elif column >= 0:
            residual[column] = max(float(residual[column]) - 1.0, 0.0)
        return _verdict(kept, row, residual, uniform(draw(RESIDUAL, row)))
    last = len(drafts)
    return _verdict(kept, last, weights[last] / totals[last], uniform(draw(TARGET, last)))


def _verdict(kept: Candidates, row: int, masses: torch.Tensor, drawn: float) -> Verdict | None:
    sums = masses.cumsum(0)
    total = float(sums[-1])
    if total <= 1e-6:
        # Nothing but what rounding left: whether there is any mass is for the definition to say.
        return None
    bound = drawn * total
    column = int((sums <= bound).sum())
    below = float(sums[column - 1]) if column else -math.inf
    if min(bound - below, float(sums[column]) - bound) <= _MARGIN:
        return None
    token = column if kept.ids is None else int(kept.ids[row, column])
    return tuple(range(row + 1)), token


def _column(kept: Candidates, row: int, token: int) -> int:
    """Where ``token`` stands among the candidates of a row, -1 where it is none."""
    if kept.ids is None:
        return token
    places = ((kept.ids[row] == token) & (kept.scores[row] > -math.inf)).nonzero().flatten().tolist()
    return places[0] if places else -1


def _uniforms(
    keys: torch.Tensor, positions: torch.Tensor, rounds: torch.Tensor, row: int, role: int
) -> torch.Tensor:
    key = keys if keys.shape[0] == 1 else keys[rounds]
    drawn = words(key, positions[rounds] + row, role, None, 1)
    return drawn.squeeze(1).double().add_(0.5).mul_(2.0**-32)


def _inverse(masses: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """For each row of ``masses`` [rows, n] the first column at which the cumulative sum exceeds drawn * total."""
    sums = masses.cumsum(-1)
    return (sums <= (drawn * sums[:, -1]).unsqueeze(1)).sum(-1)
