"""Tiny random hybrids in transformers' own classes, saved as their families' checkpoints lie on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import (
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.modeling_layers import MtpModel

Family = Literal["qwen3_next", "qwen3_5", "qwen3_5_moe"]

FAMILIES: tuple[Family, ...] = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
CLASSES: Mapping[Family, tuple[Any, Any]] = {
    "qwen3_next": (Qwen3NextConfig, Qwen3NextForCausalLM),
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM),
}
# Every size differs from every other that could take its place.
GEOMETRY: Mapping[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}
EXPERTS: Mapping[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
}
_MTP_NAMES = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "post_norm": "norm",
}


@attrs.frozen
class TinyHybrid:
    """A model of transformers in fp32 and, where it has one, its MTP layer (which shares embedding and head)."""

    family: Family
    model: Any
    mtp: Any | None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Stored tensors by the names of a text-only checkpoint, experts fused; a tied head is left out."""
        named = dict(self.model.state_dict())
        if self.model.config.tie_word_embeddings:
            del named["lm_head.weight"]
        for name, tensor in {} if self.mtp is None else self.mtp.layers[0].state_dict().items():
            first, _, rest = name.partition(".")
            named[f"mtp.{_MTP_NAMES[first]}.{rest}" if first in _MTP_NAMES else f"mtp.layers.0.{rest}"] = (
                tensor
            )
        return {name: tensor.detach() for name, tensor in named.items()}


def build(family: Family, *, mtp: bool = True, seed: int = 0, **changes: Any) -> TinyHybrid:
    """A random model: three layers of gated delta net, one of full attention; ``changes`` to the configuration.

    Weights of every kind are drawn, those that transformers starts at zero or one too, so that none can be
    swapped or forgotten unseen; activations stay of order one and the recurrent state remembers.
    """
    config_class, model_class = CLASSES[family]
    settings = dict(GEOMETRY)
    if family != "qwen3_5":
        settings |= EXPERTS
    if family == "qwen3_5_moe":
        del settings["intermediate_size"]
    config = config_class(**{**settings, **changes})
    if mtp:
        config.num_mtp_layers = 1
        config.mtp_layer_types = ["full_attention"]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = model_class(config).float().eval()
        layer = MtpModel(model, 1).float().eval() if mtp else None
        tiny = TinyHybrid(family, model, layer)
        for name, tensor in tiny.tensors.items():
            tensor.copy_(_drawn(name, tensor.shape))
    return tiny


def save(
    tiny: TinyHybrid,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    single_experts: bool = False,
    nested: bool = False,
    shards: int = 1,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a folder in Hugging Face layout and return it.

    ``single_experts``: every expert's matrices are tensors of their own, as released checkpoints have them.
    ``nested``: the layout of a model with a vision part, of which one tensor stands for all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny.model.config.to_dict()
    for key in ("num_mtp_layers", "mtp_layer_types", "transformers_version", "_name_or_path"):
        config.pop(key, None)
    mtp_key = "num_nextn_predict_layers" if tiny.family == "qwen3_next" else "mtp_num_hidden_layers"
    config[mtp_key] = 0 if tiny.mtp is None else 1
    name = type(tiny.model).__name__
    tensors = tiny.tensors
    if single_experts:
        tensors = _one_by_one(tensors)
    if nested:
        name = name.replace("ForCausalLM", "ForConditionalGeneration")
        config = {
            "model_type": tiny.family,
            "text_config": config,
            "tie_word_embeddings": config["tie_word_embeddings"],
            "vision_config": {"depth": 1},
        }
        tensors = {_nested(key): tensor for key, tensor in tensors.items()}
        tensors["model.visual.patch_embed.proj.weight"] = torch.ones(3, 2)
    config["architectures"] = [name]
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}) + "\n")
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_tensors(folder, {key: tensor.to(dtype).contiguous() for key, tensor in tensors.items()}, shards)
    return folder


def write_tensors(folder: Path, tensors: Mapping[str, torch.Tensor], shards: int = 1) -> None:
    """The safetensors files of a folder; several with an index, the tensors dealt round."""
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    places = {
        name: f"model-{index % shards + 1:05}-of-{shards:05}.safetensors"
        for index, name in enumerate(tensors)
    }
    for place in set(places.values()):
        part = {name: tensor for name, tensor in tensors.items() if places[name] == place}
        save_file(part, folder / place, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _drawn(name: str, shape: torch.Size) -> torch.Tensor:
    if name.endswith("A_log"):
        # Decays between nearly nothing and nearly all a token.
        return torch.empty(shape).uniform_(0.02, 2.0).log()
    if name.endswith("dt_bias"):
        return torch.empty(shape).uniform_(-3.0, 1.0)
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.2 * torch.randn(shape)
    if "norm" in name:
        return 0.2 * torch.randn(shape)
    if name.endswith("embed_tokens.weight"):
        return torch.randn(shape)
    return torch.randn(shape) / math.sqrt(shape[-1])


def _one_by_one(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    named: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        prefix, _, leaf = name.partition(".experts.")
        if not leaf:
            named[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            parts = {"down_proj": matrix}
            if leaf == "gate_up_proj":
                gate, up = matrix.chunk(2)
                parts = {"gate_proj": gate, "up_proj": up}
            named |= {f"{prefix}.experts.{expert}.{key}.weight": part for key, part in parts.items()}
    return named


def _nested(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
