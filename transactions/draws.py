"""Where the random words of a round come from, and what they mean. Normative text: specs/rng.md.

A word has a fixed address: the request's seed, the output position, the role, an index, and for the drafts of
the chain law the epoch and attempt. So it does not depend on the borders of rounds, on widths or batch mates.
"""

from __future__ import annotations

import math
from typing import Protocol

import attrs

from txdecode.state.philox import WORD, philox
from txdecode.state.rng import ROLES

TARGET, ACCEPT, RESIDUAL, DRAFT = range(len(ROLES))

WORDS = 4
"""Words of a block: index i is word i % 4 of block i // 4."""

_ATTEMPT_BITS = 20


class Draw(Protocol):
    """The word of a role for the row ``row`` of a round; row 0 decides the round's first output position."""

    def __call__(self, role: int, row: int, index: int = 0) -> int: ...


def key(seed: int) -> tuple[int, int]:
    """The Philox key of a 64-bit seed: low word, high word."""
    return seed & WORD, seed >> 32


def salt(epoch: int, attempt: int) -> int:
    """Fourth word of the counter for a draft's draws under the chain law."""
    return ((epoch << _ATTEMPT_BITS) | (attempt & ((1 << _ATTEMPT_BITS) - 1))) & WORD


def word(seed: int, role: int, position: int, index: int = 0, fourth: int = 0) -> int:
    """The 32-bit word at an address."""
    block, lane = divmod(index, WORDS)
    return philox((block, position & WORD, role, fourth), key(seed))[lane]


def uniform(x: int) -> float:
    """A word as a number in (0, 1), symmetric about one half, exact in fp64: never 0, never 1."""
    return (x + 0.5) * 2.0**-32


def exponential(x: int) -> float:
    """A word as a draw of the exponential distribution: finite and above zero for every word, rising with it."""
    return -math.log1p(-uniform(x))


@attrs.define
class Words:
    """The words of one round: ``position`` is the output position that row 0 decides. Blocks are kept, since the
    race of a row takes all four words of each."""

    seed: int
    position: int
    fourth: int = 0
    _blocks: dict[tuple[int, int, int], tuple[int, int, int, int]] = attrs.Factory(dict)

    def __call__(self, role: int, row: int, index: int = 0) -> int:
        """See ``Draw``."""
        block, lane = divmod(index, WORDS)
        address = (role, row, block)
        words = self._blocks.get(address)
        if words is None:
            position = (self.position + row) & WORD
            words = philox((block, position, role, self.fourth), key(self.seed))
            self._blocks[address] = words
        return words[lane]
