"""Causal attention as a formula."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from txdecode.kernels.attention.cache import PAGE_ROWS


def attend(
    queries: torch.Tensor, layer: torch.Tensor, pages: Sequence[int], position: int, scale: float
) -> torch.Tensor:
    """Softmax attention of ``queries`` [rows, fold, kv_heads, head_dim] at positions ``position`` ..

    ``layer`` [pool rows, 2 * kv_heads, head_dim] holds keys, then values; ``pages`` is the page table. Row
    r sees the keys 0 .. position + r. Returns [rows, fold * kv_heads * head_dim] in the dtype of
    ``queries``, computed in fp64.
    """
    rows, _, kv_heads, _ = queries.shape
    result = torch.empty(queries.shape, dtype=torch.float64)
    for row in range(rows):
        seen = position + row + 1
        slots = [pages[key // PAGE_ROWS] * PAGE_ROWS + key % PAGE_ROWS for key in range(seen)]
        keys = layer[slots, :kv_heads].double()
        values = layer[slots, kv_heads:].double()
        scores = torch.einsum("fgd,kgd->fgk", queries[row].double(), keys) * scale
        result[row] = torch.einsum("fgk,kgd->fgd", scores.softmax(-1), values)
    return result.flatten(1).to(queries.dtype)
