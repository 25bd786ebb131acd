"""The forward pass against Hugging Face transformers on the same random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.capability import DtypeName, numerics
from txdecode.kernels.models.config import DenseConfig, RopeScaling
from txdecode.kernels.models.errors import ModelNotInstalled
from txdecode.kernels.models.llama import Limits, LlamaModel, NonFiniteActivation, memory_plan
from txdecode.kernels.models.loading import load_text
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import DenseWeights, load_weights

MakeWeights = Callable[..., DenseWeights]
TOKENS = 150
VARIANTS = ("llama", "qwen2", "qwen3", "every-head-its-own")
SCALINGS = (
    RopeScaling(kind="linear", factor=4.0),
    RopeScaling(kind="llama3", factor=8.0, original_context=64, low_freq_factor=1.0, high_freq_factor=4.0),
    RopeScaling(kind="yarn", factor=8.0, original_context=64),
)


def hf_model(weights: DenseWeights) -> Any:
    """The transformers class of the architecture, with these weights, in fp32."""
    config = weights.config
    arguments: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layer_count,
        "num_attention_heads": config.head_count,
        "num_key_value_heads": config.kv_head_count,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_eps,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.tied_head,
        "rope_parameters": rope_parameters(config),
        "attn_implementation": "eager",
    }
    if config.architecture == "llama":
        built = LlamaForCausalLM(
            LlamaConfig(attention_bias=config.o_bias, mlp_bias=config.mlp_bias, **arguments)
        )
    elif config.architecture == "qwen2":
        built = Qwen2ForCausalLM(Qwen2Config(**arguments))
    else:
        built = Qwen3ForCausalLM(Qwen3Config(**arguments))
    missing, unexpected = built.load_state_dict(dict(weights.tensors), strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.tied_head else set())
    return built.eval()


def rope_parameters(config: DenseConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": config.rope_theta}
    parameters = {"rope_type": scaling.kind, "rope_theta": config.rope_theta, "factor": scaling.factor}
    if scaling.kind == "yarn":
        parameters["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        parameters |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    return parameters


def model(weights: DenseWeights, dtype: DtypeName) -> LlamaModel:
    with torch.inference_mode():
        return LlamaModel(weights, numerics(dtype), Limits(weights.config.context, 256, 16, 8))


def tokens_of(weights: DenseWeights, count: int = TOKENS) -> tuple[int, ...]:
    draw = torch.Generator().manual_seed(7)
    return tuple(torch.randint(weights.config.vocab_size, (count,), generator=draw).tolist())


@torch.inference_mode()
def logits_of(built: LlamaModel, tokens: tuple[int, ...]) -> torch.Tensor:
    """All rows: a prefill, a wide launch and single rows, over page borders."""
    pages, parts, start = (4, 1, 6, 0), [], 0
    built.forward([Segment(tokens[:20], 0, pages)], logits=False)
    for rows in (20, 100, 1, 1, len(tokens) - 122):
        part = built.forward([Segment(tokens[start : start + rows], start, pages)], logits=True)
        assert part is not None
        parts.append(part)
        start += rows
    return torch.cat(parts)


@pytest.mark.parametrize("variant", [*VARIANTS, "llama-biased"])
def test_logits_agree_with_transformers_in_fp32(variant: str, make_weights: MakeWeights) -> None:
    """Within 5e-5 of logits of order ten."""
    weights = make_weights(variant)
    tokens = tokens_of(weights)
    found = logits_of(model(weights, "fp32"), tokens)
    with torch.inference_mode():
        expected = hf_model(weights)(torch.tensor([tokens])).logits[0]
    assert 1 < expected.abs().max() < 100
    assert (found - expected).abs().max() < 5e-5
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.kind)
def test_scaled_positions_agree_with_transformers(scaling: RopeScaling, make_weights: MakeWeights) -> None:
    weights = make_weights(rope_scaling=scaling)
    tokens = tokens_of(weights)
    with torch.inference_mode():
        expected = hf_model(weights)(torch.tensor([tokens])).logits[0]
    assert (logits_of(model(weights, "fp32"), tokens) - expected).abs().max() < 5e-5
    plain = logits_of(model(make_weights(), "fp32"), tokens)
    assert (plain - expected).abs().max() > 1e-2


@pytest.mark.parametrize("variant", VARIANTS)
def test_bf16_stays_near_fp32(variant: str, make_weights: MakeWeights) -> None:
    """bf16 keeps eight bits: two layers stay within 6 % of the largest logit, and mostly far closer."""
    weights = make_weights(variant)
    tokens = tokens_of(weights)
    exact = logits_of(model(weights, "fp32"), tokens)
    found = logits_of(model(weights, "bf16"), tokens)
    assert found.dtype == torch.bfloat16
    error = (found.float() - exact).abs() / exact.abs().max()
    assert error.max() < 0.06
    assert error.median() < 0.006


def test_weights_of_another_dtype_are_converted(make_weights: MakeWeights) -> None:
    weights = make_weights()
    tokens = tokens_of(weights, 130)
    rounded = DenseWeights(
        weights.config, {name: t.to(torch.bfloat16) for name, t in weights.tensors.items()}, "rounded"
    )
    assert torch.equal(logits_of(model(weights, "bf16"), tokens), logits_of(model(rounded, "bf16"), tokens))


@torch.inference_mode()
def test_a_row_that_is_not_finite_is_refused_with_and_without_logits(make_weights: MakeWeights) -> None:
    weights = make_weights()
    weights.tensors["model.embed_tokens.weight"][11] = float("nan")
    built = model(weights, "fp32")
    for logits in (False, True):
        with pytest.raises(NonFiniteActivation):
            built.forward([Segment((1, 11, 2), 0, (0,))], logits=logits)
    found = built.forward([Segment((1, 2), 0, (0,))], logits=True)
    assert found is not None
    assert torch.isfinite(found).all()


@torch.inference_mode()
def test_a_prefill_computes_no_logits(make_weights: MakeWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    built = model(make_weights(), "fp32")
    shapes: list[int] = []
    head = built._head

    def counting(x: torch.Tensor) -> torch.Tensor:
        shapes.append(x.shape[0])
        return head(x)

    monkeypatch.setattr(built, "_head", counting)
    built.forward([Segment((1, 2, 3), 0, (0,))], logits=False)
    assert shapes == []
    built.forward([Segment((1, 2, 3), 0, (0,)), Segment((4,), 0, (1,))], logits=True)
    assert shapes == [4]


@torch.inference_mode()
def test_one_row_is_computed_as_two(make_weights: MakeWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row takes other kernels than two or more; the second goes to nobody's page."""
    built = model(make_weights(), "fp32")
    shapes: list[int] = []
    head = built._head

    def counting(x: torch.Tensor) -> torch.Tensor:
        shapes.append(x.shape[0])
        return head(x)

    monkeypatch.setattr(built, "_head", counting)
    for layer in built.cache.layers:
        layer.zero_()
    before = [layer.clone() for layer in built.cache.layers]
    found = built.forward([Segment((1,), 0, (0,))], logits=True)
    assert found is not None
    assert (shapes, found.shape[0]) == ([2], 1)
    for layer, old in zip(built.cache.layers, before, strict=True):
        changed = (layer != old).any(-1).any(-1).nonzero().flatten().tolist()
        assert [row for row in changed if 64 <= row < built.cache.trash_slot] == []


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_memory_plan_counts_what_is_allocated(dtype: DtypeName, make_weights: MakeWeights) -> None:
    weights = make_weights("qwen3", vocab_size=4096)
    limits = Limits(512, 256, 16, 30)
    plan = memory_plan(weights.config, numerics(dtype), limits)
    with torch.inference_mode():
        built = LlamaModel(weights, numerics(dtype), limits)
    assert plan["weights"] == built.parameter_bytes
    pool = built.cache.layers[0].nbytes * weights.config.layer_count
    assert plan["kv_pages"] == pool
    assert plan["embedding"] == built._embedding.nbytes
    assert plan["tables"] == built._rotary.nbytes + built._attention._masks.nbytes


@pytest.mark.model
def test_smollm2_agrees_with_transformers_in_fp32() -> None:
    """Within 5e-4 of logits of order 20 (measured: 1.1e-4 over 700 rows), and the same greedy choice."""
    try:
        source = resolve("smollm2")
    except ModelNotInstalled as absent:
        pytest.skip(str(absent))
    weights = load_weights(source, "fp32")
    text = "The runtime keeps a ledger of pages, and every round of decoding is one transaction. " * 6
    ids = tuple(load_text(source).tokenizer.encode(text).ids)
    assert len(ids) > 100
    pages = (2, 0, 1)
    with torch.inference_mode():
        built = LlamaModel(weights, numerics("fp32"), Limits(256, 256, 16, 3))
        parts = [
            built.forward([Segment(ids[start : start + 40], start, pages)], True)
            for start in range(0, len(ids), 40)
        ]
        found = torch.cat([part for part in parts if part is not None])
        expected = hf_model(weights)(torch.tensor([ids])).logits[0]
    assert expected.abs().max() > 10
    assert (found - expected).abs().max() < 5e-4
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
