"""The shape of a hybrid decoder as plain data: gated-delta-net layers among layers of full attention."""

from __future__ import annotations

from typing import Literal

import attrs

from txdecode.kernels.models.config import DenseConfig

HybridArchitecture = Literal["qwen3_next", "qwen3_5"]
Mixer = Literal["linear", "full"]
Feed = Literal["dense", "moe"]


@attrs.frozen
class MoeConfig:
    """A mixture of SwiGLU experts: softmax over all, the ``per_token`` largest, and a shared expert.

    ``shared_size`` is the inner width of the shared expert, 0 where there is none. ``normalise``: the
    weights of the chosen experts are scaled to sum to one.
    """

    experts: int
    per_token: int
    intermediate_size: int
    shared_size: int
    normalise: bool


@attrs.frozen
class HybridConfig:
    """A decoder of the Qwen3-Next and Qwen3.5 families.

    ``mixers`` and ``feeds`` say for every layer how it mixes rows and what follows. Full attention has
    gated queries, RMSNorm over head_dim on queries and keys, and rotates the first ``rotary_dim``
    dimensions of a head in halves. ``key_heads``, ``value_heads``, ``key_dim`` and ``value_dim`` are those
    of the gated delta net: numbers of heads, and dimensions of one head. ``intermediate_size`` is that of
    dense feeds, 0 where there are none. ``mtp``: one layer of full attention with feed ``mtp_feed``
    predicts the token after the next.
    """

    architecture: HybridArchitecture
    vocab_size: int
    hidden_size: int
    mixers: tuple[Mixer, ...]
    feeds: tuple[Feed, ...]
    intermediate_size: int
    moe: MoeConfig | None
    head_count: int
    kv_head_count: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_eps: float
    context: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    tied_head: bool
    mtp: bool
    mtp_feed: Feed

    @property
    def layer_count(self) -> int:
        """Layers of the target; the MTP layer is not among them."""
        return len(self.mixers)

    @property
    def q_size(self) -> int:
        """Width of all query heads together, without their gates."""
        return self.head_count * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads of full attention together; the value heads have the same."""
        return self.kv_head_count * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all key heads of the delta net together; its queries have the same."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Width of all value heads of the delta net together."""
        return self.value_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """Channels of the causal convolution: queries, keys, values."""
        return 2 * self.key_size + self.value_size

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of the layers with a gated delta net, ascending."""
        return tuple(index for index, mixer in enumerate(self.mixers) if mixer == "linear")

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the layers with full attention, ascending."""
        return tuple(index for index, mixer in enumerate(self.mixers) if mixer == "full")


ModelConfig = DenseConfig | HybridConfig
