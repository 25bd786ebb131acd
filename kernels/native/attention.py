"""Keys, values and attention in pages of 64 rows, read by the same product as matrices.

A page holds, for each key/value head, its keys as a matrix with an output for each token, [8 blocks of tokens,
pairs of dimensions, 8, 2], and its values as one with an output for each dimension, [blocks of 8 dimensions, 32
pairs of tokens, 8, 2]. So scores are queries times the panels of keys, what attention gives is weights times the
panels of values, and no row is gathered or copied, wherever its page lies.

A page never holds a number that is not finite: a token that a row may not see has weight zero, and zero times what
lies there must be zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from txdecode.kernels.native.compiled import compiled
from txdecode.kernels.native.lanes import LANES, exp_sum, largest
from txdecode.kernels.native.product import panel_product

PAGE_ROWS = 64
_LOWEST = np.float32(-np.inf)
_ONE = np.float32(1.0)


@compiled
def rounded(word: Any) -> Any:
    """The upper half of an fp32 word, to the nearest, ties to even: its bf16. NaN stays NaN."""
    if (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint16(0x7FC0)
    return np.uint16((word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@compiled
def store_key(page: Any, row: Any, key: Any) -> None:
    """Put ``key`` [head_dim] uint32 (the bits of fp32) at ``row`` of a head's page of keys, flat uint16."""
    pairs = key.shape[0] // 2
    first = ((row // LANES) * pairs * LANES + row % LANES) * 2
    for i in range(key.shape[0]):
        page[first + (i // 2) * 2 * LANES + i % 2] = rounded(key[i])


@compiled
def store_value(page: Any, row: Any, value: Any) -> None:
    """Put ``value`` [head_dim] uint32 at ``row`` of a head's page of values."""
    first = (row // 2) * LANES * 2 + row % 2
    for i in range(value.shape[0]):
        page[first + (i // LANES) * PAGE_ROWS * LANES + (i % LANES) * 2] = rounded(value[i])


@compiled
def attend(
    queries: Any,
    first: Any,
    rows: Any,
    fold: Any,
    position: Any,
    keys: Any,
    values: Any,
    pages: Any,
    kv_head: Any,
    scores: Any,
    made: Any,
    out: Any,
) -> None:
    """Attention of ``rows`` rows of one sequence, the first at ``position``, with one key/value head.

    ``queries`` [fold * rows.., head_dim] from ``first`` on, scaled, the heads of a row together. ``keys`` and
    ``values`` [pages, kv_heads, 64 * head_dim] uint16, ``pages`` the sequence's own. ``scores`` [fold * rows..,
    tokens] and ``made`` [fold * rows.., head_dim] are scratch; ``out`` [rows, heads * head_dim] takes head
    ``kv_head * fold + i`` of each row.
    """
    dim = queries.shape[1]
    count = rows * fold
    end = position + rows
    held = (end + PAGE_ROWS - 1) // PAGE_ROWS
    stride = scores.shape[1] * 4
    head_bytes = keys.shape[2] * 2
    page_bytes = keys.shape[1] * head_bytes
    x, row_bytes = queries.ctypes.data + first * dim * 4, dim * 4
    to = scores.ctypes.data
    key_at, value_at = keys.ctypes.data + kv_head * head_bytes, values.ctypes.data + kv_head * head_bytes
    for ordinal in range(held):
        panels = min((end - ordinal * PAGE_ROWS + LANES - 1) // LANES, PAGE_ROWS // LANES)
        at = key_at + pages[ordinal] * page_bytes
        panel_product(
            x,
            row_bytes,
            count,
            at,
            dim * LANES * 2,
            dim // 2,
            panels,
            to + ordinal * PAGE_ROWS * 4,
            stride,
            0,
        )
    # Weights of all rows reach to the same token, an even one: values come in pairs.
    shown = (end + LANES - 1) // LANES
    sums = np.empty(count, np.float32)
    for index in range(count):
        row = scores[index]
        for token in range(position + index // fold + 1, shown * LANES):
            row[token] = _LOWEST
        at = row.ctypes.data
        sums[index] = exp_sum(at, shown, largest(at, shown))
    for ordinal in range(held):
        pairs = min((end - ordinal * PAGE_ROWS + 1) // 2, PAGE_ROWS // 2)
        at = value_at + pages[ordinal] * page_bytes
        panel_product(
            to + ordinal * PAGE_ROWS * 4,
            stride,
            count,
            at,
            PAGE_ROWS * LANES * 2,
            pairs,
            dim // LANES,
            made.ctypes.data,
            dim * 4,
            min(ordinal, 1),
        )
    for index in range(count):
        row = out[index // fold]
        column = (kv_head * fold + index % fold) * dim
        share = _ONE / sums[index]
        for i in range(dim):
            row[column + i] = made[index, i] * share
