"""Weights of a layer in the order that the forward pass wants, packed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import torch

from txdecode.kernels.capability import Numerics
from txdecode.kernels.linear import Linear
from txdecode.kernels.models.config import DenseConfig

LinearFactory = Callable[[torch.Tensor, torch.Tensor | None, int], Linear]


@attrs.frozen(eq=False)
class Layer:
    """One layer. ``qkv`` gives query heads in the order (fold, kv_head), then key heads, then value heads;
    ``o`` takes heads in that order. ``head_norm`` [query + key heads, head_dim] are the scales of Qwen3's
    norm over head_dim."""

    attention_norm: torch.Tensor
    qkv: Linear
    head_norm: torch.Tensor | None
    o: Linear
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices."""
        return sum(linear.weight_bytes for linear in (self.qkv, self.o, self.gate, self.up, self.down))


def pack_layer(
    tensors: Mapping[str, torch.Tensor],
    index: int,
    config: DenseConfig,
    numerics: Numerics,
    linear: LinearFactory,
) -> Layer:
    """Layer ``index`` of ``tensors`` (canonical names), converted to the dtype of ``numerics``."""

    def get(name: str) -> torch.Tensor:
        return tensors[f"model.layers.{index}.{name}"].to(numerics.dtype)

    def bias(name: str, present: bool) -> torch.Tensor | None:
        return get(f"{name}.bias") if present else None

    def mlp(name: str) -> Linear:
        matrix = get(f"mlp.{name}.weight")
        return linear(matrix, bias(f"mlp.{name}", config.mlp_bias), numerics.row_tile)

    q = fold_rows(get("self_attn.q_proj.weight"), config)
    qkv = torch.cat([q, get("self_attn.k_proj.weight"), get("self_attn.v_proj.weight")])
    qkv_bias = None
    if config.qkv_bias:
        q_bias = fold_rows(get("self_attn.q_proj.bias"), config)
        qkv_bias = torch.cat([q_bias, get("self_attn.k_proj.bias"), get("self_attn.v_proj.bias")])
    o = fold_rows(get("self_attn.o_proj.weight").T, config).T
    head_norm = None
    if config.qk_norm:
        q_scale = get("self_attn.q_norm.weight").expand(config.head_count, -1)
        k_scale = get("self_attn.k_norm.weight").expand(config.kv_head_count, -1)
        head_norm = torch.cat([q_scale, k_scale])
    return Layer(
        attention_norm=get("input_layernorm.weight"),
        qkv=linear(qkv, qkv_bias, numerics.row_tile),
        head_norm=head_norm,
        o=linear(o, bias("self_attn.o_proj", config.o_bias), numerics.row_tile),
        mlp_norm=get("post_attention_layernorm.weight"),
        gate=mlp("gate_proj"),
        up=mlp("up_proj"),
        down=mlp("down_proj"),
    )


def fold_rows(matrix: torch.Tensor, config: DenseConfig) -> torch.Tensor:
    """Reorder the query heads along dimension 0 from (kv_head, fold), as checkpoints have them, to
    (fold, kv_head): then the rows of one key/value head lie at one stride without a copy."""
    groups, size = config.kv_head_count, config.head_dim
    fold = config.head_count // groups
    return matrix.reshape(groups, fold, size, -1).transpose(0, 1).reshape(matrix.shape)
