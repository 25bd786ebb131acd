"""Causal attention through torch's CPU flash kernel, in the form whose bits do not depend on the batch.

The query heads of a key/value head are folded into rows, so that each key is read once; rows are padded to
a multiple of 8 and keys to a multiple that ``capability.numerics`` names; every sequence is computed by a
call of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from txdecode.kernels.attention.cache import PagedCache, Segment, Window
from txdecode.kernels.attention.masks import CausalMasks

ROW_MULTIPLE = 8

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def padded_rows(rows: int) -> int:
    """``rows`` rounded up to the multiple that the kernel is called with."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


@attrs.frozen(eq=False)
class Part:
    """One sequence of a launch: ``queries`` [1, kv_heads, padded rows, head_dim] is a view of the shared
    buffer, ``mask`` [1, 1, padded rows, keys], ``rows`` the rows that are wanted."""

    queries: torch.Tensor
    mask: torch.Tensor
    window: Window
    rows: int


@attrs.frozen(eq=False)
class Bound:
    """A launch, ready for every layer. Before each, ``queries`` [rows, heads, head_dim] is to be filled.

    ``turned`` [rows, heads + 2 * kv_heads, head_dim] is room for a rotated projection, with views of its
    ``turned_queries`` and ``keys_values``: made once a launch, not once a layer.
    """

    queries: torch.Tensor
    turned: torch.Tensor
    turned_queries: torch.Tensor
    keys_values: torch.Tensor
    parts: Sequence[Part]


class FoldedAttention:
    """Attention of a launch, layer by layer.

    Heads are in the order (fold, kv_head): query head f * kv_heads + g reads key/value head g.
    """

    def __init__(
        self,
        cache: PagedCache,
        masks: CausalMasks,
        *,
        fold: int,
        kv_heads: int,
        head_dim: int,
        rows_max: int,
        dtype: torch.dtype,
        scale: float,
    ) -> None:
        self._cache = cache
        self._masks = masks
        self._fold = fold
        self._kv_heads = kv_heads
        self._width = fold * kv_heads * head_dim
        self._scale = scale
        # Rows past the last one are read as padding and their results dropped.
        rows = rows_max * fold + ROW_MULTIPLE
        self._rows = torch.zeros(rows, kv_heads, head_dim, dtype=dtype)
        self._rows_max = rows_max
        self._turned = torch.empty(rows_max, (fold + 2) * kv_heads, head_dim, dtype=dtype)
        assert self._lays_out_by_rows(), "attention kernel of this torch lays its result out in another way"

    def _lays_out_by_rows(self) -> bool:
        queries = self._rows[:ROW_MULTIPLE].transpose(0, 1).unsqueeze(0)
        keys = self._rows.new_zeros(1, self._kv_heads, 64, self._rows.shape[2])
        out: torch.Tensor = _flash(queries, keys, keys, 0.0, False)[0]
        return out.transpose(1, 2).is_contiguous() and out.storage_offset() == 0

    @staticmethod
    def planned_bytes(rows_max: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of the query buffer, about."""
        return (rows_max + ROW_MULTIPLE) * width * dtype.itemsize

    def bind(self, segments: Sequence[Segment], rows: int) -> Bound:
        """Prepare a launch of ``rows`` rows: those of the segments, then padding rows that belong to the
        last one."""
        assert rows <= self._rows_max, (rows, self._rows_max)
        parts = []
        start = 0
        for segment in segments:
            last = segment is segments[-1]
            count = rows - start if last else len(segment.tokens)
            parts.append(self._part(segment, start, count))
            start += count
        heads = self._fold * self._kv_heads
        turned = self._turned[:rows]
        return Bound(
            self._rows[: rows * self._fold].view(rows, heads, -1),
            turned,
            turned[:, :heads],
            turned[:, heads:],
            parts,
        )

    def _part(self, segment: Segment, start: int, count: int) -> Part:
        rows = padded_rows(count * self._fold)
        first = start * self._fold
        queries = self._rows[first : first + rows].transpose(0, 1).unsqueeze(0)
        window = self._cache.window(segment)
        return Part(queries, self._masks.of(segment.position, rows, window.keys), window, count)

    def of_many(self, layer: int, bound: Bound) -> torch.Tensor:
        """Attention of ``bound.queries`` in ``layer``: [rows, heads * head_dim], same order of heads."""
        return torch.cat([self._attend(layer, part) for part in bound.parts])

    def of_one(self, layer: int, bound: Bound) -> torch.Tensor:
        """The same for a launch of one sequence, without a copy."""
        return self._attend(layer, bound.parts[0])

    def _attend(self, layer: int, part: Part) -> torch.Tensor:
        window = part.window
        if window.views is not None:
            keys, values = window.views[layer]
        else:
            assert window.index is not None
            keys, values = self._cache.gather(layer, window.index)
        out: torch.Tensor = _flash(
            part.queries, keys, values, 0.0, False, attn_mask=part.mask, scale=self._scale
        )[0]
        return out.as_strided((part.rows, self._width), (self._width, 1))
