"""Random weights of small decoders in canonical names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.layout import tensor_shapes
from txdecode.kernels.models.weights import DenseWeights

MakeConfig = Callable[..., DenseConfig]
MakeWeights = Callable[..., DenseWeights]

_TINY = DenseConfig(
    architecture="llama",
    vocab_size=320,
    hidden_size=96,
    intermediate_size=160,
    layer_count=2,
    head_count=6,
    kv_head_count=2,
    head_dim=16,
    rope_theta=10_000.0,
    rms_eps=1e-5,
    context=512,
)
_VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-biased": {"o_bias": True, "qkv_bias": True, "mlp_bias": True, "tied_head": True},
    "qwen2": {"architecture": "qwen2", "qkv_bias": True, "kv_head_count": 1},
    "qwen3": {"architecture": "qwen3", "qk_norm": True, "tied_head": True, "head_dim": 32},
    "every-head-its-own": {"head_count": 4, "kv_head_count": 4},
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from threads, and threads that wait for each other starve on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_config() -> MakeConfig:
    """``make_config(variant, **changes)``: a tiny configuration."""

    def make(variant: str = "llama", **changes: Any) -> DenseConfig:
        return attrs.evolve(_TINY, **{**_VARIANTS[variant], **changes})

    return make


@pytest.fixture(scope="session")
def make_weights(make_config: MakeConfig) -> MakeWeights:
    """``make_weights(variant, seed=…, **changes)``: fp32 weights whose activations stay of order one."""

    def make(variant: str = "llama", seed: int = 0, **changes: Any) -> DenseWeights:
        config = make_config(variant, **changes)
        random = torch.Generator().manual_seed(seed)
        tensors = {}
        for name, shape in tensor_shapes(config).items():
            values = torch.randn(shape, generator=random)
            if "norm" in name:
                tensors[name] = 1.0 + 0.2 * values
            elif name.endswith("bias"):
                tensors[name] = 0.2 * values
            else:
                tensors[name] = values / math.sqrt(shape[-1]) * (1.0 if "embed" not in name else 4.0)
        return DenseWeights(config, tensors, f"random-{variant}-{seed}")

    return make
