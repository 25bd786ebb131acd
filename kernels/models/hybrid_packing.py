"""Weights of a hybrid's layers in the order and form that the forward pass wants, packed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
import torch

from txdecode.kernels.capability import Numerics
from txdecode.kernels.gdn.rows import GdnWeights
from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.choice import LinearFactory, linear_for
from txdecode.kernels.linear.gated import GatedFeed
from txdecode.kernels.linear.tiled import TiledLinear
from txdecode.kernels.models.hybrid_config import Feed, HybridConfig
from txdecode.kernels.models.packing import fold_rows, with_zero
from txdecode.kernels.moe.fused import Moe
from txdecode.kernels.norm.fused import folded


class FeedForward(Protocol):
    """What follows the mixer of a layer."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices."""

    def add(self, normal: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``x`` [rows, hidden + 1] plus what the block makes of its unit rows ``normal``."""


@attrs.frozen(eq=False)
class FullLayer:
    """Gated attention and its feed.

    ``qkv`` reads unit rows and gives query heads in the order (fold, kv_head), key heads, value heads, with the
    dimensions of query and key heads in the order of ``rotary_order``; ``gate`` gives what multiplies the
    attention's result, before its sigmoid, in the order that ``o`` takes. ``head_norm`` [query + key heads,
    head_dim].
    """

    qkv: Linear
    gate: Linear
    head_norm: torch.Tensor
    o: Linear
    feed: FeedForward

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices."""
        own = sum(matrix.weight_bytes for matrix in (self.qkv, self.gate, self.o))
        return own + self.feed.weight_bytes

    def tiled(self, row_tile: int) -> FullLayer:
        """The same for more rows than one call of a matrix takes."""
        qkv, gate, o = (TiledLinear(matrix, row_tile) for matrix in (self.qkv, self.gate, self.o))
        return attrs.evolve(self, qkv=qkv, gate=gate, o=o, feed=_tiled(self.feed, row_tile))


