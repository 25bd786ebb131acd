"""From GGUF metadata and tensor names to a configuration and canonical tensor names."""

from __future__ import annotations

import re
import struct
from typing import Any

import attrs

from txdecode.kernels.models.config import ARCHITECTURES, Architecture, DenseConfig, RopeScaling
from txdecode.kernels.models.errors import TensorMismatch, UnsupportedArchitecture, UnsupportedFeature
from txdecode.kernels.models.fields import LAYER_COUNT_MAX, Fields, checked
from txdecode.kernels.models.gguf_file import GgufFile
from txdecode.kernels.models.layout import EMBEDDING, FINAL_NORM, HEAD
from txdecode.kernels.models.stored import StoredTensor, map_file, match_layout

ROPE_DIVISORS = "rope_freqs.weight"

_TOP = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")

# Metadata that changes the computation when it differs from the neutral value; written by models that
# borrow an architecture's name.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "attention.sliding_window": (0,),
    "attention.scale": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
}


def gguf_architecture(gguf: GgufFile) -> Architecture:
    """The architecture. Raises ``UnsupportedArchitecture`` naming it, and ``DamagedModel``."""
    found = gguf.fields.text("general.architecture")
    for architecture in ARCHITECTURES:
        if found == architecture:
            return architecture
    raise UnsupportedArchitecture(found, ARCHITECTURES)


def gguf_config(gguf: GgufFile) -> DenseConfig:
    """The configuration. Raises ``UnsupportedArchitecture``, ``UnsupportedFeature``, ``DamagedModel`` and
    ``TensorMismatch`` where the embedding is missing."""
    architecture = gguf_architecture(gguf)
    prefix = f"{architecture}."
    fields = Fields(
        gguf.path,
        {key[len(prefix) :]: value for key, value in gguf.metadata.items() if key.startswith(prefix)},
    )
    for key, neutral in _NEUTRAL.items():
        if fields.has(key) and fields.values[key] not in neutral:
            raise UnsupportedFeature(prefix + key, fields.values[key], f"absent or {neutral[0]!r}")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise TensorMismatch(gguf.path, EMBEDDING, (fields.count("embedding_length"),), None)
    heads = _same_in_all_layers(fields, "attention.head_count")
    hidden = fields.count("embedding_length")
    head_dim = fields.count("attention.key_length", default=max(hidden // heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.count(key, default=head_dim) != head_dim:
            raise UnsupportedFeature(prefix + key, fields.values[key], f"the head dimension {head_dim}")
    config = DenseConfig(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        intermediate_size=_same_in_all_layers(fields, "feed_forward_length"),
        layer_count=fields.count("block_count", most=LAYER_COUNT_MAX),
        head_count=heads,
        kv_head_count=_same_in_all_layers(fields, "attention.head_count_kv", default=heads),
        head_dim=head_dim,
        rope_theta=fields.number("rope.freq_base", default=10_000.0),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        context=fields.count("context_length"),
        tied_head="output.weight" not in gguf.tensors,
        qkv_bias="blk.0.attn_q.bias" in gguf.tensors,
        o_bias="blk.0.attn_output.bias" in gguf.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in gguf.tensors,
        qk_norm=architecture == "qwen3",
        rope_scaling=_rope_scaling(gguf, fields, prefix),
    )
    return checked(gguf.path, config)


def gguf_tensors(gguf: GgufFile, config: DenseConfig) -> dict[str, StoredTensor]:
    """The tensors of the model by canonical name. Raises ``TensorMismatch``."""
    named: dict[str, StoredTensor] = {}
    for name, tensor in gguf.tensors.items():
        if name != ROPE_DIVISORS:
            named[_canonical_name(name)] = tensor
    return match_layout(config, named, gguf.path)


def is_permuted(config: DenseConfig, canonical: str) -> bool:
    """Whether the file holds these rows in pairs (2i, 2i + 1) instead of halves (i, i + head_dim / 2).

    The converter reorders the rows of query and key projections of ``llama`` alone.
    """
    return config.architecture == "llama" and ("q_proj." in canonical or "k_proj." in canonical)


def _canonical_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _IN_LAYER:
        return name
    return f"model.layers.{int(match[1])}.{_IN_LAYER[match[2]]}.{match[3]}"


def _same_in_all_layers(fields: Fields, key: str, default: int | None = None) -> int:
    value = fields.values.get(key)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise UnsupportedFeature(key, value, "the same in every layer")
        return attrs.evolve(fields, values={key: value[0]}).count(key)
    return fields.count(key, default=default)


def _rope_scaling(gguf: GgufFile, fields: Fields, prefix: str) -> RopeScaling | None:
    divisors = gguf.tensors.get(ROPE_DIVISORS)
    kind = fields.text("rope.scaling.type", default="none")
    if divisors is not None:
        if kind != "none" or divisors.dtype != "F32":
            raise UnsupportedFeature(ROPE_DIVISORS, f"{divisors.dtype}, {kind}", "F32 and the only scaling")
        return RopeScaling("divisors", divisors=_read_divisors(divisors))
    if kind == "linear" or (kind == "none" and fields.has("rope.scale_linear")):
        key = "rope.scaling.factor" if fields.has("rope.scaling.factor") else "rope.scale_linear"
        return RopeScaling("linear", factor=fields.number(key))
    if kind == "yarn":
        return _yarn(fields)
    if kind != "none":
        raise UnsupportedFeature(f"{prefix}rope.scaling.type", kind, "one of none, linear, yarn")
    return None


def _yarn(fields: Fields) -> RopeScaling:
    scaling = RopeScaling(
        "yarn",
        factor=fields.number("rope.scaling.factor"),
        original_context=fields.count("rope.scaling.original_context_length"),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", default=1.0),
    )
    for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"):
        if fields.has(key) and fields.values[key] != 1.0:
            raise UnsupportedFeature(key, fields.values[key], "absent or 1")
    return scaling


def _read_divisors(tensor: StoredTensor) -> tuple[float, ...]:
    data = map_file(tensor.path)[tensor.offset : tensor.offset + tensor.nbytes]
    values = struct.unpack(f"<{tensor.elements}f", data)
    fields = Fields(tensor.path, {})
    for value in values:
        if not 0.0 < value < float("inf"):
            raise fields.wrong(ROPE_DIVISORS, "finite numbers above zero", value)
    return values
