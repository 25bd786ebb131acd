"""Weights of a layer in the order and form that the forward pass wants, packed once."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.choice import LinearFactory
from txdecode.kernels.linear.tiled import TiledLinear
from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.norm.fused import folded


@attrs.frozen(eq=False)
class Layer:
    """One layer. ``qkv``, ``gate`` and ``up`` read unit rows [rows, hidden + 1] (see ``kernels.norm``), ``o``
    and ``down`` add to the residual [rows, hidden + 1]. ``qkv`` gives query heads in the order (fold,
    kv_head), then key heads, then value heads; ``o`` takes heads in that order. ``head_norm`` [query + key
    heads, head_dim] are the scales of Qwen3's norm over head_dim."""

    qkv: Linear
    head_norm: torch.Tensor | None
    o: Linear
    gate: Linear
    up: Linear
    down: Linear

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices."""
        return sum(linear.weight_bytes for linear in (self.qkv, self.o, self.gate, self.up, self.down))

    def tiled(self, row_tile: int) -> Layer:
        """The same layer for more rows than one call of a matrix takes."""
        return attrs.evolve(
            self,
            qkv=TiledLinear(self.qkv, row_tile),
            o=TiledLinear(self.o, row_tile),
            gate=TiledLinear(self.gate, row_tile),
            up=TiledLinear(self.up, row_tile),
            down=TiledLinear(self.down, row_tile),
        )


def pack_layer(
    tensors: Mapping[str, torch.Tensor],
    index: int,
    config: DenseConfig,
    dtype: torch.dtype,
    linear: LinearFactory,
) -> Layer:
    """Layer ``index`` of ``tensors`` (canonical names), converted to ``dtype``."""

    def get(name: str) -> torch.Tensor:
        return tensors[f"model.layers.{index}.{name}"].to(dtype)

    def bias(name: str, present: bool) -> torch.Tensor | None:
        return get(f"{name}.bias") if present else None

    def reads(matrix: torch.Tensor, norm: str, added: torch.Tensor | None) -> Linear:
        return linear(folded(matrix, get(norm)), added)

    def writes(matrix: torch.Tensor, added: torch.Tensor | None) -> Linear:
        return linear(with_zero(matrix), None if added is None else with_zero(added))

    attention_norm, mlp_norm = "input_layernorm.weight", "post_attention_layernorm.weight"
    heads = config.kv_head_count, config.head_dim
    q = fold_rows(get("self_attn.q_proj.weight"), *heads)
    qkv = torch.cat([q, get("self_attn.k_proj.weight"), get("self_attn.v_proj.weight")])
    qkv_bias = None
    if config.qkv_bias:
        q_bias = fold_rows(get("self_attn.q_proj.bias"), *heads)
        qkv_bias = torch.cat([q_bias, get("self_attn.k_proj.bias"), get("self_attn.v_proj.bias")])
    head_norm = None
    if config.qk_norm:
        q_scale = get("self_attn.q_norm.weight").expand(config.head_count, -1)
        k_scale = get("self_attn.k_norm.weight").expand(config.kv_head_count, -1)
        head_norm = torch.cat([q_scale, k_scale])
    gate, up, down = (f"mlp.{name}_proj" for name in ("gate", "up", "down"))
    o = fold_rows(get("self_attn.o_proj.weight").T, *heads).T
    return Layer(
        qkv=reads(qkv, attention_norm, qkv_bias),
        head_norm=head_norm,
        o=writes(o, bias("self_attn.o_proj", config.o_bias)),
        gate=reads(get(f"{gate}.weight"), mlp_norm, bias(gate, config.mlp_bias)),
        up=reads(get(f"{up}.weight"), mlp_norm, bias(up, config.mlp_bias)),
        down=writes(get(f"{down}.weight"), bias(down, config.mlp_bias)),
    )


def fold_rows(matrix: torch.Tensor, kv_heads: int, size: int) -> torch.Tensor:
    """Reorder the query heads along dimension 0 from (kv_head, fold), as checkpoints have them, to
    (fold, kv_head): then the rows of one key/value head lie at one stride without a copy."""
    fold = matrix.shape[0] // (kv_heads * size)
    return matrix.reshape(kv_heads, fold, size, -1).transpose(0, 1).reshape(matrix.shape)


def with_zero(matrix: torch.Tensor) -> torch.Tensor:
    """One more row of zeros: the constant column of the residual gets nothing added."""
    return torch.cat([matrix, matrix.new_zeros(1, *matrix.shape[1:])])