@attrs.frozen(eq=False)
class LinearLayer:
    """A gated delta net and its feed. ``given`` reads unit rows and gives queries, keys, values, z, b, a in one
    row; ``out`` adds to the residual; ``gdn`` is what lies between."""

    given: Linear
    out: Linear
    gdn: GdnWeights
    feed: FeedForward

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices."""
        return self.given.weight_bytes + self.out.weight_bytes + self.feed.weight_bytes

    def tiled(self, row_tile: int) -> LinearLayer:
        """The same for more rows than one call of a matrix takes."""
        given, out = (TiledLinear(matrix, row_tile) for matrix in (self.given, self.out))
        return attrs.evolve(self, given=given, out=out, feed=_tiled(self.feed, row_tile))


def _tiled(feed: FeedForward, row_tile: int) -> FeedForward:
    # A mixture tiles its experts itself: how many rows each gets is not known before.
    return feed.tiled(row_tile) if isinstance(feed, GatedFeed) else feed


@attrs.frozen
class Packer:
    """Packs the layers of one model."""

    tensors: Mapping[str, torch.Tensor]
    config: HybridConfig
    numerics: Numerics

    def full(self, prefix: str, feed: Feed) -> FullLayer:
        """The full-attention layer under ``prefix``, such as ``model.layers.3``."""
        config, dtype = self.config, self.numerics.dtype
        heads, size = config.head_count, config.head_dim
        order = rotary_order(size, config.rotary_dim)
        norm = self.scale(f"{prefix}.input_layernorm.weight")
        q, gate = self._get(f"{prefix}.self_attn.q_proj.weight").view(heads, 2, size, -1).unbind(1)
        k = self._get(f"{prefix}.self_attn.k_proj.weight").view(config.kv_head_count, size, -1)
        fold = config.kv_head_count, size
        turned = fold_rows(q[:, order].flatten(0, 1), *fold), k[:, order].flatten(0, 1)
        qkv = torch.cat([*turned, self._get(f"{prefix}.self_attn.v_proj.weight")])
        head_norm = torch.cat(
            [
                self.scale(f"{prefix}.self_attn.{name}_norm.weight")[order].expand(count, -1)
                for name, count in (("q", heads), ("k", config.kv_head_count))
            ]
        )
        o = fold_rows(self._get(f"{prefix}.self_attn.o_proj.weight").T, *fold).T
        return FullLayer(
            self._linear(folded(qkv, norm), None),
            self._linear(folded(fold_rows(gate.flatten(0, 1), *fold), norm), None),
            head_norm.to(dtype),
            self._linear(with_zero(o), None),
            self._feed(prefix, feed),
        )

    def linear(self, prefix: str, feed: Feed) -> LinearLayer:
        """The gated delta net under ``prefix``."""
        config = self.config
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        given = torch.cat([self._get(f"{prefix}.linear_attn.{name}.weight") for name in names])
        norm = self.scale(f"{prefix}.input_layernorm.weight")
        own = {
            name: self._get(f"{prefix}.linear_attn.{name}").float()
            for name in ("A_log", "dt_bias", "norm.weight", "conv1d.weight")
        }
        gdn = GdnWeights(
            conv=own["conv1d.weight"].squeeze(1).T.contiguous(),
            decay=-own["A_log"].exp(),
            dt_bias=own["dt_bias"],
            norm=own["norm.weight"],
            key_heads=config.key_heads,
            key_dim=config.key_dim,
            eps=config.rms_eps,
        )
        return LinearLayer(
            self._linear(folded(given, norm), None),
            self._linear(with_zero(self._get(f"{prefix}.linear_attn.out_proj.weight")), None),
            gdn,
            self._feed(prefix, feed),
        )

    def scale(self, name: str) -> torch.Tensor:
        """What the norm ``name`` multiplies with, fp32: checkpoints of these families store it less one."""
        return 1.0 + self._get(name).float()

    def _feed(self, prefix: str, feed: Feed) -> FeedForward:
        config, dtype = self.config, self.numerics.dtype
        scale = self.scale(f"{prefix}.post_attention_layernorm.weight")
        if feed == "moe":
            assert config.moe is not None, prefix
            mlp = f"{prefix}.mlp"
            return Moe(self.tensors, mlp, config.moe, scale, dtype, self._linear, self.numerics.row_tile)
        gate, up, down = (self._get(f"{prefix}.mlp.{name}_proj.weight") for name in ("gate", "up", "down"))
        return GatedFeed(
            self._linear(folded(gate, scale), None),
            self._linear(folded(up, scale), None),
            self._linear(with_zero(down), None),
        )

    @property
    def _linear(self) -> LinearFactory:
        return linear_for(self.numerics.dtype)

    def _get(self, name: str) -> torch.Tensor:
        return self.tensors[name].to(self.numerics.dtype)


def rotary_order(head_dim: int, rotary_dim: int) -> torch.Tensor:
    """Dimensions of a head in the order that lets a partial rotation run as a whole one.

    Checkpoints pair dimension i with i + rotary_dim / 2 and leave those from rotary_dim on alone; the rotation
    here pairs i with i + head_dim / 2. Queries and keys in the same other order have the same products.
    """
    turning, half = rotary_dim // 2, head_dim // 2
    resting = torch.arange(rotary_dim, head_dim)
    split = half - turning
    return torch.cat(
        [torch.arange(turning), resting[:split], torch.arange(turning, rotary_dim), resting[split:]]
    )


def rotary_frequencies(config: HybridConfig) -> list[float]:
    """Angular frequencies, radians a token, of the head_dim / 2 pairs of ``rotary_order``; zero does not turn."""
    turning = config.rotary_dim // 2
    rates = [config.rope_theta ** (-2.0 * i / config.rotary_dim) for i in range(turning)]
    return rates + [0.0] * (config.head_dim // 2 - turning)
