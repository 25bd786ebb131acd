"""The additive 64-bit digest of a ledger: the sum, modulo 2^64, of ``mix`` over its cells.

A sum lets a change cost what it changes, lets the records of a batch stack, and equals a full
recomputation whatever the order of the cells. It finds faults; it is no defence against an adversary.
The arithmetic is normative: specs/ledgers.md.
"""

from __future__ import annotations

import struct

MASK = (1 << 64) - 1

# Odd constants: the golden ratio and the multipliers of two published 64-bit finalizers (splitmix64 by
# Steele, Lea and Flood; murmur3's fmix64 by Appleby).
_TAG = 0x9E3779B97F4A7C15
_A = 0xBF58476D1CE4E5B9
_B = 0x94D049BB133111EB
_V = 0xFF51AFD7ED558CCD
_F = 0xC4CEB9FE1A85EC53


def mix(tag: int, a: int, b: int, value: int) -> int:
    """The 64-bit contribution of the cell (tag, a, b) holding ``value``. An absent cell contributes
    nothing, so a changed cell is subtracted with its old value and added with its new one."""
    x = (tag * _TAG + a * _A + b * _B + value * _V) & MASK
    x = ((x ^ (x >> 29)) * _F) & MASK
    return x ^ (x >> 32)


LEDGERS = ("tokens", "pages", "recurrent", "history", "rng")
"""The ledgers in the order in which digests are written."""

Digests = tuple[int, int, int, int, int]
ZERO: Digests = (0, 0, 0, 0, 0)

_PACK = struct.Struct("<5Q")


def add(base: Digests, increments: Digests) -> Digests:
    """Digests after a delta."""
    a, b, c, d, e = base
    i, j, k, m, n = increments
    return ((a + i) & MASK, (b + j) & MASK, (c + k) & MASK, (d + m) & MASK, (e + n) & MASK)


def pack(digests: Digests) -> bytes:
    """40 bytes: five little-endian unsigned 64-bit integers in the order of ``LEDGERS``."""
    return _PACK.pack(*digests)


def unpack(data: bytes) -> Digests:
    """Inverse of ``pack``; the length is the caller's to check (``len(data) == 40``)."""
    a, b, c, d, e = _PACK.unpack(data)
    return (a, b, c, d, e)


PACKED_SIZE = _PACK.size
