"""The chain law over batches against the scalar form, word for word."""

from __future__ import annotations

import pytest
import torch

from txdecode.kernels.sampling import reference
from txdecode.kernels.sampling.chain import chain
from txdecode.transactions.draws import key


def table(random: torch.Generator, *shape: int, zeros: float = 0.0) -> torch.Tensor:
    made = torch.rand(*shape, generator=random, dtype=torch.float64).pow_(3)
    made[torch.rand(*shape, generator=random) < zeros] = 0.0
    made[..., 0] += 1e-3
    return made / made.sum(-1, keepdim=True)


@pytest.mark.parametrize("vocab", [5, 17, 50])
@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("kind", ["sampled", "point", "mixed", "zeros", "equal", "one-hot"])
def test_word_for_word(vocab: int, count: int, kind: str) -> None:
    random = torch.Generator().manual_seed(vocab * 10 + count)
    rounds = 120
    targets = table(random, rounds, count + 1, vocab, zeros=0.4 if kind == "zeros" else 0.0)
    drawn = table(random, rounds, count, vocab, zeros=0.4 if kind == "zeros" else 0.0)
    proposals: torch.Tensor | None = drawn
    if kind == "equal":
        proposals = targets[:, :count].clone()
    elif kind == "point":
        proposals = None
    elif kind == "mixed":
        proposals = drawn[:, : (count + 1) // 2]
    elif kind == "one-hot":
        places = torch.randint(vocab, (rounds, count + 1), generator=random)
        targets = torch.nn.functional.one_hot(places, vocab).double()
    drafts = torch.randint(vocab, (rounds, count), generator=random)
    likely = targets[:, :count].argmax(-1)
    drafts = torch.where(torch.rand(drafts.shape, generator=random) < 0.7, likely, drafts)
    keys = torch.tensor([key((index << 30) + vocab) for index in range(rounds)])
    positions = torch.randint(2**31, (rounds,), generator=random)
    accepted, tokens = chain(targets, drafts, proposals, keys, positions)
    expected = reference.chain(targets, drafts, proposals, keys, positions)
    assert torch.equal(accepted, expected[0])
    assert torch.equal(tokens, expected[1])
    if kind == "equal":
        assert accepted.eq(count).all()
    elif count:
        assert accepted.unique().numel() > 1
    one = chain(
        targets[3:4], drafts[3:4], None if proposals is None else proposals[3:4], keys[3:4], positions[3:4]
    )
    assert (one[0].item(), one[1].item()) == (accepted[3].item(), tokens[3].item())


def test_columns_with_names() -> None:
    """Ids in place of columns: the same columns win, and a draft that is no candidate is rejected."""
    random = torch.Generator().manual_seed(5)
    targets = table(random, 200, 3, 6)
    columns = torch.randint(6, (200, 2), generator=random)
    keys, positions = torch.tensor([key(9)]), torch.arange(200) * 5
    ids = torch.arange(6) * 7 + torch.arange(3).unsqueeze(1)
    ids = ids.expand(200, 3, 6)
    drafts = ids[:, :2].gather(2, columns.unsqueeze(2)).squeeze(2)
    accepted, tokens = chain(targets, columns, None, keys, positions)
    found = chain(targets, drafts, None, keys, positions, ids)
    assert torch.equal(found[0], accepted)
    named = ids[torch.arange(200), accepted].gather(1, tokens.unsqueeze(1)).squeeze(1)
    assert torch.equal(found[1], named)
    strange = chain(targets, torch.full_like(drafts, 1000), None, keys, positions, ids)
    assert not strange[0].any()
