"""Rotary frequencies against transformers' own initialisers."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from txdecode.kernels.models.config import DenseConfig, RopeScaling
from txdecode.kernels.models.rope import attention_factor, inverse_frequencies

CASES: list[tuple[str, dict[str, Any], RopeScaling | None]] = [
    ("linear", {"rope_type": "linear", "factor": 4.0}, RopeScaling("linear", factor=4.0)),
    (
        "llama3",
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        RopeScaling("llama3", factor=8.0, original_context=8192),
    ),
    (
        "yarn",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        RopeScaling("yarn", factor=4.0, original_context=4096),
    ),
    (
        "yarn",
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 24.0,
            "beta_slow": 2.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
            "truncate": False,
        },
        RopeScaling(
            "yarn",
            factor=40.0,
            original_context=4096,
            beta_fast=24.0,
            beta_slow=2.0,
            mscale=1.0,
            mscale_all_dim=0.5,
            truncate=False,
        ),
    ),
    (
        "yarn",
        {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 32,
            "attention_factor": 0.75,
        },
        RopeScaling("yarn", factor=2.0, original_context=32, attention_factor=0.75),
    ),
]


def _config(head_dim: int, theta: float, scaling: RopeScaling | None) -> DenseConfig:
    return DenseConfig(
        architecture="llama",
        vocab_size=64,
        hidden_size=4 * head_dim,
        intermediate_size=64,
        layer_count=1,
        head_count=4,
        kv_head_count=2,
        head_dim=head_dim,
        rope_theta=theta,
        rms_eps=1e-5,
        context=131072,
        rope_scaling=scaling,
    )


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("theta", [4.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_scaled_frequencies_equal_those_of_transformers(head_dim: int, theta: float, case: int) -> None:
    kind, fields, scaling = CASES[case]
    theirs = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters={**fields, "rope_theta": theta},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[kind](theirs, device="cpu")
    ours = _config(head_dim, theta, scaling)
    assert inverse_frequencies(ours) == pytest.approx(expected.tolist(), rel=1e-5)
    assert attention_factor(ours) == pytest.approx(factor, rel=1e-12)


def test_plain_frequencies_equal_those_of_a_transformers_model() -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )
    ours = _config(64, 100_000.0, None)
    assert inverse_frequencies(ours) == pytest.approx(
        LlamaRotaryEmbedding(theirs).inv_freq.tolist(), rel=1e-5
    )
    assert attention_factor(ours) == 1.0


def test_a_divisor_a_frequency() -> None:
    divisors = tuple(1.0 + i for i in range(8))
    scaled = inverse_frequencies(_config(16, 10_000.0, RopeScaling("divisors", divisors=divisors)))
    plain = inverse_frequencies(_config(16, 10_000.0, None))
    assert scaled == [f / d for f, d in zip(plain, divisors, strict=True)]


@given(
    st.sampled_from([scaling for _, _, scaling in CASES if scaling is not None]),
    st.floats(min_value=1.0, max_value=64.0),
    st.sampled_from([8, 32, 64]),
)
def test_scaling_never_raises_a_frequency_and_keeps_the_order(
    scaling: RopeScaling, factor: float, head_dim: int
) -> None:
    config = _config(head_dim, 10_000.0, attrs.evolve(scaling, factor=factor))
    scaled = inverse_frequencies(config)
    plain = inverse_frequencies(attrs.evolve(config, rope_scaling=None))
    assert len(scaled) == head_dim // 2
    assert all(math.isfinite(f) and f > 0 for f in scaled)
    assert all(s <= p * (1 + 1e-12) for s, p in zip(scaled, plain, strict=True))
    assert scaled == sorted(scaled, reverse=True)
