"""A folder in Hugging Face layout: configuration and the tensors of its safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from safetensors import SafetensorError, safe_open

from txdecode.kernels.models.config import Architecture, DenseConfig, RopeScaling
from txdecode.kernels.models.errors import DamagedModel, UnsupportedArchitecture, UnsupportedFeature
from txdecode.kernels.models.fields import LAYER_COUNT_MAX, Fields, checked, read_json_object
from txdecode.kernels.models.hybrid_config import HybridConfig, ModelConfig
from txdecode.kernels.models.hybrid_folder import HYBRID_CLASSES, HYBRID_TYPES, hybrid_config, hybrid_tensors
from txdecode.kernels.models.stored import StoredTensor, match_layout

CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

ARCHITECTURE_CLASSES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_CLASSES = (*ARCHITECTURE_CLASSES, *HYBRID_CLASSES)
_CLASS_OF_TYPE: Mapping[str, str] = {
    **{architecture: name for name, architecture in ARCHITECTURE_CLASSES.items()},
    **HYBRID_TYPES,
}
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1}
_ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@attrs.frozen
class _Defaults:
    """What a missing entry means; it differs between the configuration classes of transformers."""

    context: int
    head_dim: int | None = None


_DEFAULTS: Mapping[Architecture, _Defaults] = {
    "llama": _Defaults(context=2048),
    "qwen2": _Defaults(context=32768),
    "qwen3": _Defaults(context=32768, head_dim=128),
}


def folder_class(fields: Fields) -> str:
    """The class, a key of ``ARCHITECTURE_CLASSES`` or ``HYBRID_CLASSES``. Raises ``UnsupportedArchitecture``
    naming what was found, and ``DamagedModel``."""
    declared = fields.values.get("architectures")
    if declared is None:
        found = fields.text("model_type")
        if found in _CLASS_OF_TYPE:
            return _CLASS_OF_TYPE[found]
    elif isinstance(declared, list) and len(declared) == 1 and isinstance(declared[0], str):
        found = declared[0]
        if found in _CLASSES:
            return found
    else:
        raise fields.wrong("architectures", "a list of one name", declared)
    raise UnsupportedArchitecture(found, _CLASSES)


def folder_config(folder: Path) -> ModelConfig:
    """The configuration. Raises ``UnsupportedArchitecture``, ``UnsupportedFeature``, ``DamagedModel``.

    That of a hybrid depends on which tensors are stored: raises what ``stored_tensors`` raises, too.
    """
    fields = Fields(folder / CONFIG, read_json_object(folder / CONFIG))
    declared = folder_class(fields)
    if declared in HYBRID_CLASSES:
        return hybrid_config(fields, HYBRID_CLASSES[declared], stored_tensors(folder))
    return _dense_config(fields, ARCHITECTURE_CLASSES[declared])


def _dense_config(fields: Fields, architecture: Architecture) -> DenseConfig:
    _refuse_variants(fields)
    defaults = _DEFAULTS[architecture]
    heads = fields.count("num_attention_heads")
    hidden = fields.count("hidden_size")
    context = fields.count("max_position_embeddings", default=defaults.context)
    attention_bias = fields.flag("attention_bias", default=False)
    theta, scaling = _rope(fields, context)
    config = DenseConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.count("intermediate_size"),
        layer_count=fields.count("num_hidden_layers", most=LAYER_COUNT_MAX),
        head_count=heads,
        kv_head_count=fields.count("num_key_value_heads", default=heads),
        head_dim=fields.count("head_dim", default=defaults.head_dim or max(hidden // heads, 1)),
        rope_theta=theta,
        rms_eps=fields.number("rms_norm_eps", default=1e-6),
        context=context,
        tied_head=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=True if architecture == "qwen2" else attention_bias,
        o_bias=False if architecture == "qwen2" else attention_bias,
        mlp_bias=fields.flag("mlp_bias", default=False) if architecture == "llama" else False,
        qk_norm=architecture == "qwen3",
        rope_scaling=scaling,
    )
    return checked(fields.path, config)


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of the folder's safetensors files by name, from the headers alone.

    Raises ``DamagedModel`` for a missing, truncated or contradictory file, ``UnsupportedFeature`` where the
    weights are in another format.
    """
    single = folder / _SINGLE
    if single.is_file():
        return _tensors_of_file(single)
    index_path = folder / _INDEX
    if not index_path.is_file():
        other = sorted(path.name for pattern in ("*.bin", "*.pth", "*.pt") for path in folder.glob(pattern))
        if other:
            raise UnsupportedFeature("weight files", other[0], "in safetensors format")
        raise DamagedModel(single, "the file is missing")
    return _tensors_of_shards(folder, Fields(index_path, read_json_object(index_path)))


