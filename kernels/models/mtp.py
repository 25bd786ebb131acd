"""The MTP layer (multi-token prediction): from the pair (hidden of row i, token i + 1) to token i + 2.

One layer is used for every depth: its output takes the place of the target's hidden row. Only rows made from the
*target's* hidden rows are state; those of a recursion are scratch, past the committed length. Pair (h[i], x[i+1])
lies in slot i + 1 and has position i, so a page of pairs closes with the target's page; slot 0 holds nothing.
Sources: transformers' MtpModel, vLLM's qwen3_next_mtp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from txdecode.kernels.attention.cache import PagedCache, Segment
from txdecode.kernels.linear.choice import linear_for
from txdecode.kernels.linear.tiled import TiledLinear
from txdecode.kernels.models.gated_attention import GatedAttention, run
from txdecode.kernels.models.hybrid import HybridModel
from txdecode.kernels.models.hybrid_packing import FullLayer, Packer
from txdecode.kernels.models.packing import with_zero
from txdecode.kernels.models.weights import HybridWeights
from txdecode.kernels.norm.fused import folded, unit_rows


class MtpLayer:
    """The layer with its cache of pairs, beside the target whose embedding, rotation and head it shares."""

    def __init__(self, weights: HybridWeights, target: HybridModel) -> None:
        config, numerics = weights.config, target.numerics
        assert config.mtp, "a model without an MTP layer"
        self._target = target
        packer = Packer(weights.tensors, config, numerics)
        dtype, hidden = numerics.dtype, config.hidden_size
        embedded, shown = weights.tensors["mtp.fc.weight"].to(dtype).chunk(2, 1)
        self._constant = math.sqrt(hidden * config.rms_eps)
        # The constant column of the residual enters as the bias of the first product.
        bias = torch.zeros(hidden + 1, dtype=dtype)
        bias[-1] = self._constant
        linear = linear_for(dtype)
        scales = [packer.scale(f"mtp.pre_fc_norm_{name}.weight") for name in ("embedding", "hidden")]
        self._embedded = linear(with_zero(folded(embedded, scales[0])), bias)
        self._shown = linear(with_zero(folded(shown, scales[1])), None)
        self._layer = packer.full("mtp.layers.0", config.mtp_feed)
        self._tiled = self._layer.tiled(numerics.row_tile)
        self._norm = (packer.scale("mtp.norm.weight") * math.sqrt(hidden)).to(dtype)
        self._attention = GatedAttention(1, config, numerics, target.limits, target.rotary, hidden=1)

    @property
    def cache(self) -> PagedCache:
        """Keys and values of the pairs, one layer."""
        return self._attention.cache

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the layer's packed matrices; the head is the target's."""
        own = (self._embedded, self._shown, self._layer)
        return sum(matrix.weight_bytes for matrix in own)

    def absorb(self, segments: Sequence[Segment], hidden: torch.Tensor) -> None:
        """Write pairs: ``segments`` give their tokens and slots, ``hidden`` [rows, hidden] the target's row before
        each token. No attention is computed: later rows need keys and values alone."""
        x, ones = self._joined(segments, hidden)
        rows = self._attention.bind(segments, x.shape[0])
        self._attention.write(0, self._layer_for(x), unit_rows(x, ones), rows)

    def step(self, segments: Sequence[Segment], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One draft step of one row a segment: ``hidden`` [rows, hidden] for the next step, logits [rows, vocab]."""
        count = len(segments)
        x, ones = self._joined(segments, hidden)
        rows = self._attention.bind(segments, x.shape[0])
        x = run(self._attention, 0, self._layer_for(x), x, ones, rows)
        shown = unit_rows(x, ones)[:, :-1] * self._norm
        return shown[:count], self._target.head(shown)[:count]

    def _layer_for(self, x: torch.Tensor) -> FullLayer:
        return self._layer if x.shape[0] <= self._target.numerics.row_tile else self._tiled

    def _joined(self, segments: Sequence[Segment], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's input [rows, hidden + 1], at least two rows, and ones to match."""
        tokens = [token for segment in segments for token in segment.tokens]
        assert hidden.shape[0] == len(tokens), (hidden.shape, len(tokens))
        if len(tokens) == 1:
            tokens, hidden = tokens * 2, hidden.expand(2, -1)
        rows = len(tokens)
        ones = self._target.ones(rows)
        constant = hidden.new_full((rows, 1), self._constant)
        seen = self._target.embedding.index_select(0, torch.tensor(tokens))
        tile = self._target.numerics.row_tile
        embedded, shown = (
            matrix if rows <= tile else TiledLinear(matrix, tile) for matrix in (self._embedded, self._shown)
        )
        known = unit_rows(torch.cat([hidden, constant], 1), ones)
        return shown.add(known, embedded(unit_rows(seen, ones))), ones
