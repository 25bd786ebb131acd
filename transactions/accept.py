"""Acceptance laws, pure: over choices, scores or probabilities, and random words.

Every law returns the accepted path of rows, beginning with row 0, and the correction or bonus token after it. Row
i holds what the target says of the token after row i; a round of K drafts has K+1 rows, and draft i is judged by
row i. Normative text: specs/sampling.md, and specs/rng.md for the words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from txdecode.transactions.draws import ACCEPT, RESIDUAL, TARGET, Draw, exponential, uniform

Verdict = tuple[tuple[int, ...], int]
"""Accepted path of rows, token after it."""


def greedy(drafts: Sequence[int], targets: Sequence[int]) -> Verdict:
    """Accept drafts while each equals the token that the row before it chose.

    ``targets[i]`` is the choice of verified row i: one more than there are drafts. Of the greedy law it is the
    argmax (lowest id on ties), of the coupled law the winner of the row's race.
    """
    assert len(targets) == len(drafts) + 1, f"{len(targets)} target rows for {len(drafts)} drafts"
    accepted = 0
    for draft, target in zip(drafts, targets, strict=False):
        if draft != target:
            break
        accepted += 1
    return tuple(range(accepted + 1)), targets[accepted]


def argmax(scores: Sequence[float]) -> int:
    """The id with the largest score, the lowest of equals."""
    return max(range(len(scores)), key=scores.__getitem__)


def race(scores: Sequence[float], draw: Draw, row: int) -> int:
    """The winner of an exponential race over weights exp(``scores``): the id with the smallest E/weight, hence a
    draw from the normalised weights. A score of -inf takes no part.

    In the log domain, so that no weight underflows: the largest score − log E wins, the lowest id of equals.
    """
    best, winner = -math.inf, -1
    for token, score in enumerate(scores):
        if score > -math.inf:
            reached = score - math.log(exponential(draw(TARGET, row, token)))
            if reached > best:
                best, winner = reached, token
    assert winner >= 0, "a row with no token to choose"
    return winner


def coupled(drafts: Sequence[int], scores: Sequence[Sequence[float]], draw: Draw) -> Verdict:
    """The token of each row is the winner of its race; a draft is accepted while it is that winner.

    Plain decoding draws the same words at the same position, so the text does not depend on the drafts.
    """
    path = []
    for row, weights in enumerate(scores):
        path.append(row)
        winner = race(weights, draw, row)
        if row == len(drafts) or drafts[row] != winner:
            return tuple(path), winner
    raise AssertionError(f"{len(scores)} rows for {len(drafts)} drafts")


def probabilities(scores: Sequence[float]) -> list[float]:
    """Weights exp(``scores``) made to sum to one; summed in the order of ids."""
    most = max(scores)
    weights = [math.exp(score - most) for score in scores]
    total = sum_in_order(weights)
    return [weight / total for weight in weights]


def sum_in_order(values: Sequence[float]) -> float:
    """Sum from the left, every step rounded: what a cumulative sum ends with (``sum`` compensates)."""
    total = 0.0
    for value in values:
        total += value
    return total


def inverse(weights: Sequence[float], x: int) -> int:
    """The id at which the cumulative sum of ``weights``, in the order of ids, first exceeds v·total."""
    sums = list(accumulate(weights))
    bound = uniform(x) * sums[-1]
    return next(token for token, reached in enumerate(sums) if reached > bound)


def chain(
    drafts: Sequence[int],
    targets: Sequence[Sequence[float]],
    proposals: Sequence[Sequence[float] | None] | None,
    draw: Draw,
) -> Verdict:
    """Speculative sampling (Leviathan et al. 2023, Chen et al. 2023): the emitted tokens are distributed as the
    target's, whatever the proposals.

    ``targets[i]`` are the probabilities p of row i, ``proposals[i]`` those q that draft i was drawn from; ``None``
    where it is a point mass (copied, or an argmax), or in the place of them all where all drafts are. Draft i is
    accepted iff v·q(d) < p(d) for the accept word of its position. A rejection draws from max(p − q, 0) with the
    residual word of the position; where that has no mass p and q agree, and the draft stands. After full acceptance
    the target word draws from the last row.
    """
    assert len(targets) == len(drafts) + 1, f"{len(targets)} target rows for {len(drafts)} drafts"
    for row, draft in enumerate(drafts):
        p = targets[row]
        drawn = None if proposals is None else proposals[row]
        q = _point(draft, len(p)) if drawn is None else drawn
        if q[draft] > 0 and uniform(draw(ACCEPT, row)) * q[draft] < p[draft]:
            continue
        residual = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
        if any(residual):
            return tuple(range(row + 1)), inverse(residual, draw(RESIDUAL, row))
    last = len(drafts)
    return tuple(range(last + 1)), inverse(targets[last], draw(TARGET, last))


def _point(token: int, size: int) -> list[float]:
    return [float(other == token) for other in range(size)]
