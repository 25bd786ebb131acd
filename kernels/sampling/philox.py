"""Philox4x32-10 over tensors: the words of ``txdecode.transactions.draws.word`` for many addresses at once.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). torch has no
unsigned 32-bit product with a high half, so words lie in int64. A product is kept with whatever its upper half
holds, and masked only where it enters the next product.
"""

from __future__ import annotations

import torch

from txdecode.state.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, WORD
from txdecode.transactions.draws import WORDS

_WORD_BITS = 32

_FACTORS = tuple(torch.tensor(MULTIPLIERS[::step]).view(2, 1, 1) for step in (1, -1))
_STEPS = torch.arange(ROUNDS).view(ROUNDS, 1, 1, 1) * torch.tensor(KEY_STEPS).view(1, 2, 1, 1)

_CHUNK_BLOCKS = 1 << 16
"""Blocks worked on at once, which bounds the working memory (about 100 bytes a block)."""

_OPENING_ROUNDS = 3
"""Rounds in which most inputs depend on the row alone or on the block alone. The others are odd in number, which
fixes the order of the results."""


def words(
    keys: torch.Tensor,
    positions: torch.Tensor,
    role: int,
    ids: torch.Tensor | None = None,
    count: int = 0,
    fourth: torch.Tensor | int = 0,
) -> torch.Tensor:
    """32-bit words by address, in int64: [rows, n] for ``ids`` [rows, n], else [rows, count] for ids 0..count-1.

    ``keys`` is [rows, 2], low and high half of the seed, or [1, 2] where all rows share it (which costs less);
    ``positions`` [rows]; ``fourth`` is the fourth word of the counter, one for all or [rows]. All int64.
    """
    rows = positions.shape[0]
    if ids is not None:
        return _at(keys, positions, role, ids, fourth)
    blocks = -(-count // WORDS)
    made = torch.empty(rows, blocks, WORDS, dtype=torch.int64)
    fill(made, keys, positions, role, fourth)
    return made.view(rows, blocks * WORDS)[:, :count]


def fill(
    out: torch.Tensor,
    keys: torch.Tensor,
    positions: torch.Tensor,
    role: int,
    fourth: torch.Tensor | int = 0,
) -> None:
    """Write the words of blocks 0.. into ``out`` [rows, blocks, 4], converted to its dtype (fp32 rounds to
    nearest). The rest as in ``words``."""
    rows, blocks = out.shape[:2]
    if not rows or not blocks:
        return
    step = max(_CHUNK_BLOCKS // blocks, 1)
    block = torch.arange(blocks).unsqueeze(0)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        key = keys if keys.shape[0] == 1 else keys[start:stop]
        last = fourth if isinstance(fourth, int) else fourth[start:stop]
        lanes = _lanes(block, key, positions[start:stop], role, last)
        for lane, values in enumerate(lanes):
            out[start:stop, :, lane].copy_(values)


def _at(
    keys: torch.Tensor, positions: torch.Tensor, role: int, ids: torch.Tensor, fourth: torch.Tensor | int
) -> torch.Tensor:
    rows, count = ids.shape
    made = torch.empty(rows, count, dtype=torch.int64)
    if not rows or not count:
        return made
    step = max(_CHUNK_BLOCKS // count, 1)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        part = ids[start:stop]
        key = keys if keys.shape[0] == 1 else keys[start:stop]
        last = fourth if isinstance(fourth, int) else fourth[start:stop]
        lanes = _lanes(part >> 2, key, positions[start:stop], role, last)
        torch.gather(torch.stack(lanes), 0, (part & 3).unsqueeze(0), out=made[start:stop].unsqueeze(0))
    return made


def _lanes(
    block: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor, role: int, fourth: torch.Tensor | int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four words of every block, [rows, n] each, for ``block`` [rows or 1, n]."""
    m0, m1 = MULTIPLIERS
    schedule = (keys.T.reshape(1, 2, -1, 1) + _STEPS).bitwise_and_(WORD)
    fourths = fourth if isinstance(fourth, torch.Tensor) else torch.full((1,), fourth)
    c0, c1, c2, c3 = block, (positions & WORD).unsqueeze(1), torch.full((1, 1), role), fourths.unsqueeze(1)
    # Tensors of one row or one column meet by broadcasting, so these rounds cost a tenth of the later ones.
    for k0, k1 in schedule[:_OPENING_ROUNDS].unbind():
        p0, p1 = c0 * m0, c2 * m1
        c0 = (p1 >> _WORD_BITS).bitwise_and_(WORD) ^ (c1 ^ k0).bitwise_and_(WORD)
        c2 = (p0 >> _WORD_BITS).bitwise_and_(WORD) ^ (c3 ^ k1).bitwise_and_(WORD)
        c1, c3 = p1, p0
    shape = (2, positions.shape[0], block.shape[1])
    state, before, product = (torch.empty(shape, dtype=torch.int64) for _ in range(3))
    s0, s1 = state.unbind()
    s0.copy_(c0)
    s1.copy_(c2)
    before[0].copy_(c1)
    before[1].copy_(c3)
    # A round leaves its two results in the other order; the next one takes them so, which spares swapping.
    later = schedule[_OPENING_ROUNDS:]
    turns = zip(later.flip(1)[::2].unbind(), (*later[1::2].unbind(), None), strict=True)
    buffers = (before, product, before.unbind(), product.unbind())
    for number, k in enumerate(k for pair in turns for k in pair if k is not None):
        before, product, (b0, b1), _ = buffers
        torch.mul(state, _FACTORS[number % 2], out=product)
        torch.bitwise_right_shift(product, _WORD_BITS, out=state)
        s0.bitwise_xor_(b1)
        s1.bitwise_xor_(b0)
        state.bitwise_xor_(k).bitwise_and_(WORD)
        buffers = (product, before, buffers[3], buffers[2])
    last = buffers[0].bitwise_and_(WORD)
    return s1, last[1], s0, last[0]
