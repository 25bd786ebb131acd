"""The forward pass of Qwen3-Next and Qwen3.5 over packed rows of many sequences.

Logits and all state of a row are one function of the tokens before it, to the bit: matrices, attention and
norms as in ``llama``, recurrent layers row by row (``kernels.gdn``), mixtures as in ``kernels.moe``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import torch

from txdecode.kernels.attention.cache import PagedCache, Segment
from txdecode.kernels.attention.masks import CausalMasks
from txdecode.kernels.capability import Numerics
from txdecode.kernels.gdn.recurrent import advance, fold
from txdecode.kernels.gdn.rows import Places, Records, Stretch, places
from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.choice import linear_for
from txdecode.kernels.linear.tiled import TiledLinear
from txdecode.kernels.models.gated_attention import GatedAttention, run
from txdecode.kernels.models.hybrid_config import HybridConfig
from txdecode.kernels.models.hybrid_packing import FullLayer, LinearLayer, Packer, rotary_frequencies
from txdecode.kernels.models.layout import EMBEDDING, FINAL_NORM, HEAD
from txdecode.kernels.models.llama import Limits, NonFiniteActivation, mask_table
from txdecode.kernels.models.weights import HybridWeights
from txdecode.kernels.norm.fused import extended, unit_rows
from txdecode.kernels.rotary.tables import RotaryTable

Layers = list[FullLayer | LinearLayer]


@attrs.frozen
class StateSizes:
    """Recurrent state beside the pages: ``columns`` states, ``slots`` rings of ``ring_rows`` rows, and room for
    the records of ``record_rows`` rows (0: none are kept)."""

    columns: int
    slots: int
    ring_rows: int
    record_rows: int


@attrs.frozen(eq=False)
class Made:
    """What a forward made: ``hidden`` [rows, hidden] after the final norm, ``logits`` [rows, vocab] if wanted."""

    hidden: torch.Tensor
    logits: torch.Tensor | None


class HybridModel:
    """A hybrid decoder with its state. Call it under ``torch.inference_mode``.

    ``states`` [linear layers, columns, value_heads, key_dim, value_dim], fp32; ``rings`` [linear layers,
    slots * ring_rows, conv_size], fp32, holding raw conv columns by position modulo ``ring_rows``.
    """

    def __init__(self, weights: HybridWeights, numerics: Numerics, limits: Limits, sizes: StateSizes) -> None:
        config, dtype = weights.config, numerics.dtype
        self.config = config
        self.numerics = numerics
        self.limits = limits
        packer = Packer(weights.tensors, config, numerics)
        self.embedding = extended(weights.tensors[EMBEDDING].to(dtype), config.rms_eps)
        head = weights.tensors[EMBEDDING if config.tied_head else HEAD].to(dtype)
        self._head: Linear = linear_for(dtype)(head, None)
        self._norm = (packer.scale(FINAL_NORM) * math.sqrt(config.hidden_size)).to(dtype)
        self._layers: Layers = [
            packer.full(f"model.layers.{index}", feed)
            if mixer == "full"
            else packer.linear(f"model.layers.{index}", feed)
            for index, (mixer, feed) in enumerate(zip(config.mixers, config.feeds, strict=True))
        ]
        self._tiled: Layers = [layer.tiled(numerics.row_tile) for layer in self._layers]
        self.rotary = RotaryTable(
            rotary_frequencies(config),
            1.0,
            turned=config.head_count + config.kv_head_count,
            kept=config.kv_head_count,
            context=limits.context,
            dtype=dtype,
        )
        self._attention: GatedAttention | None = None
        if config.full_layers:
            self._attention = GatedAttention(len(config.full_layers), config, numerics, limits, self.rotary)
        linear = len(config.linear_layers)
        self.ring_rows = sizes.ring_rows
        self.states = torch.zeros(linear, sizes.columns, config.value_heads, config.key_dim, config.value_dim)
        self.rings = torch.zeros(linear, sizes.slots * sizes.ring_rows, config.conv_size)
        shape = config.key_heads, config.key_dim, config.value_heads, config.value_dim
        self.records = [Records.empty(max(sizes.record_rows, 1), *shape) for _ in range(linear)]
        self._keeps_records = sizes.record_rows > 0
        # The second row of a launch that was padded to two stays zero.
        self._between = torch.zeros(max(limits.rows_max, 2), config.value_size)
        self._ones = torch.ones(max(limits.rows_max, 2), 1, dtype=dtype)

    @property
    def cache(self) -> PagedCache | None:
        """Keys and values of the layers with full attention, ``None`` where there are none."""
        return None if self._attention is None else self._attention.cache

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the packed matrices; of a mixture a round reads only the experts that it wakes."""
        return self._head.weight_bytes + sum(layer.weight_bytes for layer in self._layers)

    def ones(self, rows: int) -> torch.Tensor:
        """Ones [rows, 1] in the model's dtype."""
        return self._ones[:rows]

    def forward(
        self, segments: Sequence[Segment], stretches: Sequence[Stretch], logits: bool, record: bool = False
    ) -> Made:
        """Run the rows of all segments; state goes where the stretches say, keys and values to the pages.

        ``record`` keeps what the rows did to recurrent state, in their order. Raises ``NonFiniteActivation``, or
        ``RuntimeError`` where a kernel fails; what was written is then undefined.
        """
        assert not record or self._keeps_records, "records wanted of a model that has no room for them"
        tokens = [token for segment in segments for token in segment.tokens]
        wanted = len(tokens)
        rows = max(wanted, 2)
        x = self.embedding.index_select(0, torch.tensor(tokens * (2 if wanted == 1 else 1)))
        ones = self._ones[:rows]
        attention = self._attention
        bound = None if attention is None else attention.bind(segments, rows)
        where = places(stretches, self.ring_rows, self.config.conv_width)
        full = linear = 0
        narrow = rows <= self.numerics.row_tile
        for layer in self._layers if narrow else self._tiled:
            if isinstance(layer, FullLayer):
                assert attention is not None
                assert bound is not None
                x = run(attention, full, layer, x, ones, bound)
                full += 1
            else:
                x = self._mix(linear, layer, x, ones, where, record)
                linear += 1
        hidden = self.normed(x, ones)
        # One NaN or infinity in any layer stays in its row to the end, and makes the sum of the row one.
        if not math.isfinite(hidden[:wanted].sum().item()):
            raise NonFiniteActivation(
                "a row of the launch is not finite: the weights or the input are damaged"
            )
        scores = self.head(hidden)[:wanted] if logits else None
        return Made(hidden[:wanted], scores)

    def _mix(
        self,
        index: int,
        layer: LinearLayer,
        x: torch.Tensor,
        ones: torch.Tensor,
        where: Places,
        record: bool,
    ) -> torch.Tensor:
        """One gated-delta-net layer, its feed included."""
        projected = layer.given(unit_rows(x, ones)).float()
        rows = where.rows
        between = self._between[: x.shape[0]]
        if rows < x.shape[0]:
            between[rows:].zero_()
        records = self.records[index] if record else None
        advance(
            projected[:rows], layer.gdn, self.states[index], self.rings[index], where, records, between[:rows]
        )
        x = layer.out.add(between.to(x.dtype), x)
        return layer.feed.add(unit_rows(x, ones), x)

    def normed(self, x: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """The final norm of the residual ``x`` [rows, hidden + 1]: [rows, hidden]."""
        return unit_rows(x, ones)[:, :-1] * self._norm

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocab] of normed hidden rows [rows, hidden], at least two."""
        narrow = hidden.shape[0] <= self.numerics.row_tile
        head = self._head if narrow else TiledLinear(self._head, self.numerics.row_tile)
        return head(hidden)

    def fold(self, source: int, target: int, first: int, count: int) -> None:
        """Make column ``target`` from ``source`` (-1: zero) and the records of ``count`` rows from ``first`` on."""
        for states, records in zip(self.states, self.records, strict=True):
            fold(states, source, target, records, first, count)

    def copy_column(self, source: int, target: int) -> None:
        """Copy a state."""
        self.states[:, target] = self.states[:, source]


def memory_plan(
    config: HybridConfig, numerics: Numerics, limits: Limits, sizes: StateSizes
) -> dict[str, int]:
    """Bytes that a ``HybridModel`` and its MTP layer allocate, by name, beyond the weights they are given."""
    size = numerics.dtype.itemsize
    hidden, vocab = config.hidden_size, config.vocab_size
    full = 3 * config.q_size + 2 * config.kv_size
    linear = config.conv_size + 2 * config.value_size + 2 * config.value_heads
    feeds = sum(_feed_size(config, feed) for feed in config.feeds)
    matrices = len(config.full_layers) * full + len(config.linear_layers) * linear + feeds
    if config.mtp:
        matrices += full + 2 * hidden + _feed_size(config, config.mtp_feed)
    table_rows, slack = mask_table(config, numerics, limits)
    pages = len(config.full_layers) + config.mtp
    heads = config.kv_head_count, config.head_dim
    shape = config.key_heads, config.key_dim, config.value_heads, config.value_dim
    state = config.value_heads * config.key_dim * config.value_dim
    context_pages = -(-limits.context // numerics.key_multiple) * numerics.key_multiple // 64
    layers = len(config.linear_layers)
    return {
        "weights": (matrices * (hidden + 1) + vocab * hidden) * size,
        "embedding": vocab * (hidden + 1) * size,
        "kv_pages": PagedCache.planned_bytes(pages, *heads, limits.page_count, numerics.dtype),
        "gather": PagedCache.planned_bytes(1 + config.mtp, *heads, context_pages, numerics.dtype),
        "columns": layers * sizes.columns * state * 4,
        "rings": layers * sizes.slots * sizes.ring_rows * config.conv_size * 4,
        "tails": sizes.slots * hidden * size,
        "records": layers * sizes.record_rows * Records.empty(1, *shape).row_bytes,
        "tables": RotaryTable.planned_bytes(config.head_dim, limits.context, numerics.dtype)
        + (1 + config.mtp) * CausalMasks.planned_bytes(table_rows, limits.context, slack, numerics.dtype),
        "activations": limits.rows_max * (8 * hidden + 3 * full + linear) * size
        + limits.width_max * vocab * size,
    }


def _feed_size(config: HybridConfig, feed: str) -> int:
    """Columns of all matrices of a feed, of ``hidden`` rows each."""
    if feed == "dense" or config.moe is None:
        return 3 * config.intermediate_size
    moe = config.moe
    return moe.experts * (3 * moe.intermediate_size + 1) + 3 * moe.shared_size + 2
