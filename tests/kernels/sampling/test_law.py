"""Emitted tokens are distributed as the target's, whatever the drafts; and the test sees it when they are not.

Trials are texts over a Markov table p(. | token before), decoded round by round on the vector operators, so that an
error in what a position is conditioned on shows in pairs. Fixed seeds, 200,000 trials, alpha 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch

from txdecode.kernels.sampling import chain as chain_module
from txdecode.kernels.sampling.chain import chain
from txdecode.kernels.sampling.philox import words
from txdecode.kernels.sampling.race import race
from txdecode.transactions.draws import ACCEPT, DRAFT, RESIDUAL, TARGET, salt

ALPHA = 1e-6
TRIALS = 200_000
PART = 50_000
"""Trials decoded at once."""

FIRST_POSITION = 100
EXPECTED_MIN = 5.0


def chi_square_tail(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """Probability of a chi-square at least as large; cells that expect few are joined. Zero where a cell that
    expects nothing was met."""
    observed, expected = observed.double().flatten(), expected.double().flatten()
    if observed[expected == 0].any():
        return 0.0
    few = expected < EXPECTED_MIN
    observed = torch.cat((observed[~few], observed[few].sum().view(1)))
    expected = torch.cat((expected[~few], expected[few].sum().view(1)))
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    freedom = observed.numel() - 1
    if freedom == 0:
        return 1.0
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), statistic / 2))


def least_tail(texts: torch.Tensor, p: torch.Tensor) -> float:
    """The smallest tail over the marginals of all positions and of all consecutive pairs. ``texts`` [trials, n]
    begin after token 0."""
    trials, length = texts.shape
    vocab = p.shape[0]
    marginal = torch.zeros(vocab, dtype=torch.float64)
    marginal[0] = 1.0
    tails = []
    for place in range(length):
        joint = marginal.unsqueeze(1) * p
        marginal = joint.sum(0)
        counts = torch.bincount(texts[:, place], minlength=vocab)
        tails.append(chi_square_tail(counts, trials * marginal))
        if place:
            pairs = torch.bincount(texts[:, place - 1] * vocab + texts[:, place], minlength=vocab * vocab)
            tails.append(chi_square_tail(pairs, trials * joint))
    return min(tails)


@attrs.frozen
class Toy:
    """Markov tables of target and proposal, [vocab, vocab], and how many drafts a round has."""

    p: torch.Tensor
    q: torch.Tensor
    count: int


def toy(kind: str, vocab: int, count: int) -> Toy:
    random = torch.Generator().manual_seed(vocab * 100 + count)

    def table(zeros: float = 0.0) -> torch.Tensor:
        made = torch.rand(vocab, vocab, generator=random, dtype=torch.float64) ** 2
        made[torch.rand(vocab, vocab, generator=random) < zeros] = 0.0
        made += torch.eye(vocab).roll(1, 0) * 0.5
        return made / made.sum(-1, keepdim=True)

    if kind == "one-hot":
        p = torch.eye(vocab, dtype=torch.float64).roll(1, 0)
        return Toy(p, 0.5 * p + 0.5 * table(), count)
    zeros = 0.4 if kind == "zeros" else 0.0
    p = table(zeros)
    q = p.clone() if kind == "equal" else 0.5 * p + 0.5 * table()
    return Toy(p, table(zeros) if kind == "zeros" else q, count)


@attrs.frozen
class Batch:
    """Trials that start a round: their keys, token before, output position and round number."""

    keys: torch.Tensor
    before: torch.Tensor
    positions: torch.Tensor
    attempt: int


Verdict = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Drafts [B, K], accepted [B], token after them [B]."""

Law = Callable[[Toy, Batch], Verdict]


def uniforms(batch: Batch, role: int, shift: torch.Tensor | int, fourth: int = 0) -> torch.Tensor:
    drawn = words(batch.keys, batch.positions + shift, role, None, 1, fourth)
    return (drawn.squeeze(1).double() + 0.5) * 2.0**-32


