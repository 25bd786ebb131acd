"""Hybrids in folders: every tensor of a saved model of transformers arrives under its canonical name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import hybrids
from tests.hybrids import FAMILIES, Family, TinyHybrid
from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.errors import (
    DamagedModel,
    TensorMismatch,
    UnsupportedFeature,
)
from txdecode.kernels.models.hybrid_config import HybridConfig
from txdecode.kernels.models.hybrid_layout import hybrid_tensor_shapes
from txdecode.kernels.models.loading import load_config
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import (
    DenseWeights,
    HybridWeights,
    digest_tensors,
    load_weights,
)

UP = "model.layers.1.mlp.experts.gate_up_proj"
GATE = "model.layers.2.linear_attn.in_proj_z.weight"


@pytest.fixture(scope="module")
def models() -> dict[str, TinyHybrid]:
    return {family: hybrids.build(family) for family in FAMILIES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> HybridWeights:
    weights = load_weights(resolve(str(folder)), dtype)
    assert isinstance(weights, HybridWeights)
    assert list(weights.tensors) == list(hybrid_tensor_shapes(weights.config))
    for name, shape in hybrid_tensor_shapes(weights.config).items():
        tensor = weights.tensors[name]
        assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True), name
    return weights


def canonical(tiny: TinyHybrid) -> dict[str, torch.Tensor]:
    """The tensors by canonical name; what is interleaved goes through the model's own reordering of outputs,
    which for the rows of an identity are the columns of the weights."""
    tensors = tiny.tensors
    config = tiny.model.config
    for index, layer in enumerate(tiny.model.model.layers):
        if tiny.family != "qwen3_next" or config.layer_types[index] != "linear_attention":
            continue
        net = layer.linear_attn
        prefix = f"model.layers.{index}.linear_attn.in_proj_"
        mixed = (tensors.pop(f"{prefix}{kind}.weight").T[None] for kind in ("qkvz", "ba"))
        q, k, v, z, b, a = (each[0].flatten(1).T for each in net.fix_query_key_value_ordering(*mixed))
        tensors |= {f"{prefix}{kind}.weight": rows for kind, rows in {"z": z, "b": b, "a": a}.items()}
        tensors[f"{prefix}qkv.weight"] = torch.cat([q, k, v])
    return tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_arrives_with_its_name_shape_and_value(
    models: dict[str, TinyHybrid], folder: Path, family: Family
) -> None:
    tiny = models[family]
    weights = loaded(hybrids.save(tiny, folder))
    expected = canonical(tiny)
    assert set(weights.tensors) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(weights.tensors[name], tensor), name
    assert weights.config.mtp
    assert weights.nbytes == 4 * sum(tensor.numel() for tensor in expected.values())
    assert digest_tensors(weights.config, weights.tensors) == weights.digest


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_kept_and_fp32_is_rounded_once(
    models: dict[str, TinyHybrid], tmp_path: Path, family: Family
) -> None:
    tiny = models[family]
    rounded = loaded(hybrids.save(tiny, tmp_path / "fp32"), torch.bfloat16)
    kept = loaded(hybrids.save(tiny, tmp_path / "bf16", dtype=torch.bfloat16), torch.bfloat16)
    wide = loaded(tmp_path / "bf16")
    assert rounded.dtype == kept.dtype == torch.bfloat16
    for name, tensor in canonical(tiny).items():
        assert torch.equal(rounded.tensors[name], tensor.bfloat16()), name
        assert torch.equal(kept.tensors[name], tensor.bfloat16()), name
        assert torch.equal(wide.tensors[name], tensor.bfloat16().float()), name
    assert wide.digest == kept.digest != rounded.digest
    assert loaded(tmp_path / "fp32").digest == rounded.digest


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("qwen3_next", {"single_experts": True, "shards": 3}),
        ("qwen3_5_moe", {"single_experts": True}),
        ("qwen3_5", {"nested": True, "shards": 2}),
        ("qwen3_5_moe", {"nested": True, "single_experts": True}),
        ("qwen3_5_moe", {"nested": True}),
    ],
)
def test_every_layout_of_a_checkpoint_is_the_same_model(
    models: dict[str, TinyHybrid], tmp_path: Path, family: Family, layout: dict[str, Any]
) -> None:
    plain = loaded(hybrids.save(models[family], tmp_path / "plain"))
    other = loaded(hybrids.save(models[family], tmp_path / "other", **layout))
    assert other.config == plain.config
    assert other.digest == plain.digest
    assert all(torch.equal(other.tensors[name], plain.tensors[name]) for name in plain.tensors)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_itself_saves_loads(
    models: dict[str, TinyHybrid], folder: Path, family: Family
) -> None:
    # It drops the MTP layer's tensors, but its configuration may go on naming the layer.
    tiny = models[family]
    tiny.model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["num_mtp_layers"] == 1
    weights = loaded(folder)
    assert not weights.config.mtp
    for name, tensor in canonical(tiny).items():
        if not name.startswith("mtp."):
            assert torch.equal(weights.tensors[name], tensor), name


def test_experts_in_some_layers_only_and_a_tied_head(folder: Path) -> None:
    tiny = hybrids.build(
        "qwen3_next",
        mlp_only_layers=[3],
        decoder_sparse_step=2,
        tie_word_embeddings=True,
        num_hidden_layers=6,
    )
    weights = loaded(hybrids.save(tiny, folder, single_experts=True))
    assert weights.config.feeds == ("dense", "moe", "dense", "dense", "dense", "moe")
    assert (weights.config.mtp_feed, weights.config.intermediate_size) == ("dense", 88)
    assert weights.config.full_layers == (3,)
    assert weights.config.linear_layers == (0, 1, 2, 4, 5)
    assert "lm_head.weight" not in weights.tensors
    for name, tensor in canonical(tiny).items():
        assert torch.equal(weights.tensors[name], tensor), name
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.3.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    hybrids.write_tensors(folder, tensors)
    assert loaded(folder).digest == weights.digest


def test_a_shared_expert_of_no_width_is_none(models: dict[str, TinyHybrid], folder: Path) -> None:
    hybrids.save(models["qwen3_5_moe"], folder)
    change(folder, shared_expert_intermediate_size=0)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if ".shared_expert." in name:
            tensors[name] = torch.empty((64, 0) if "down" in name else (0, 64))
    hybrids.write_tensors(folder, tensors)
    weights = loaded(folder)
    assert weights.config.moe is not None
    assert weights.config.moe.shared_size == 0
    assert not [name for name in weights.tensors if "shared_expert" in name]
    refuse(folder, "model.layers.0.mlp.shared_expert.up_proj.weight", (56, 64), None, (56, 64))


def test_no_experts_at_all_are_dense_feeds(folder: Path) -> None:
    tiny = hybrids.build("qwen3_next", num_experts=0)
    config = loaded(hybrids.save(tiny, folder)).config
    assert (config.moe, set(config.feeds), config.mtp_feed) == (None, {"dense"}, "dense")


@pytest.mark.parametrize(("family", "mtp"), [("qwen3_5", False), ("qwen3_5", True), ("qwen3_next", False)])
def test_an_mtp_layer_is_there_where_its_tensors_are(folder: Path, family: Family, mtp: bool) -> None:
    hybrids.save(hybrids.build(family, mtp=mtp), folder)
    for said in (0, 1, None):
        change(folder, mtp_num_hidden_layers=said, num_nextn_predict_layers=said)
        config = loaded(folder).config
        assert config.mtp is mtp


def test_half_an_mtp_layer_is_a_mismatch(models: dict[str, TinyHybrid], folder: Path) -> None:
    hybrids.save(models["qwen3_5"], folder)
    refuse(folder, "mtp.fc.weight", None, (64, 128), None)


@pytest.mark.parametrize(
    ("family", "layout", "name", "shape", "expected"),
    [
        ("qwen3_5", {}, GATE, None, (144, 64)),
        ("qwen3_5", {}, GATE, (64, 144), (144, 64)),
        ("qwen3_5", {}, "model.layers.0.linear_attn.conv1d.bias", (208,), None),
        ("qwen3_5", {}, "model.layers.3.linear_attn.A_log", (6,), None),
        ("qwen3_5", {}, "mtp.embed_tokens.weight", (160, 64), None),
        ("qwen3_5", {}, "lm_head.weight", None, (160, 64)),
        ("qwen3_5_moe", {}, UP, (6, 64, 80), (6, 80, 64)),
        ("qwen3_5_moe", {}, UP, None, (6, 80, 64)),
        ("qwen3_5_moe", {}, UP.replace("gate_up", "down"), None, (6, 64, 40)),
        ("qwen3_5_moe", {}, "model.layers.1.mlp.shared_expert.gate_proj.bias", (56,), None),
        ("qwen3_5_moe", {}, "model.layers.1.mlp.shared_expert_gate.weight", (2, 64), (1, 64)),
        ("qwen3_5_moe", {}, "model.layers.1.mlp.experts.5.up_proj.weight", (40, 64), None),
        (
            "qwen3_5_moe",
            {"single_experts": True},
            "model.layers.1.mlp.experts.5.up_proj.weight",
            None,
            (40, 64),
        ),
        (
            "qwen3_5_moe",
            {"single_experts": True},
            "model.layers.1.mlp.experts.6.up_proj.weight",
            (40, 64),
            None,
        ),
        ("qwen3_next", {}, "model.layers.0.linear_attn.in_proj_qkvz.weight", (351, 64), (352, 64)),
        ("qwen3_next", {}, "model.layers.0.linear_attn.in_proj_ba.weight", None, (12, 64)),
        ("qwen3_next", {}, "model.layers.0.linear_attn.in_proj_z.weight", (144, 64), None),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_both_shapes(
    models: dict[str, TinyHybrid],
    folder: Path,
    family: Family,
    layout: dict[str, Any],
    name: str,
    shape: tuple[int, ...] | None,
    expected: tuple[int, ...] | None,
) -> None:
    hybrids.save(models[family], folder, **layout)
    refuse(folder, name, shape, expected, shape)


def refuse(
    folder: Path,
    name: str,
    shape: tuple[int, ...] | None,
    expected: tuple[int, ...] | None,
    found: tuple[int, ...] | None,
) -> None:
    tensors = load_file(folder / "model.safetensors")
    if shape is None:
        del tensors[name]
    else:
        tensors[name] = torch.ones(shape)
    hybrids.write_tensors(folder, tensors)
    with pytest.raises(TensorMismatch) as caught:
        load_weights(resolve(str(folder)))
    assert (caught.value.tensor, caught.value.expected, caught.value.found) == (name, expected, found)


def test_a_tensor_that_is_stored_twice_is_a_mismatch(models: dict[str, TinyHybrid], folder: Path) -> None:
    hybrids.save(models["qwen3_5"], folder, nested=True)
    refuse(folder, "model.norm.weight", (64,), None, (64,))


def test_integer_weights_are_refused(models: dict[str, TinyHybrid], folder: Path) -> None:
    hybrids.save(models["qwen3_5"], folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedFeature, match=r"model\.norm\.weight.*I8"):
        load_weights(resolve(str(folder)))


def test_digest_covers_values_and_configuration(models: dict[str, TinyHybrid], folder: Path) -> None:
    hybrids.save(models["qwen3_next"], folder)
    before = loaded(folder).digest
    change(folder, norm_topk_prob=False)
    assert loaded(folder).digest != before
    change(folder, norm_topk_prob=True)
    assert loaded(folder).digest == before
    tensors = load_file(folder / "model.safetensors")
    tensors["mtp.layers.0.mlp.experts.down_proj"].view(torch.int32)[5, 0, 0] ^= 1
    hybrids.write_tensors(folder, tensors)
    assert loaded(folder).digest != before


def test_more_than_one_mtp_layer_is_refused(models: dict[str, TinyHybrid], folder: Path) -> None:
    hybrids.save(models["qwen3_5"], folder)
    change(folder, mtp_num_hidden_layers=2)
    with pytest.raises(UnsupportedFeature, match="MTP layers"):
        load_config(resolve(str(folder)))
    change(folder, mtp_num_hidden_layers=1)
    tensors = load_file(folder / "model.safetensors")
    tensors["mtp.layers.1.input_layernorm.weight"] = torch.ones(64)
    hybrids.write_tensors(folder, tensors)
    with pytest.raises(UnsupportedFeature, match=r"mtp\.layers\.1\.input_layernorm"):
        load_config(resolve(str(folder)))


def test_dense_folders_stay_dense(folders: dict[str, Any]) -> None:
    source = resolve(str(folders["llama"].folder))
    assert isinstance(load_config(source), DenseConfig)
    assert isinstance(load_weights(source), DenseWeights)


@pytest.mark.parametrize(
    ("model_type", "nested"),
    [
        ("qwen3_5_text", False),
        ("qwen3_5_moe_text", False),
        ("qwen3_next", False),
        ("qwen3_5", True),
        ("qwen3_5_moe", True),
    ],
)
def test_the_model_type_serves_where_no_class_is_declared(
    models: dict[str, TinyHybrid], folder: Path, model_type: str, nested: bool
) -> None:
    hybrids.save(models[model_type.removesuffix("_text")], folder, nested=nested)
    declared = load_config(resolve(str(folder)))
    change(folder, architectures=None)
    assert json.loads((folder / "config.json").read_text())["model_type"] == model_type
    assert load_config(resolve(str(folder))) == declared
    assert isinstance(declared, HybridConfig)


@pytest.mark.parametrize("text", [None, [1]])
def test_a_text_part_that_is_not_there_is_damage(
    models: dict[str, TinyHybrid], folder: Path, text: Any
) -> None:
    hybrids.save(models["qwen3_5"], folder, nested=True)
    change(folder, text_config=text)
    with pytest.raises(DamagedModel, match="text_config"):
        load_config(resolve(str(folder)))


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
