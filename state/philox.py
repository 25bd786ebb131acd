"""Philox4x32-10, one block at a time.

The counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011): four words of counter and two of key go in, four words come out, and no state is kept.
"""

from __future__ import annotations

Block = tuple[int, int, int, int]

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: Block, key: tuple[int, int]) -> Block:
    """The four 32-bit words at ``counter`` under ``key``; all arguments are 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1 = MULTIPLIERS
    s0, s1 = KEY_STEPS
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD, (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + s0) & WORD, (k1 + s1) & WORD
    return c0, c1, c2, c3
