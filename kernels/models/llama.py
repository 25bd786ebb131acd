"""The forward pass of the Llama family (Llama, SmolLM, Qwen2, Qwen3) over packed rows of many sequences.

Logits, keys and values of a row are one function of the tokens before it, to the bit: linear layers and
attention are computed in the forms of ``kernels.linear`` and ``kernels.attention``, everything else is
elementwise or reduces within its row, and a launch of one row is padded to two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import torch

from txdecode.kernels.attention.cache import PagedCache, Segment
from txdecode.kernels.attention.folded import ROW_MULTIPLE, FoldedAttention
from txdecode.kernels.attention.masks import CausalMasks, table_size
from txdecode.kernels.capability import Numerics
from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.choice import linear_for
from txdecode.kernels.linear.tiled import TiledLinear
from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.hybrid_config import HybridConfig
from txdecode.kernels.models.layout import EMBEDDING, FINAL_NORM, HEAD
from txdecode.kernels.models.packing import pack_layer
from txdecode.kernels.models.rope import attention_factor, inverse_frequencies
from txdecode.kernels.models.weights import DenseWeights
from txdecode.kernels.norm.fused import extended, folded, rms_norm_heads, unit_rows
from txdecode.kernels.rotary.fused import rotate
from txdecode.kernels.rotary.tables import RotaryTable


@attrs.frozen
class Limits:
    """Sizes that a model is built for: positions below ``context``, ``rows_max`` rows a launch, of which
    ``width_max`` of one sequence are the usual case; ``page_count`` pages."""

    context: int
    rows_max: int
    width_max: int
    page_count: int


class NonFiniteActivation(RuntimeError):
    """A row came out as NaN or infinity: no token may be chosen from it."""


class LlamaModel:
    """A dense decoder with its cache. Call it under ``torch.inference_mode``."""

    def __init__(self, weights: DenseWeights, numerics: Numerics, limits: Limits) -> None:
        config, tensors, dtype = weights.config, weights.tensors, numerics.dtype
        self._config = config
        self._limits = limits
        self._last = config.layer_count - 1
        # Rounded first, folded then: equal digests give equal bits whatever dtype the weights came in.
        self._embedding = extended(tensors[EMBEDDING].to(dtype), config.rms_eps)
        head = tensors[EMBEDDING if config.tied_head else HEAD].to(dtype)
        head = folded(head, tensors[FINAL_NORM].to(dtype))
        linear = linear_for(dtype)
        self._head: Linear = linear(head, None)
        self._row_tile = numerics.row_tile
        self._ones = torch.ones(max(limits.rows_max, 2), 1, dtype=dtype)
        self._layers = [
            pack_layer(tensors, index, config, dtype, linear) for index in range(config.layer_count)
        ]
        self._tiled_layers = [layer.tiled(numerics.row_tile) for layer in self._layers]
        self._rotary = RotaryTable(
            inverse_frequencies(config),
            attention_factor(config),
            turned=config.head_count + config.kv_head_count,
            kept=config.kv_head_count,
            context=limits.context,
            dtype=dtype,
        )
        self.cache = PagedCache(
            config.layer_count,
            config.kv_head_count,
            config.head_dim,
            limits.page_count,
            dtype,
            numerics.key_multiple,
        )
        fold = config.head_count // config.kv_head_count
        rows_table, slack = mask_table(config, numerics, limits)
        self._attention = FoldedAttention(
            self.cache,
            CausalMasks(fold, rows_table, limits.context, slack, dtype),
            fold=fold,
            kv_heads=config.kv_head_count,
            head_dim=config.head_dim,
            rows_max=limits.rows_max,
            dtype=dtype,
            scale=config.head_dim**-0.5,
        )

    @property
    def parameter_bytes(self) -> int:
        """Bytes of weights that a forward pass reads once, whatever its rows: the packed matrices."""
        return self._head.weight_bytes + sum(layer.weight_bytes for layer in self._layers)

    def forward(self, segments: Sequence[Segment], logits: bool) -> torch.Tensor | None:
        """Write keys and values of all rows; with ``logits`` return those of every row, [rows, vocab].

        Rows are in the order of the segments. The result may be a view with rows beyond it. Raises
        ``NonFiniteActivation``, or ``RuntimeError`` where a kernel fails; keys and values of the rows are
        then undefined.
        """
        slots = [slot for segment in segments for slot in self.cache.place(segment)]
        tokens = [token for segment in segments for token in segment.tokens]
        positions = [p for segment in segments for p in range(segment.position, segment.end)]
        wanted = len(tokens)
        if wanted == 1:
            tokens, positions, slots = tokens * 2, positions * 2, [slots[0], self.cache.trash_slot]
        rows = len(tokens)
        x = self._embedding.index_select(0, torch.tensor(tokens))
        ones = self._ones[:rows]
        turn = self._rotary.rows(torch.tensor(positions))
        slot_index = torch.tensor(slots)
        bound = self._attention.bind(segments, rows)
        queries, turned, keys_values = bound.queries, bound.turned, bound.keys_values
        attend = self._attention.of_one if len(segments) == 1 else self._attention.of_many
        narrow = rows <= self._row_tile
        for index, layer in enumerate(self._layers if narrow else self._tiled_layers):
            projected = layer.qkv(unit_rows(x, ones)).view(turned.shape)
            if layer.head_norm is not None:
                self._normalise_heads(projected, layer.head_norm)
            rotate(projected, *turn, turned)
            self.cache.layers[index].index_copy_(0, slot_index, keys_values)
            if not logits and index == self._last:
                _check_finite(turned, wanted)
                return None
            queries.copy_(bound.turned_queries)
            x = layer.o.add(attend(index, bound), x)
            normal = unit_rows(x, ones)
            x = layer.down.add(layer.up.multiply(normal, layer.gate.silu(normal)), x)
        normal = unit_rows(x, ones)
        _check_finite(normal, wanted)
        head = self._head if narrow else TiledLinear(self._head, self._row_tile)
        return head(normal)[:wanted]

    def choices(self, rows: int) -> None:
        """Left to the caller."""

    def _normalise_heads(self, projected: torch.Tensor, scale: torch.Tensor) -> None:
        """RMSNorm over head_dim of query and key heads, in place (Qwen3)."""
        heads = projected[:, : scale.shape[0]]
        heads.copy_(rms_norm_heads(heads, scale, self._config.rms_eps))


def _check_finite(rows: torch.Tensor, wanted: int) -> None:
    # One NaN or infinity in any layer stays in its row to the end, and makes the sum of the row one.
    if not math.isfinite(rows[:wanted].sum().item()):
        raise NonFiniteActivation("a row of the launch is not finite: the weights or the input are damaged")


def mask_table(config: DenseConfig | HybridConfig, numerics: Numerics, limits: Limits) -> tuple[int, int]:
    """Rows of the mask table, and keys that it holds beyond the context."""
    fold = config.head_count // config.kv_head_count
    return table_size(fold, limits.width_max, numerics.key_multiple, ROW_MULTIPLE)


def memory_plan(config: DenseConfig, numerics: Numerics, limits: Limits) -> dict[str, int]:
    """Bytes that ``LlamaModel`` of this shape allocates, by name, beyond the weights it is given."""
    dtype = numerics.dtype
    hidden, inner, size = config.hidden_size, config.intermediate_size, dtype.itemsize
    reads = (hidden + 1) * (config.q_size + 2 * config.kv_size + 2 * inner)
    writes = (hidden + 1) * (config.q_size + inner)
    table_rows, slack = mask_table(config, numerics, limits)
    context_pages = -(-limits.context // numerics.key_multiple) * numerics.key_multiple // 64
    per_layer = (config.kv_head_count, config.head_dim)
    return {
        "weights": (config.layer_count * (reads + writes) + config.vocab_size * (hidden + 1)) * size,
        "embedding": config.vocab_size * (hidden + 1) * size,
        "kv_pages": PagedCache.planned_bytes(config.layer_count, *per_layer, limits.page_count, dtype),
        "gather": PagedCache.planned_bytes(1, *per_layer, context_pages, dtype),
        "tables": RotaryTable.planned_bytes(config.head_dim, limits.context, dtype)
        + CausalMasks.planned_bytes(table_rows, limits.context, slack, dtype),
        "activations": limits.rows_max * (6 * hidden + 3 * inner + 2 * config.q_size) * size
        + limits.width_max * config.vocab_size * size,
    }
