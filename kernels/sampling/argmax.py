"""The greedy choice in two stages: torch's own argmax walks a whole row without vector instructions."""

from __future__ import annotations

import math

import torch

from txdecode.kernels.sampling.reference import NOTHING

_BLOCK = 256


def lowest_argmax(logits: torch.Tensor) -> list[int]:
    """See ``reference``. ``logits`` is contiguous. A NaN wins both stages, and so is found.

    Both stages take the first of equals, which ``torch.max`` documents and tests here hold it to: the
    first block that reaches the maximum, then the first place in that block.
    """
    rows, vocab = logits.shape
    block = math.gcd(vocab, _BLOCK)
    if block < 16:
        return _sound(*logits.max(-1))
    blocks = logits.view(rows, vocab // block, block)
    first = blocks.amax(-1).max(-1).indices
    largest, inside = blocks[torch.arange(rows), first].max(-1)
    return _sound(largest, inside.add_(first, alpha=block))


def _sound(largest: torch.Tensor, ids: torch.Tensor) -> list[int]:
    found: list[int] = ids.tolist()
    return [
        token if math.isfinite(value) else NOTHING
        for token, value in zip(found, largest.tolist(), strict=True)
    ]
