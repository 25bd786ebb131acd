"""From a ``config.json`` of a hybrid to its geometry: defaults, older spellings, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import hybrids
from tests.hybrids import FAMILIES, Family
from txdecode.kernels.models.errors import DamagedModel, UnsupportedFeature
from txdecode.kernels.models.fields import Fields
from txdecode.kernels.models.hybrid_config import HybridConfig, MoeConfig
from txdecode.kernels.models.hybrid_folder import HYBRID_CLASSES, hybrid_config

CLASSES = {
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
}


def read(family: str, **values: Any) -> HybridConfig:
    fields = Fields(Path("config.json"), values)
    return hybrid_config(fields, HYBRID_CLASSES[CLASSES.get(family, family)], ())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_left_out_means_what_it_means_to_transformers(family: Family) -> None:
    theirs = hybrids.CLASSES[family][0]()
    ours = read(family)
    assert ours.architecture == ("qwen3_next" if family == "qwen3_next" else "qwen3_5")
    assert (ours.vocab_size, ours.hidden_size) == (theirs.vocab_size, theirs.hidden_size)
    kinds = {"linear": "linear_attention", "full": "full_attention"}
    assert [kinds[mixer] for mixer in ours.mixers] == theirs.layer_types
    assert (ours.head_count, ours.kv_head_count) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (ours.head_dim, ours.context) == (theirs.head_dim, theirs.max_position_embeddings)
    partial = theirs.rope_parameters["partial_rotary_factor"]
    assert (ours.rotary_dim, ours.rope_theta) == (256 * partial, theirs.rope_parameters["rope_theta"])
    assert (ours.key_heads, ours.value_heads) == (theirs.linear_num_key_heads, theirs.linear_num_value_heads)
    assert (ours.key_dim, ours.value_dim) == (theirs.linear_key_head_dim, theirs.linear_value_head_dim)
    assert (ours.conv_width, ours.rms_eps) == (theirs.linear_conv_kernel_dim, theirs.rms_norm_eps)
    assert (ours.tied_head, ours.mtp) == (theirs.tie_word_embeddings, False)
    if family == "qwen3_5":
        assert (ours.moe, set(ours.feeds), ours.intermediate_size) == (
            None,
            {"dense"},
            theirs.intermediate_size,
        )
        return
    assert ours.moe == MoeConfig(
        theirs.num_experts,
        theirs.num_experts_per_tok,
        theirs.moe_intermediate_size,
        theirs.shared_expert_intermediate_size,
        True,
    )
    assert (set(ours.feeds), ours.intermediate_size, ours.mtp_feed) == ({"moe"}, 0, "moe")


def test_sizes_follow_from_heads() -> None:
    config = read("qwen3_5", linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16)
    assert (config.key_size, config.value_size, config.conv_size) == (32, 768, 832)
    assert (config.q_size, config.kv_size, config.layer_count) == (4096, 1024, 32)


@pytest.mark.parametrize(
    ("values", "theta", "rotary_dim"),
    [
        ({"rope_theta": 1e7, "partial_rotary_factor": 0.5}, 1e7, 128),
        ({"rope_theta": 1e7, "rope_parameters": {"partial_rotary_factor": 1.0}}, 1e7, 256),
        ({"partial_rotary_factor": 0.5, "rope_parameters": {"rope_theta": 5e6}}, 5e6, 128),
        ({"rope_scaling": None, "rope_theta": 1e7}, 1e7, 64),
        ({"rope_scaling": {"type": "default", "rope_theta": 9.0}, "rope_parameters": {}}, 9.0, 64),
        (
            {
                "rope_parameters": {
                    "mrope_interleaved": True,
                    "mrope_section": [11, 11, 10],
                    "rope_type": "default",
                    "rope_theta": 10_000_000,
                    "partial_rotary_factor": 0.25,
                }
            },
            1e7,
            64,
        ),
    ],
)
def test_rotary_settings_at_either_place(values: dict[str, Any], theta: float, rotary_dim: int) -> None:
    config = read("qwen3_5", **values)
    assert (config.rope_theta, config.rotary_dim) == (theta, rotary_dim)


def test_layers_are_listed_or_come_at_an_interval() -> None:
    assert read("qwen3_5", num_hidden_layers=5, full_attention_interval=2).full_layers == (1, 3)
    listed = ["full_attention", "linear_attention"]
    config = read("qwen3_5", num_hidden_layers=2, layer_types=listed, full_attention_interval=2)
    assert config.mixers == ("full", "linear")


def test_only_qwen3_next_chooses_how_experts_are_weighted() -> None:
    chosen = read("qwen3_next", norm_topk_prob=False).moe
    fixed = read("qwen3_5_moe", norm_topk_prob=False).moe
    assert chosen is not None
    assert fixed is not None
    assert (chosen.normalise, fixed.normalise) == (False, True)


def test_layers_without_experts_are_named_or_skipped() -> None:
    values: dict[str, Any] = {"num_hidden_layers": 4, "mlp_only_layers": [0, 3]}
    config = read("qwen3_next", **values)
    assert (config.feeds, config.mtp_feed) == (("dense", "moe", "moe", "dense"), "dense")
    assert config.intermediate_size == 5632
    assert read("qwen3_next", decoder_sparse_step=2, **values).feeds == ("dense", "moe", "dense", "dense")
    assert read("qwen3_next", decoder_sparse_step=9, **values).moe is None
    assert read("qwen3_5_moe", **values).feeds == ("moe",) * 4


def test_the_whole_models_word_on_its_head_comes_first() -> None:
    nested = "Qwen3_5ForConditionalGeneration"
    assert read(nested, text_config={"tie_word_embeddings": True}).tied_head
    assert not read(nested, tie_word_embeddings=False, text_config={"tie_word_embeddings": True}).tied_head
    assert read(nested, tie_word_embeddings=True, text_config={}).tied_head


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings"),
        ({"mtp_num_hidden_layers": 2}, "MTP layers"),
        ({"num_nextn_predict_layers": 3}, "MTP layers"),
        ({"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}, "layer_types"),
        ({"layer_types": ["full_attention", ["x"]], "num_hidden_layers": 2}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling.rope_type"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters.rope_type"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_an_unsupported_variant_is_refused_by_name(values: dict[str, Any], field: str, nested: bool) -> None:
    family = "Qwen3_5ForConditionalGeneration" if nested else "qwen3_5"
    with pytest.raises(UnsupportedFeature, match=field):
        read(family, **({"text_config": values} if nested else values))


def test_a_quantised_whole_is_refused_too() -> None:
    with pytest.raises(UnsupportedFeature, match="quantization_config"):
        read("Qwen3_5MoeForConditionalGeneration", text_config={}, quantization_config={"x": 1})
    with pytest.raises(UnsupportedFeature, match="MTP layers"):
        read("Qwen3_5MoeForConditionalGeneration", text_config={}, mtp_num_hidden_layers=2)


@pytest.mark.parametrize(
    ("family", "values", "field"),
    [
        ("qwen3_5", {"hidden_size": 0}, "hidden_size"),
        ("qwen3_5", {"num_hidden_layers": 1 << 20}, "num_hidden_layers"),
        ("qwen3_5", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("qwen3_5", {"linear_num_value_heads": 24}, "linear_num_value_heads"),
        ("qwen3_5", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ("qwen3_5", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3_5", {"layer_types": "full_attention"}, "layer_types"),
        ("qwen3_5", {"full_attention_interval": 0}, "full_attention_interval"),
        ("qwen3_5", {"head_dim": 33, "partial_rotary_factor": 0.5}, "head_dim"),
        ("qwen3_5", {"head_dim": 20}, "partial_rotary_factor"),
        ("qwen3_5", {"head_dim": 2}, "partial_rotary_factor"),
        ("qwen3_5", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ("qwen3_5", {"partial_rotary_factor": "half"}, "partial_rotary_factor"),
        ("qwen3_5", {"rope_parameters": [1]}, "rope_parameters"),
        ("qwen3_5", {"attention_bias": "no"}, "attention_bias"),
        ("qwen3_5", {"mtp_num_hidden_layers": -1}, "mtp_num_hidden_layers"),
        ("qwen3_5_moe", {"num_experts": 0}, "num_experts"),
        ("qwen3_5_moe", {"num_experts": 4}, "num_experts_per_tok"),
        ("qwen3_next", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ("qwen3_next", {"shared_expert_intermediate_size": -1}, "shared_expert_intermediate_size"),
        ("qwen3_next", {"mlp_only_layers": [48]}, "mlp_only_layers"),
        ("qwen3_next", {"mlp_only_layers": [True]}, "mlp_only_layers"),
        ("qwen3_next", {"mlp_only_layers": 3}, "mlp_only_layers"),
        ("qwen3_next", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ],
)
def test_an_impossible_value_names_the_file_and_the_field(
    family: str, values: dict[str, Any], field: str
) -> None:
    with pytest.raises(DamagedModel, match=rf"config\.json: '{field}'"):
        read(family, **values)