def inverse(masses: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    sums = masses.cumsum(-1)
    return (sums <= (drawn * sums[:, -1]).unsqueeze(1)).sum(-1)


def drafts_of(case: Toy, batch: Batch, one: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
    """Drafts, each conditioned on the one before it; ``one(q, row)`` draws from rows q."""
    before, made = batch.before, []
    for row in range(case.count):
        before = one(case.q[before], row)
        made.append(before)
    return torch.stack(made, 1)


def targets_of(case: Toy, batch: Batch, drafts: torch.Tensor) -> torch.Tensor:
    return case.p[torch.cat((batch.before.unsqueeze(1), drafts), 1)]


def proposals_of(case: Toy, batch: Batch, drafts: torch.Tensor) -> torch.Tensor:
    return case.q[torch.cat((batch.before.unsqueeze(1), drafts), 1)[:, :-1]]


def sampled_drafts(case: Toy, batch: Batch) -> torch.Tensor:
    return drafts_of(
        case, batch, lambda q, row: inverse(q, uniforms(batch, DRAFT, row, salt(0, batch.attempt)))
    )


def point_drafts(case: Toy, batch: Batch) -> torch.Tensor:
    return drafts_of(case, batch, lambda q, _: q.argmax(-1))


def chain_sampled(case: Toy, batch: Batch) -> Verdict:
    drafts = sampled_drafts(case, batch)
    targets, proposals = targets_of(case, batch, drafts), proposals_of(case, batch, drafts)
    return drafts, *chain(targets, drafts, proposals, batch.keys, batch.positions)


def chain_point(case: Toy, batch: Batch) -> Verdict:
    drafts = point_drafts(case, batch)
    return drafts, *chain(targets_of(case, batch, drafts), drafts, None, batch.keys, batch.positions)


def mixed_drafts(case: Toy, batch: Batch) -> tuple[torch.Tensor, int]:
    """Drafts of which the last half are copied, and how many of the first were drawn."""
    drawn = (case.count + 1) // 2

    def one(q: torch.Tensor, row: int) -> torch.Tensor:
        return (
            q.argmax(-1) if row >= drawn else inverse(q, uniforms(batch, DRAFT, row, salt(0, batch.attempt)))
        )

    return drafts_of(case, batch, one), drawn


def chain_mixed(case: Toy, batch: Batch) -> Verdict:
    """Drawn drafts with their q, copies behind them as point masses."""
    drafts, drawn = mixed_drafts(case, batch)
    targets, proposals = targets_of(case, batch, drafts), proposals_of(case, batch, drafts)
    return drafts, *chain(targets, drafts, proposals[:, :drawn], batch.keys, batch.positions)


def raced(weights: torch.Tensor, batch: Batch, row: int) -> torch.Tensor:
    return race(weights.log(), batch.keys, batch.positions + row)


def coupled(case: Toy, batch: Batch, drafts: torch.Tensor) -> Verdict:
    targets = targets_of(case, batch, drafts)
    winners = torch.stack([raced(targets[:, row], batch, row) for row in range(case.count + 1)], 1)
    accepted = (winners[:, :-1] == drafts).cumprod(1).sum(1)
    return drafts, accepted, winners.gather(1, accepted.unsqueeze(1)).squeeze(1)


def coupled_sampled(case: Toy, batch: Batch) -> Verdict:
    return coupled(case, batch, drafts_of(case, batch, lambda q, row: raced(q, batch, row)))


def coupled_point(case: Toy, batch: Batch) -> Verdict:
    return coupled(case, batch, point_drafts(case, batch))


def plain(case: Toy, batch: Batch) -> Verdict:
    """One token of the coupled law without drafts."""
    none = torch.zeros(batch.before.shape[0], 0, dtype=torch.int64)
    return none, torch.zeros_like(batch.before), raced(case.p[batch.before], batch, 0)


def decode(case: Toy, law: Law, trials: int, length: int) -> tuple[torch.Tensor, float]:
    """Texts [trials, length] and the mean of accepted drafts in the first round; trial i has seed i."""
    texts, taken = [], 0
    for first in range(0, trials, PART):
        size = min(PART, trials - first)
        # Room behind the end for a round that runs over it.
        text = torch.zeros(size, length + case.count + 1, dtype=torch.int64)
        keys = torch.stack((torch.arange(first, first + size), torch.full((size,), 17)), 1)
        done, before = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
        attempt = 0
        while (open_ := (done < length).nonzero().flatten()).numel():
            batch = Batch(keys[open_], before[open_], FIRST_POSITION + done[open_], attempt)
            drafts, accepted, token = law(case, batch)
            taken += int(accepted.sum()) if attempt == 0 else 0
            emitted = torch.cat((drafts, token.unsqueeze(1)), 1)
            emitted.scatter_(1, accepted.unsqueeze(1), token.unsqueeze(1))
            for place in range(drafts.shape[1] + 1):
                here = open_[accepted >= place]
                text[here, done[here] + place] = emitted[accepted >= place, place]
            done[open_] += accepted + 1
            before[open_] = token
            attempt += 1
        texts.append(text[:, :length])
    return torch.cat(texts), taken / trials


CASES = [
    ("random", 5, 1),
    ("random", 12, 4),
    ("random", 50, 1),
    ("zeros", 8, 3),
    ("equal", 6, 2),
    ("one-hot", 7, 3),
]


@pytest.mark.parametrize(("kind", "vocab", "count"), CASES)
@pytest.mark.parametrize("law", [chain_sampled, chain_point, chain_mixed, coupled_sampled, coupled_point])
def test_every_position_and_every_pair_has_the_law_of_the_target(
    law: Law, kind: str, vocab: int, count: int
) -> None:
    case = toy(kind, vocab, count)
    texts, taken = decode(case, law, TRIALS, max(count + 1, 3))
    assert least_tail(texts, case.p) >= ALPHA
    # Otherwise drafts would not have been judged at all, or would never have been rejected.
    certain = kind == "equal" and law in (chain_sampled, coupled_sampled)
    certain = certain or (kind == "one-hot" and law in (chain_point, coupled_point))
    assert taken == count if certain else 0.0 < taken < count


def test_the_coupled_text_does_not_depend_on_drafts() -> None:
    case = toy("random", 12, 4)
    texts = [decode(case, law, 2000, 8)[0] for law in (plain, coupled_sampled, coupled_point)]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


def shared_offset(law: Law) -> Law:
    """All positions use the words of one."""

    def broken(case: Toy, batch: Batch) -> Verdict:
        drafts = sampled_drafts(case, batch)
        there = attrs.evolve(batch, positions=torch.full_like(batch.positions, FIRST_POSITION))
        if law is chain_sampled:
            made = [
                chain(
                    targets_of(case, batch, drafts)[:, row : row + 2],
                    drafts[:, row : row + 1],
                    proposals_of(case, batch, drafts)[:, row : row + 1],
                    there.keys,
                    there.positions,
                )
                for row in range(case.count)
            ]
            # One draft at a time, each with the words of the first position.
            accepted, token = made[0]
            for row in range(1, case.count):
                on = accepted == row
                accepted = torch.where(on, accepted + made[row][0], accepted)
                token = torch.where(on, made[row][1], token)
            return drafts, accepted, token
        targets = targets_of(case, batch, drafts)
        winners = torch.stack([raced(targets[:, row], there, 0) for row in range(case.count + 1)], 1)
        accepted = (winners[:, :-1] == drafts).cumprod(1).sum(1)
        return drafts, accepted, winners.gather(1, accepted.unsqueeze(1)).squeeze(1)

    return broken


def argmax_as_sampled(case: Toy, batch: Batch) -> Verdict:
    """Drafts are argmaxes, and q is claimed to be the softmax they are the argmax of."""
    drafts = point_drafts(case, batch)
    targets, proposals = targets_of(case, batch, drafts), proposals_of(case, batch, drafts)
    return drafts, *chain(targets, drafts, proposals, batch.keys, batch.positions)


def copies_as_sampled(case: Toy, batch: Batch) -> Verdict:
    """Copies behind drawn drafts are judged by the q of the drafter that did not draw them."""
    drafts, _ = mixed_drafts(case, batch)
    targets, proposals = targets_of(case, batch, drafts), proposals_of(case, batch, drafts)
    return drafts, *chain(targets, drafts, proposals, batch.keys, batch.positions)


def no_residual(case: Toy, batch: Batch) -> Verdict:
    """After a rejection the token is drawn from p."""
    drafts, accepted, token = chain_sampled(case, batch)
    p = targets_of(case, batch, drafts)[torch.arange(token.shape[0]), accepted]
    again = inverse(p, uniforms(batch, RESIDUAL, accepted))
    return drafts, accepted, torch.where(accepted < case.count, again, token)


def equal_to_another_sample(case: Toy, batch: Batch) -> Verdict:
    """A draft is accepted where it equals a sample, and after a rejection another sample is emitted."""
    drafts = point_drafts(case, batch)
    targets = targets_of(case, batch, drafts)
    samples = [inverse(targets[:, row], uniforms(batch, ACCEPT, row)) for row in range(case.count)]
    accepted = (torch.stack(samples, 1) == drafts).cumprod(1).sum(1)
    p = targets[torch.arange(drafts.shape[0]), accepted]
    return drafts, accepted, inverse(p, uniforms(batch, TARGET, accepted))


@pytest.mark.parametrize(
    "law",
    [
        shared_offset(chain_sampled),
        shared_offset(coupled_sampled),
        argmax_as_sampled,
        copies_as_sampled,
        no_residual,
        equal_to_another_sample,
    ],
    ids=["offset-chain", "offset-coupled", "argmax", "copies", "no-residual", "other-sample"],
)
def test_a_broken_law_fails(law: Law) -> None:
    case = toy("random", 5, 3)
    texts, _ = decode(case, law, TRIALS, 4)
    assert least_tail(texts, case.p) < ALPHA


def residual_tail(vocab: int) -> float:
    """Tail of the joint counts of acceptance word, in bins, and token after a rejection, against independence."""
    bins, count = 8, 1
    case = toy("random", vocab, count)
    size = TRIALS
    keys = torch.stack((torch.arange(size), torch.full((size,), 23)), 1)
    zero = torch.zeros(size, dtype=torch.int64)
    batch = Batch(keys, zero, zero + FIRST_POSITION, 0)
    drafts, accepted, token = chain_point(case, batch)
    lost = accepted == 0
    p = case.p[0].clone()
    draft = int(drafts[0, 0])
    edge = float(p[draft])
    assert 0.05 < edge < 0.95
    drawn = uniforms(batch, ACCEPT, 0)[lost]
    assert drawn.min() >= edge
    place = ((drawn - edge) / (1 - edge) * bins).long().clamp_(max=bins - 1)
    counts = torch.bincount(place * vocab + token[lost], minlength=bins * vocab)
    p[draft] = 0.0
    expected = (p / p.sum()).expand(bins, -1) * (int(lost.sum()) / bins)
    return chi_square_tail(counts, expected)


@pytest.mark.parametrize("vocab", [5, 12])
def test_the_residual_draw_is_independent_of_the_acceptance_draw(
    vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert residual_tail(vocab) >= ALPHA
    monkeypatch.setattr(chain_module, "RESIDUAL", ACCEPT)
    assert residual_tail(vocab) < ALPHA


def test_a_residual_from_the_acceptance_word_fails_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "RESIDUAL", ACCEPT)
    case = toy("random", 5, 3)
    texts, _ = decode(case, chain_sampled, TRIALS, 4)
    assert least_tail(texts, case.p) < ALPHA


def test_the_tail_is_a_chi_square_tail() -> None:
    """Known quantiles: 10.828 with one degree of freedom and 18.467 with four have a tail of one in a thousand."""
    for freedom, quantile in ((1, 10.8276), (4, 18.4668)):
        cells = freedom + 1
        expected = torch.full((cells,), 100.0)
        off = (quantile * 100.0 / 2) ** 0.5
        observed = expected.clone()
        observed[0] += off
        observed[1] -= off
        assert chi_square_tail(observed, expected) == pytest.approx(1e-3, rel=1e-3)
    assert chi_square_tail(torch.tensor([5, 1]), torch.tensor([6.0, 0.0])) == 0.0
