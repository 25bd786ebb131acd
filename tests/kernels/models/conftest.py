"""Tiny random models: folders by transformers itself, GGUF files by the gguf library's writer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from gguf import GGUFWriter, quants
from gguf.constants import GGMLQuantizationType
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from txdecode.kernels.models.errors import ModelNotInstalled
from txdecode.kernels.models.source import ModelSource, resolve

os.environ["HF_HUB_OFFLINE"] = "1"

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_WORDS = "the model reads the text and the text reads the model; 12 tests, 34 tests and more tests " * 4

_FROM_HF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE of about 300 tokens with two special tokens at the front."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[AddedToken("<|end|>", special=True), AddedToken("<|user|>", special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_WORDS], trainer)
    return tokenizer


@attrs.frozen
class Tiny:
    """A random model of transformers with its folder."""

    architecture: str
    model: Any
    folder: Path

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Canonical tensors: the tied head is no tensor of its own."""
        state = dict(self.model.state_dict())
        if self.model.config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        return state


def build_model(architecture: str, vocab_size: int, **changes: Any) -> Any:
    """A random two-layer model in fp32, of 4 heads of 16 over 2 key/value heads."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    classes: dict[str, tuple[Any, Any]] = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }
    config_class, model_class = classes[architecture]
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = model_class(config_class(**{**settings, **changes}))
        with torch.no_grad():
            # Norms and biases start as ones and zeros, which would hide a swapped tensor.
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.5)
    return model.eval()


@pytest.fixture(scope="session")
def make_folder(tiny_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tiny]:
    """``make_folder(architecture, **config)``: a checkpoint as transformers saves it."""

    def make(architecture: str = "llama", save: dict[str, Any] | None = None, **changes: Any) -> Tiny:
        from transformers import PreTrainedTokenizerFast

        folder = tmp_path_factory.mktemp(architecture)
        model = build_model(architecture, tiny_tokenizer.get_vocab_size(), **changes)
        model.save_pretrained(folder, **(save or {}))
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=tiny_tokenizer, eos_token="<|end|>", bos_token="<|user|>"
        )
        wrapped.chat_template = TEMPLATE
        wrapped.save_pretrained(folder)
        return Tiny(architecture, model, folder)

    return make


@pytest.fixture(scope="session")
def folders(make_folder: Callable[..., Tiny]) -> dict[str, Tiny]:
    """One folder an architecture; the head is tied in that of qwen3."""
    return {
        "llama": make_folder("llama", attention_bias=True, mlp_bias=True),
        "qwen2": make_folder("qwen2"),
        "qwen3": make_folder("qwen3", tie_word_embeddings=True),
    }


def to_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """What the converter of llama.cpp does to query and key rows of ``llama`` models."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def gguf_name(name: str) -> str:
    """The GGUF name of a canonical tensor."""
    stem, _, kind = name.rpartition(".")
    if stem in _FROM_HF:
        return f"{_FROM_HF[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_FROM_HF[rest]}.{kind}"


@pytest.fixture(scope="session")
def as_stored() -> Callable[..., tuple[str, torch.Tensor]]:
    """``as_stored(name, tensor, heads, kv_heads)``: name and row order that a llama GGUF file has."""

    def convert(name: str, tensor: torch.Tensor, heads: int, kv_heads: int) -> tuple[str, torch.Tensor]:
        for projection, count in (("q_proj.", heads), ("k_proj.", kv_heads)):
            if projection in name:
                tensor = torch.from_numpy(to_pairs(tensor.numpy(), count))
        return gguf_name(name), tensor

    return convert


@pytest.fixture(scope="session")
def make_gguf(tiny_tokenizer: Tokenizer) -> Callable[..., Path]:
    """``make_gguf(path, tiny, kind, ...)``: the same model as a GGUF file.

    ``edit(writer)`` adds metadata; ``pre`` names the pre-tokenizer; ``tensors`` replace the model's own.
    """

    def make(
        path: Path,
        tiny: Tiny,
        kind: str = "F32",
        *,
        edit: Callable[[GGUFWriter], None] | None = None,
        pre: str = "gpt-2",
        architecture: str | None = None,
        tensors: dict[str, torch.Tensor] | None = None,
        tokenizer_model: str = "gpt2",
    ) -> Path:
        config = tiny.model.config
        writer = GGUFWriter(str(path), architecture or tiny.architecture)
        writer.add_name("tiny")
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        _add_tokenizer(writer, tiny_tokenizer, tokenizer_model, pre)
        if edit is not None:
            edit(writer)
        for name, tensor in (tensors or tiny.state).items():
            _add_tensor(writer, tiny, name, tensor.numpy(), kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def _add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer, model: str, pre: str) -> None:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    state = json.loads(tokenizer.to_str())["model"]
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in state["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_chat_template(TEMPLATE)


def _add_tensor(writer: GGUFWriter, tiny: Tiny, name: str, values: np.ndarray, kind: str) -> None:
    config = tiny.model.config
    if tiny.architecture == "llama":
        if "q_proj." in name:
            values = to_pairs(values, config.num_attention_heads)
        if "k_proj." in name:
            values = to_pairs(values, config.num_key_value_heads)
    values = np.ascontiguousarray(values, dtype=np.float32)
    target = GGMLQuantizationType[kind]
    if target is GGMLQuantizationType.F32 or values.ndim == 1:
        writer.add_tensor(gguf_name(name), values)
    elif target is GGMLQuantizationType.F16:
        writer.add_tensor(gguf_name(name), values.astype(np.float16))
    else:
        writer.add_tensor(gguf_name(name), quants.quantize(values, target), raw_dtype=target)


@pytest.fixture(scope="session")
def smollm2() -> Iterator[ModelSource]:
    """The real model, or a skip that says how to install it."""
    try:
        yield resolve("smollm2")
    except ModelNotInstalled as error:
        pytest.skip(str(error))
