"""Gated attention of packed rows: what the layers of a hybrid and its MTP layer share."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from txdecode.kernels.attention.cache import PagedCache, Segment
from txdecode.kernels.attention.folded import Bound, FoldedAttention
from txdecode.kernels.attention.masks import CausalMasks
from txdecode.kernels.capability import Numerics
from txdecode.kernels.models.hybrid_config import HybridConfig
from txdecode.kernels.models.hybrid_packing import FullLayer
from txdecode.kernels.models.llama import Limits, mask_table
from txdecode.kernels.norm.fused import rms_norm_heads, unit_rows
from txdecode.kernels.rotary.fused import rotate
from txdecode.kernels.rotary.tables import RotaryTable

Turn = tuple[torch.Tensor, torch.Tensor]


@attrs.frozen(eq=False)
class Rows:
    """A launch as attention sees it: ``slots`` [rows] physical rows, ``turn`` the rotation of each row."""

    bound: Bound
    slots: torch.Tensor
    turn: Turn
    single: bool


class GatedAttention:
    """Attention of ``layers`` layers over one paged cache. The first ``hidden`` positions are seen by no row."""

    def __init__(
        self,
        layers: int,
        config: HybridConfig,
        numerics: Numerics,
        limits: Limits,
        rotary: RotaryTable,
        hidden: int = 0,
    ) -> None:
        self._eps = config.rms_eps
        self._rotary = rotary
        self._shift = hidden
        dtype = numerics.dtype
        heads = config.kv_head_count, config.head_dim
        self.cache = PagedCache(layers, *heads, limits.page_count, dtype, numerics.key_multiple)
        fold = config.head_count // config.kv_head_count
        rows, slack = mask_table(config, numerics, limits)
        self._attention = FoldedAttention(
            self.cache,
            CausalMasks(fold, rows, limits.context, slack, dtype, hidden),
            fold=fold,
            kv_heads=config.kv_head_count,
            head_dim=config.head_dim,
            rows_max=limits.rows_max,
            dtype=dtype,
            scale=config.head_dim**-0.5,
        )

    def bind(self, segments: Sequence[Segment], rows: int) -> Rows:
        """Prepare a launch of ``rows`` rows: those of the segments, and at most one of padding.

        Segments say slots; positions are slots less the number of hidden ones, so that a pair of the MTP layer
        in slot i + 1 has position i.
        """
        slots = [slot for segment in segments for slot in self.cache.place(segment)]
        positions = [
            max(p - self._shift, 0) for segment in segments for p in range(segment.position, segment.end)
        ]
        if rows > len(slots):
            slots.append(self.cache.trash_slot)
            positions.append(positions[0])
        bound = self._attention.bind(segments, rows)
        turn = self._rotary.rows(torch.tensor(positions))
        return Rows(bound, torch.tensor(slots), turn, len(segments) == 1)

    def write(self, index: int, layer: FullLayer, normal: torch.Tensor, rows: Rows) -> None:
        """Project unit rows, write their keys and values to layer ``index`` of the cache."""
        bound = rows.bound
        projected = layer.qkv(normal).view(bound.turned.shape)
        heads = projected[:, : layer.head_norm.shape[0]]
        heads.copy_(rms_norm_heads(heads, layer.head_norm, self._eps))
        rotate(projected, *rows.turn, bound.turned)
        self.cache.layers[index].index_copy_(0, rows.slots, bound.keys_values)

    def add(
        self, index: int, layer: FullLayer, normal: torch.Tensor, x: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        """``x`` [rows, hidden + 1] plus the gated attention of its unit rows ``normal``."""
        self.write(index, layer, normal, rows)
        rows.bound.queries.copy_(rows.bound.turned_queries)
        attend = self._attention.of_one if rows.single else self._attention.of_many
        attended = attend(index, rows.bound)
        return layer.o.add(attended * layer.gate.sigmoid(normal), x)


def run(
    attention: GatedAttention,
    index: int,
    layer: FullLayer,
    x: torch.Tensor,
    ones: torch.Tensor,
    rows: Rows,
) -> torch.Tensor:
    """One full-attention layer, its feed included."""
    x = attention.add(index, layer, unit_rows(x, ones), x, rows)
    return layer.feed.add(unit_rows(x, ones), x)
