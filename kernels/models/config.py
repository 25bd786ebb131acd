"""The shape of a dense decoder as plain data: what every loader produces and every executor reads."""

from __future__ import annotations

from typing import Literal

import attrs

Architecture = Literal["llama", "qwen2", "qwen3"]
RopeKind = Literal["linear", "llama3", "yarn", "divisors"]

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3")


@attrs.frozen
class RopeScaling:
    """How the rotary frequencies are stretched past the context of pre-training.

    - ``linear``: every frequency is divided by ``factor``.
    - ``llama3``: wavelengths beyond ``original_context / low_freq_factor`` are divided by ``factor``, those
      below ``original_context / high_freq_factor`` are kept, those between are blended.
    - ``yarn``: ramp between ``beta_fast`` and ``beta_slow`` rotations over ``original_context``
      (arXiv 2309.00071); ``attention_factor`` multiplies cos and sin, ``None`` derives it from ``factor``,
      ``mscale`` and ``mscale_all_dim``; ``truncate`` rounds the ends of the ramp outwards.
    - ``divisors``: one divisor a frequency (head_dim / 2 of them), as GGUF files store it.
    """

    kind: RopeKind
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()


@attrs.frozen
class DenseConfig:
    """A dense decoder of the Llama family: pre-norm, rotary positions, grouped queries, SwiGLU.

    ``context``: most tokens that the model was made for. ``tied_head``: the output head is the embedding.
    ``qkv_bias``, ``o_bias``, ``mlp_bias``: which projections add a bias. ``qk_norm``: RMSNorm over head_dim
    on queries and keys before the rotation (Qwen3). Rotation is in halves: dimension i pairs with
    i + head_dim / 2, the layout of Hugging Face weights.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    rope_theta: float
    rms_eps: float
    context: int
    tied_head: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope_scaling: RopeScaling | None = None

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.head_count * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; the value heads have the same."""
        return self.kv_head_count * self.head_dim
