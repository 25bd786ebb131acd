"""Folders in Hugging Face layout: what is read, and what is refused and how."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from txdecode.kernels.models.config import RopeScaling
from txdecode.kernels.models.describe import describe_model
from txdecode.kernels.models.errors import (
    DamagedModel,
    ModelError,
    TensorMismatch,
    UnsupportedArchitecture,
    UnsupportedFeature,
    UnsupportedTokenizer,
)
from txdecode.kernels.models.folder_model import folder_config, folder_tensors
from txdecode.kernels.models.layout import tensor_shapes
from txdecode.kernels.models.loading import load_config, load_text
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import digest_tensors, load_weights

ARCHITECTURES = ("llama", "qwen2", "qwen3")


@pytest.fixture
def copy(folders: dict[str, Any], tmp_path: Path) -> Path:
    """The Llama folder, free to be changed."""
    target = tmp_path / "model"
    shutil.copytree(folders["llama"].folder, target)
    return target


def change_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    values.update(changes)
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tensors_equal_those_of_transformers(folders: dict[str, Any], architecture: str) -> None:
    tiny = folders[architecture]
    weights = load_weights(resolve(str(tiny.folder)), torch.float32)
    assert weights.config.architecture == architecture
    assert list(weights.tensors) == list(tensor_shapes(weights.config))
    assert set(weights.tensors) == set(tiny.state)
    for name, tensor in tiny.state.items():
        assert torch.equal(weights.tensors[name], tensor), name
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_configuration_equals_that_of_transformers(folders: dict[str, Any], architecture: str) -> None:
    tiny = folders[architecture]
    theirs = tiny.model.config
    ours = load_config(resolve(str(tiny.folder)))
    assert ours.vocab_size == theirs.vocab_size
    assert (ours.hidden_size, ours.intermediate_size, ours.layer_count) == (64, 96, 2)
    assert (ours.head_count, ours.kv_head_count, ours.head_dim) == (4, 2, 16)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert (ours.rms_eps, ours.context) == (theirs.rms_norm_eps, theirs.max_position_embeddings)
    assert ours.tied_head == theirs.tie_word_embeddings == (architecture == "qwen3")
    assert ours.qkv_bias == (architecture != "qwen3")
    assert ours.o_bias == ours.mlp_bias == (architecture == "llama")
    assert ours.qk_norm == (architecture == "qwen3")


def test_weights_are_rounded_once_to_the_dtype_asked_for(folders: dict[str, Any]) -> None:
    tiny = folders["qwen2"]
    weights = load_weights(resolve(str(tiny.folder)))
    assert weights.dtype == torch.bfloat16
    assert load_weights(resolve(str(tiny.folder)), "fp32").dtype == torch.float32
    assert weights.nbytes == 2 * sum(tensor.numel() for tensor in tiny.state.values())
    for name, tensor in tiny.state.items():
        assert torch.equal(weights.tensors[name], tensor.bfloat16()), name


def test_shards_and_a_single_file_are_the_same_model(make_folder: Callable[..., Any]) -> None:
    single = make_folder("qwen3")
    sharded = make_folder("qwen3", save={"max_shard_size": "40KB"})
    assert len(list(sharded.folder.glob("*.safetensors"))) > 2
    one, many = load_weights(resolve(str(single.folder))), load_weights(resolve(str(sharded.folder)))
    assert all(torch.equal(one.tensors[name], many.tensors[name]) for name in one.tensors)
    assert one.digest == many.digest


def test_digest_covers_values_names_shapes_and_configuration(folders: dict[str, Any], copy: Path) -> None:
    source = resolve(str(copy))
    before = load_weights(source, torch.float32)
    assert len(bytes.fromhex(before.digest)) == 16
    assert load_weights(source, torch.bfloat16).digest == before.digest
    assert digest_tensors(before.config, before.tensors) == before.digest

    tensors = load_file(copy / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    changed = {**tensors, name: tensors[name].clone()}
    changed[name].view(torch.int32)[0, 0] ^= 1
    save_file(changed, copy / "model.safetensors", metadata={"format": "pt"})
    assert load_weights(source).digest != before.digest

    one, other = "model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight"
    swapped = {**before.tensors, one: before.tensors[other], other: before.tensors[one]}
    assert digest_tensors(before.config, swapped) != before.digest
    renamed = {f"x.{key}": tensor for key, tensor in before.tensors.items()}
    assert digest_tensors(before.config, renamed) != before.digest
    flat = {**before.tensors, name: before.tensors[name].reshape(-1)}
    assert digest_tensors(before.config, flat) != before.digest

    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    change_json(copy / "config.json", rms_norm_eps=1e-4)
    assert load_weights(source).digest != before.digest


def test_text_assets_of_a_folder(folders: dict[str, Any], tiny_tokenizer: Any) -> None:
    assets = load_text(resolve(str(folders["llama"].folder)))
    assert assets.tokenizer.encode("the model 12").ids == tiny_tokenizer.encode("the model 12").ids
    assert assets.chat_template is not None
    assert "<|assistant|>" in assets.chat_template
    assert assets.special_tokens == {"eos_token": "<|end|>", "bos_token": "<|user|>"}
    assert (assets.eos_ids, assets.bos_id) == ((0,), 1)
    assert assets.sampling == {}
    assert assets.kind == "byte-level BPE"


def test_end_tokens_and_sampling_come_from_the_generation_config_first(copy: Path) -> None:
    source = resolve(str(copy))
    change_json(
        copy / "generation_config.json",
        eos_token_id=[7, 0, 7],
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        do_sample=True,
    )
    assets = load_text(source)
    assert assets.eos_ids == (7, 0)
    assert assets.sampling == {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True}
    change_json(copy / "generation_config.json", eos_token_id=...)
    change_json(copy / "config.json", eos_token_id=5)
    assert load_text(source).eos_ids == (5,)
    change_json(copy / "config.json", eos_token_id=None)
    assert load_text(source).eos_ids == (0,)


def test_the_template_file_wins_and_a_list_gives_its_default(folders: dict[str, Any], copy: Path) -> None:
    source = resolve(str(copy))
    (copy / "chat_template.jinja").write_text("from the file")
    changed = load_text(source)
    assert changed.chat_template == "from the file"
    assert changed.digest() != load_text(resolve(str(folders["llama"].folder))).digest()
    (copy / "chat_template.jinja").unlink()
    listed = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    change_json(copy / "tokenizer_config.json", chat_template=listed)
    assert load_text(source).chat_template == "yes"
    change_json(copy / "tokenizer_config.json", chat_template=None)
    assert load_text(source).chat_template is None


def test_truncation_and_padding_of_training_are_dropped(copy: Path) -> None:
    source = resolve(str(copy))
    tokenizer = load_text(source).tokenizer
    plain = tokenizer.encode("the model reads the text").ids
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(copy / "tokenizer.json"))
    assert load_text(source).tokenizer.encode("the model reads the text").ids == plain


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True, "max_window_layers": 1}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type"),
        ({"rope_parameters": None, "rope_scaling": {"type": "longrope"}}, "rope_scaling.rope_type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
    ],
)
def test_an_unsupported_variant_is_refused_by_name(copy: Path, changes: dict[str, Any], field: str) -> None:
    change_json(copy / "config.json", **changes)
    with pytest.raises(UnsupportedFeature, match=field):
        load_weights(resolve(str(copy)))


def test_a_sliding_window_that_no_layer_uses_is_accepted(copy: Path) -> None:
    change_json(copy / "config.json", use_sliding_window=True, max_window_layers=2)
    load_config(resolve(str(copy)))


@pytest.mark.parametrize("declared", [["MixtralForCausalLM"], None])
def test_another_architecture_is_named_with_the_supported_ones(copy: Path, declared: Any) -> None:
    change_json(copy / "config.json", architectures=declared, model_type="MixtralForCausalLM")
    with pytest.raises(UnsupportedArchitecture, match="MixtralForCausalLM") as caught:
        load_weights(resolve(str(copy)))
    assert caught.value.supported == (
        "LlamaForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    )
    assert all(name in str(caught.value) for name in caught.value.supported)


def test_the_model_type_serves_where_no_class_is_declared(copy: Path) -> None:
    change_json(copy / "config.json", architectures=None)
    assert load_config(resolve(str(copy))).architecture == "llama"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", ...),
        ("hidden_size", "64"),
        ("hidden_size", 0),
        ("hidden_size", True),
        ("num_hidden_layers", 1 << 40),
        ("num_attention_heads", 2.5),
        ("num_key_value_heads", 3),
        ("head_dim", 15),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", float("inf")),
        ("rms_norm_eps", 10**400),
        ("tie_word_embeddings", "yes"),
        ("architectures", "LlamaForCausalLM"),
        ("rope_parameters", [1]),
        ("rope_parameters", {"rope_type": "linear"}),
        (
            "rope_parameters",
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1},
        ),
        ("hidden_act", 3),
    ],
)
def test_an_impossible_value_names_the_file_and_the_field(copy: Path, key: str, value: Any) -> None:
    change_json(copy / "config.json", **{key: value})
    with pytest.raises(DamagedModel, match=r"/config\.json") as caught:
        load_weights(resolve(str(copy)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"rope_theta": 5e5}, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeScaling("linear", factor=2.0)),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            RopeScaling("llama3", factor=8.0, original_context=64),
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
            RopeScaling("yarn", factor=4.0, original_context=32),
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 32}},
            RopeScaling("yarn", factor=4.0, original_context=32),
        ),
    ],
)
def test_rotary_settings_of_older_folders(
    copy: Path, entry: dict[str, Any], expected: RopeScaling | None
) -> None:
    change_json(copy / "config.json", rope_parameters=..., **entry)
    config = folder_config(copy)
    assert config.rope_scaling == expected
    assert config.rope_theta == entry.get("rope_theta", 10_000.0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.layers.1.mlp.down_proj.weight", "missing"),
        ("model.layers.0.self_attn.k_proj.weight", "reshaped"),
        ("model.layers.0.self_attn.q_norm.weight", "extra"),
        ("model.layers.2.input_layernorm.weight", "extra"),
        ("lm_head.weight", "missing"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_both_shapes(copy: Path, name: str, change: str) -> None:
    tensors = load_file(copy / "model.safetensors")
    found = tensors.get(name)
    expected: tuple[int, ...] | None = None if found is None else tuple(found.shape)
    if change == "missing":
        del tensors[name]
        found_shape: tuple[int, ...] | None = None
    else:
        tensors[name] = torch.ones(3, 5)
        found_shape = (3, 5)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TensorMismatch, match=name.replace(".", r"\.")) as caught:
        load_weights(resolve(str(copy)))
    assert (caught.value.tensor, caught.value.expected, caught.value.found) == (name, expected, found_shape)


def test_rotary_tables_and_a_copy_of_the_tied_head_are_tolerated(
    folders: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "tied"
    shutil.copytree(folders["qwen3"].folder, target)
    tensors = load_file(target / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    weights = load_weights(resolve(str(target)))
    assert list(weights.tensors) == list(tensor_shapes(weights.config))
    assert "lm_head.weight" not in weights.tensors


def test_integer_weights_are_refused(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedFeature, match=r"model\.norm\.weight.*I8"):
        load_weights(resolve(str(copy)))


def test_a_safetensors_file_cut_anywhere_is_damaged(copy: Path) -> None:
    path = copy / "model.safetensors"
    whole = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 200, *range(1000, len(whole), 9973), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedModel, match=r"model\.safetensors"):
            load_weights(resolve(str(copy)))


def test_a_file_that_is_lost_while_it_is_read_is_damage(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_then_lose(folder: Path, config: Any) -> Any:
        stored = folder_tensors(folder, config)
        (folder / "model.safetensors").write_bytes(b"short")
        return stored

    monkeypatch.setattr("txdecode.kernels.models.weights.folder_tensors", read_then_lose)
    with pytest.raises(DamagedModel, match=r"model\.safetensors"):
        load_weights(resolve(str(copy)))


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_damaged_json_file_is_named(copy: Path, name: str, content: bytes) -> None:
    (copy / name).write_bytes(content)
    with pytest.raises(DamagedModel, match=name):
        describe_model(resolve(str(copy)))


def test_a_tokenizer_that_is_none_is_damaged(copy: Path) -> None:
    (copy / "tokenizer.json").write_text('{"model": {"type": "Magic"}}')
    with pytest.raises(DamagedModel, match=r"tokenizer\.json"):
        load_text(resolve(str(copy)))
    (copy / "tokenizer.json").unlink()
    with pytest.raises(DamagedModel, match="missing"):
        load_text(resolve(str(copy)))
    (copy / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.model"):
        load_text(resolve(str(copy)))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tokenizer_config.json", {"chat_template": 5}),
        ("tokenizer_config.json", {"eos_token": [1]}),
        ("generation_config.json", {"eos_token_id": "0"}),
        ("generation_config.json", {"eos_token_id": [0, -1]}),
        ("generation_config.json", {"temperature": "hot"}),
    ],
)
def test_impossible_text_settings_are_damage(copy: Path, name: str, changes: dict[str, Any]) -> None:
    (copy / "chat_template.jinja").unlink(missing_ok=True)
    change_json(copy / name, **changes)
    with pytest.raises(DamagedModel, match=name):
        load_text(resolve(str(copy)))


def test_shards_that_are_missing_or_lie_are_damage(make_folder: Callable[..., Any], tmp_path: Path) -> None:
    folder = make_folder("llama", save={"max_shard_size": "60KB"}).folder
    index = folder / "model.safetensors.index.json"
    original = index.read_text()
    source = resolve(str(folder))
    places = json.loads(original)["weight_map"]
    last = sorted(set(places.values()))[-1]

    change_json(index, weight_map={**places, "lm_head.weight": "../escape.safetensors"})
    with pytest.raises(DamagedModel, match="weight_map"):
        load_weights(source)
    change_json(index, weight_map={**places, "model.norm.bias": last})
    with pytest.raises(DamagedModel, match=r"model\.norm\.bias"):
        load_weights(source)
    change_json(index, weight_map=["x"])
    with pytest.raises(DamagedModel, match="weight_map"):
        load_weights(source)
    index.write_text(original)
    (folder / last).unlink()
    with pytest.raises(DamagedModel, match=last):
        load_weights(source)


def test_weights_in_another_format_or_none_at_all(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(DamagedModel, match="missing"):
        load_weights(resolve(str(copy)))
    (copy / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedFeature, match=r"pytorch_model\.bin"):
        load_weights(resolve(str(copy)))


def test_every_error_is_a_model_error() -> None:
    for error in (DamagedModel, TensorMismatch, UnsupportedArchitecture, UnsupportedFeature):
        assert issubclass(error, ModelError)