def folder_tensors(folder: Path, config: ModelConfig) -> dict[str, StoredTensor]:
    """The tensors of the model: by canonical name those of a dense decoder, those of a hybrid as
    ``hybrid_tensors`` names them. Raises ``TensorMismatch`` too."""
    stored = stored_tensors(folder)
    if isinstance(config, HybridConfig):
        return hybrid_tensors(config, stored, folder)
    return match_layout(config, stored, folder)


def _refuse_variants(fields: Fields) -> None:
    if fields.has("quantization_config"):
        raise UnsupportedFeature("quantization_config", fields.values["quantization_config"], "absent")
    if fields.text("hidden_act", default="silu") not in ("silu", "swish"):
        raise UnsupportedFeature("hidden_act", fields.values["hidden_act"], "silu")
    if fields.flag("use_sliding_window", default=False):
        layers = fields.count("num_hidden_layers", most=LAYER_COUNT_MAX)
        if fields.values.get("max_window_layers", 0) < layers:
            raise UnsupportedFeature(
                "use_sliding_window", True, "false, or no layer beyond max_window_layers"
            )
    layer_types = fields.values.get("layer_types")
    if layer_types is not None and (
        not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types)
    ):
        raise UnsupportedFeature("layer_types", layer_types, "full_attention in every layer")


def _rope(fields: Fields, context: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from the entry of transformers 5 (``rope_parameters``) or the older pair."""
    key = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    entry = fields.values.get(key) or {}
    if not isinstance(entry, dict):
        raise fields.wrong(key, "an object", entry)
    rope = Fields(fields.path, {"rope_theta": fields.values.get("rope_theta"), **entry})
    for partial in (fields.values.get("partial_rotary_factor"), entry.get("partial_rotary_factor")):
        if partial not in (None, 1):
            raise UnsupportedFeature("partial_rotary_factor", partial, "absent or 1")
    theta = rope.number("rope_theta", default=10_000.0)
    kind = rope.text("rope_type", default=rope.text("type", default="default"))
    if kind not in _ROPE_KINDS:
        raise UnsupportedFeature(f"{key}.rope_type", kind, f"one of {', '.join(_ROPE_KINDS)}")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", factor=rope.number("factor"))
    original = rope.count("original_max_position_embeddings", default=context)
    if kind == "llama3":
        scaling = RopeScaling(
            "llama3",
            factor=rope.number("factor"),
            original_context=original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise rope.wrong("high_freq_factor", "above low_freq_factor", scaling.high_freq_factor)
        return theta, scaling
    return theta, RopeScaling(
        "yarn",
        factor=rope.number("factor", default=context / original),
        original_context=original,
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        attention_factor=rope.number("attention_factor") if rope.has("attention_factor") else None,
        mscale=rope.number("mscale") if rope.values.get("mscale") else 0.0,
        mscale_all_dim=rope.number("mscale_all_dim") if rope.values.get("mscale_all_dim") else 0.0,
        truncate=rope.flag("truncate", default=True),
    )


def _tensors_of_file(path: Path) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    try:
        # The numpy face reads headers without importing torch; data is not touched here.
        with safe_open(str(path), framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                part = file.get_slice(name)
                dtype, shape = str(part.get_dtype()), tuple(part.get_shape())
                tensor = StoredTensor(name, dtype, shape, 0, path)
                nbytes = tensor.elements * _ITEM_BYTES.get(dtype, 1)
                tensors[name] = attrs.evolve(tensor, nbytes=nbytes)
    except (SafetensorError, OSError) as error:
        raise DamagedModel(path, f"not a whole safetensors file ({_one_line(error)})") from error
    return tensors


def _tensors_of_shards(folder: Path, index: Fields) -> dict[str, StoredTensor]:
    places = index.values.get("weight_map")
    if not isinstance(places, dict) or not all(_is_plain_name(place) for place in places.values()):
        raise index.wrong("weight_map", "file names in this folder by tensor", places)
    shards: dict[str, dict[str, StoredTensor]] = {}
    for place in sorted(set(places.values())):
        if not (folder / place).is_file():
            raise DamagedModel(folder / place, f"the file is missing, but {_INDEX} names it")
        shards[place] = _tensors_of_file(folder / place)
    tensors: dict[str, StoredTensor] = {}
    for name, place in places.items():
        if name not in shards[place]:
            raise DamagedModel(folder / place, f"no tensor '{name}', but {_INDEX} places it there")
        tensors[name] = shards[place][name]
    return tensors


def _is_plain_name(value: Any) -> bool:
    return isinstance(value, str) and value == Path(value).name and value not in ("", ".", "..")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
