"""Hybrid decoders in folders of Hugging Face layout: configuration, and which stored tensors make up which
canonical ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import attrs

from txdecode.kernels.models.errors import TensorMismatch, UnsupportedFeature
from txdecode.kernels.models.fields import LAYER_COUNT_MAX, Fields
from txdecode.kernels.models.hybrid_config import Feed, HybridArchitecture, HybridConfig, Mixer, MoeConfig
from txdecode.kernels.models.hybrid_layout import MTP, MTP_LAYER, hybrid_tensor_shapes
from txdecode.kernels.models.layout import HEAD
from txdecode.kernels.models.stored import StoredTensor, match_shapes

VISION = "model.visual."
_TEXT = "text_config"
_LANGUAGE = "model.language_model."
_SHARED = ".mlp.shared_expert."


@attrs.frozen
class HybridFamily:
    """A class of transformers, with what entries mean that its ``config.json`` leaves out.

    ``experts`` is 0 in a family without experts. ``nested``: the text part is described in ``text_config``.
    """

    architecture: HybridArchitecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    kv_head_count: int
    experts: int = 0
    per_token: int = 0
    nested: bool = False


_QWEN3_NEXT = HybridFamily("qwen3_next", 151936, 2048, 5632, 48, 2, experts=512, per_token=10)
_QWEN3_5 = HybridFamily("qwen3_5", 248320, 4096, 12288, 32, 4)
_QWEN3_5_MOE = HybridFamily("qwen3_5", 248320, 2048, 0, 40, 2, experts=256, per_token=8)

HYBRID_CLASSES: Mapping[str, HybridFamily] = {
    "Qwen3NextForCausalLM": _QWEN3_NEXT,
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5_MOE,
    "Qwen3_5ForConditionalGeneration": attrs.evolve(_QWEN3_5, nested=True),
    "Qwen3_5MoeForConditionalGeneration": attrs.evolve(_QWEN3_5_MOE, nested=True),
}
HYBRID_TYPES: Mapping[str, str] = {
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
}
_MIXERS: Mapping[str, Mixer] = {"linear_attention": "linear", "full_attention": "full"}
_MTP_COUNTS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")


def hybrid_config(top: Fields, family: HybridFamily, stored: Collection[str]) -> HybridConfig:
    """The configuration of a ``config.json``; ``stored`` are the names of the tensors that lie beside it.

    There is an MTP layer where its tensors are, whatever the configuration says: transformers drops them on
    saving. Raises ``UnsupportedFeature`` and ``DamagedModel``.
    """
    fields = _text_fields(top, family)
    for each in (top, fields):
        _refuse_variants(each)
    mixers = _mixers(fields, fields.count("num_hidden_layers", family.layer_count, most=LAYER_COUNT_MAX))
    moe = _experts(fields, family)
    feeds = _feeds(fields, family, moe, len(mixers))
    head_dim = fields.count("head_dim", default=256)
    theta, rotary_dim = _rope(fields, head_dim)
    # The whole model decides whether its head is tied, where it says so; the text part otherwise.
    tied = top if top.has("tie_word_embeddings") else fields
    config = HybridConfig(
        architecture=family.architecture,
        vocab_size=fields.count("vocab_size", default=family.vocab_size),
        hidden_size=fields.count("hidden_size", default=family.hidden_size),
        mixers=mixers,
        feeds=feeds,
        intermediate_size=(
            fields.count("intermediate_size", default=family.intermediate_size or None)
            if "dense" in feeds
            else 0
        ),
        moe=moe if "moe" in feeds else None,
        head_count=fields.count("num_attention_heads", default=16),
        kv_head_count=fields.count("num_key_value_heads", default=family.kv_head_count),
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        rms_eps=fields.number("rms_norm_eps", default=1e-6),
        context=fields.count("max_position_embeddings", default=32768),
        key_heads=fields.count("linear_num_key_heads", default=16),
        value_heads=fields.count("linear_num_value_heads", default=32),
        key_dim=fields.count("linear_key_head_dim", default=128),
        value_dim=fields.count("linear_value_head_dim", default=128),
        conv_width=fields.count("linear_conv_kernel_dim", default=4, least=2),
        tied_head=tied.flag("tie_word_embeddings", default=False),
        mtp=_has_mtp((top, fields), stored),
        # The MTP layer counts as layer 0 where the index of a layer decides on its feed.
        mtp_feed=feeds[0],
    )
    return _checked(fields, config)


def says_mtp(top: Fields) -> bool:
    """Whether a ``config.json`` names MTP layers, at its top or in its text part. Raises ``DamagedModel``."""
    return _mtp_layers((top, _nested(top) or top)) > 0


def hybrid_tensors(
    config: HybridConfig, stored: Mapping[str, StoredTensor], folder: Path
) -> dict[str, StoredTensor]:
    """The stored tensors of the text model and its MTP layer, by their name without ``language_model.``.

    Tensors of the vision part are left out. Raises ``TensorMismatch``.
    """
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if name.startswith(VISION) or (_SHARED in name and not tensor.elements):
            continue
        plain = _plain(name)
        if plain in named:
            raise TensorMismatch(tensor.path, name, None, tensor.shape)
        named[plain] = tensor
    wanted: dict[str, tuple[int, ...]] = {}
    for name, shape in hybrid_tensor_shapes(config).items():
        wanted.update(recipe(config, name, shape, named).parts)
    return match_shapes(wanted, named, folder, lambda name: _is_harmless(name, config))


@attrs.frozen
class Recipe:
    """How a canonical tensor is made: ``joined``, its ``parts`` laid end to end and given its shape, or one
    of the row groups that a single part interleaves by key head. ``parts``: stored name to stored shape."""

    form: Literal["joined", "qkv", "z", "b", "a"]
    parts: Mapping[str, tuple[int, ...]]


def recipe(config: HybridConfig, name: str, shape: tuple[int, ...], stored: Collection[str]) -> Recipe:
    """The recipe of one canonical tensor of ``shape``; ``stored`` tells how the experts of a layer lie."""
    prefix, _, leaf = name.partition(".linear_attn.in_proj_")
    if leaf and config.architecture == "qwen3_next":
        interleaved = f"{prefix}.linear_attn.in_proj_"
        hidden = (config.hidden_size,)
        if leaf in ("b.weight", "a.weight"):
            rows = 2 * config.value_heads
            return Recipe("b" if leaf[0] == "b" else "a", {f"{interleaved}ba.weight": (rows, *hidden)})
        rows = config.conv_size + config.value_size
        form: Literal["qkv", "z"] = "z" if leaf == "z.weight" else "qkv"
        return Recipe(form, {f"{interleaved}qkvz.weight": (rows, *hidden)})
    prefix, _, leaf = name.partition(".experts.")
    if not leaf or f"{prefix}.experts.gate_up_proj" in stored or f"{prefix}.experts.down_proj" in stored:
        return Recipe("joined", {name: shape})
    projections = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else ("down_proj",)
    rows = shape[1] // len(projections)
    return Recipe(
        "joined",
        {
            f"{prefix}.experts.{expert}.{projection}.weight": (rows, shape[2])
            for expert in range(shape[0])
            for projection in projections
        },
    )


def _plain(name: str) -> str:
    return "model." + name.removeprefix(_LANGUAGE) if name.startswith(_LANGUAGE) else name


def _is_harmless(name: str, config: HybridConfig) -> bool:
    if (
        config.moe is not None
        and not config.moe.shared_size
        and name.endswith("mlp.shared_expert_gate.weight")
    ):
        # Of a shared expert of no width transformers stores empty matrices, and the gate of what it adds: 0.
        return True
    # A head is not asked for where it is tied: some checkpoints store a copy of the embedding as one.
    return name.endswith("rotary_emb.inv_freq") or name == HEAD


def _nested(top: Fields) -> Fields | None:
    if not top.has(_TEXT):
        return None
    values = top.values[_TEXT]
    if not isinstance(values, dict):
        raise top.wrong(_TEXT, "an object", values)
    return Fields(top.path, values)


def _text_fields(top: Fields, family: HybridFamily) -> Fields:
    nested = _nested(top)
    if nested is None and family.nested:
        raise top.wrong(_TEXT, "an object", None)
    return nested or top


def _refuse_variants(fields: Fields) -> None:
    if fields.has("quantization_config"):
        raise UnsupportedFeature("quantization_config", fields.values["quantization_config"], "absent")
    for key in ("hidden_act", "output_gate_type"):
        if fields.text(key, default="silu") not in ("silu", "swish"):
            raise UnsupportedFeature(key, fields.values[key], "silu")
    for key, only in (
        ("attention_bias", False),
        ("use_sliding_window", False),
        ("mtp_use_dedicated_embeddings", False),
        ("attn_output_gate", True),
    ):
        if fields.flag(key, default=only) is not only:
            raise UnsupportedFeature(key, not only, f"absent or {str(only).lower()}")


def _mixers(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    kinds = fields.values.get("layer_types")
    if kinds is None:
        interval = fields.count("full_attention_interval", default=4)
        return tuple("linear" if (index + 1) % interval else "full" for index in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.wrong("layer_types", f"a list of {layers}, one for each layer", kinds)
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in _MIXERS]
    if unknown:
        raise UnsupportedFeature("layer_types", unknown[0], f"one of {', '.join(_MIXERS)} in every layer")
    return tuple(_MIXERS[kind] for kind in kinds)


def _experts(fields: Fields, family: HybridFamily) -> MoeConfig | None:
    if not family.experts:
        return None
    # Only Qwen3-Next may have no experts, or weights that do not sum to one: the classes of Qwen3.5 read no
    # such entry.
    is_next = family.architecture == "qwen3_next"
    experts = fields.count("num_experts", default=family.experts, least=0 if is_next else 1)
    if experts == 0:
        return None
    normalise = fields.flag("norm_topk_prob", default=True) if is_next else True
    return MoeConfig(
        experts,
        fields.count("num_experts_per_tok", default=family.per_token, most=experts),
        fields.count("moe_intermediate_size", default=512),
        fields.count("shared_expert_intermediate_size", default=512, least=0),
        normalise,
    )


def _feeds(fields: Fields, family: HybridFamily, moe: MoeConfig | None, layers: int) -> tuple[Feed, ...]:
    everywhere: Feed = "dense" if moe is None else "moe"
    if moe is None or family.architecture != "qwen3_next":
        return (everywhere,) * layers
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(
        isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < layers for index in dense
    ):
        raise fields.wrong("mlp_only_layers", f"a list of numbers of layers, each below {layers}", dense)
    step = fields.count("decoder_sparse_step", default=1)
    feeds: list[Feed] = [
        "dense" if index in dense or (index + 1) % step else "moe" for index in range(layers)
    ]
    return tuple(feeds)


def _rope(fields: Fields, head_dim: int) -> tuple[float, int]:
    """Base, and how many dimensions of a head turn. The sections of mrope are no concern: for text the three
    grids of positions are equal."""
    key = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    entry = fields.values.get(key) or {}
    if not isinstance(entry, dict):
        raise fields.wrong(key, "an object", entry)
    outer = {name: fields.values.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    stated = {name: value for name, value in entry.items() if value is not None}
    rope = Fields(fields.path, outer | stated)
    kind = rope.text("rope_type", default=rope.text("type", default="default"))
    of_kinds = [name for name, value in entry.items() if isinstance(value, dict)]
    if kind != "default" or of_kinds:
        raise UnsupportedFeature(f"{key}.rope_type", of_kinds or kind, "default, the same in every layer")
    rotary_dim = int(head_dim * rope.number("partial_rotary_factor", default=0.25))
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        expected = f"an even number of the {head_dim} dimensions of a head"
        raise fields.wrong("partial_rotary_factor", expected, rotary_dim)
    return rope.number("rope_theta", default=10_000.0), rotary_dim


def _mtp_layers(places: Iterable[Fields]) -> int:
    return max(fields.count(key, default=0, least=0) for fields in places for key in _MTP_COUNTS)


def _has_mtp(places: Iterable[Fields], stored: Collection[str]) -> bool:
    names = [name for name in stored if name.startswith(MTP)]
    later = [name for name in names if name.startswith("mtp.layers.") and not name.startswith(MTP_LAYER)]
    layers = _mtp_layers(places)
    if layers > 1 or later:
        raise UnsupportedFeature("number of MTP layers", later[0] if later else layers, "at most 1")
    return bool(names)


def _checked(fields: Fields, config: HybridConfig) -> HybridConfig:
    if config.head_dim % 2:
        raise fields.wrong("head_dim", "an even number", config.head_dim)
    if config.head_count % config.kv_head_count:
        raise fields.wrong(
            "num_key_value_heads", f"a divisor of {config.head_count} heads", config.kv_head_count
        )
    if config.value_heads % config.key_heads:
        raise fields.wrong(
            "linear_num_value_heads", f"a multiple of {config.key_heads} key heads", config.value_heads
        )
    return config
