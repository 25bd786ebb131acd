"""The bundled model in HF's own classes: its geometry, its MTP layer, its export.

Training and measuring use nothing of txdecode, so that what is shipped was made by code that we did
not write and the runtime can be tested against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.modeling_layers import MtpModel

from tests.bundled.corpus import END_OF_TEXT, VOCABULARY

CONTEXT = 8192


def configuration() -> Qwen3_5TextConfig:
    """Three gated-delta-net layers to one of full attention, twice; two value heads a key head."""
    config = Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    # MtpModel reads these two; the shipped config.json names the layer as the family's checkpoints do.
    config.num_mtp_layers = 1
    config.mtp_layer_types = ["full_attention"]
    return config


class Drafted(nn.Module):
    """A target and its MTP layer, unrolled as a drafter unrolls it."""

    def __init__(self) -> None:
        super().__init__()
        self.target = Qwen3_5ForCausalLM(configuration())
        self.mtp = MtpModel(self.target, 1)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.target.lm_head(hidden)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """[batch, rows] -> hidden states after the final norm [batch, rows, hidden]."""
        return self.target.model(input_ids=tokens, use_cache=False).last_hidden_state

    def drafts(self, hidden: torch.Tensor, tokens: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """Hidden states of draft steps 1..depth at every row, each [batch, rows, hidden].

        tokens: [batch, rows + depth]. Step d at row i takes the hidden state of step d-1 and token
        i+d; it attends to the true pairs 0..i and to its own earlier steps, as at run time, where
        rows made from the drafter's own hidden states are scratch.
        """
        batch, rows, _ = hidden.shape
        cache = DynamicCache(config=self.mtp.config)
        causal = torch.ones(rows, rows, dtype=torch.bool).tril()
        diagonal = torch.eye(rows, dtype=torch.bool)
        outputs = []
        for step in range(depth):
            embedded = self.mtp.embed_tokens(tokens[:, 1 + step : 1 + step + rows])
            positions = torch.arange(step, step + rows)[None].expand(batch, -1)
            seen = torch.cat([causal] + [diagonal] * step, dim=-1)
            hidden = self.mtp.layers[0](
                embedded,
                hidden,
                position_embeddings=self.mtp.rotary_emb(embedded, position_ids=positions),
                attention_mask=seen[None, None].expand(batch, 1, -1, -1),
                position_ids=positions,
                cache=cache,
            )
            outputs.append(hidden)
        return outputs


RENAMED = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "post_norm": "norm",
}


def tensors(model: Drafted) -> dict[str, torch.Tensor]:
    """All weights under the names of the family's checkpoints, in bfloat16."""
    named: dict[str, torch.Tensor] = {}
    for name, tensor in model.target.state_dict().items():
        if name != "lm_head.weight":
            named[name] = tensor
    for name, tensor in model.mtp.layers[0].state_dict().items():
        first, _, rest = name.partition(".")
        named[f"mtp.{RENAMED[first]}.{rest}" if first in RENAMED else f"mtp.layers.0.{rest}"] = tensor
    return {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in named.items()}


def export(model: Drafted, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a folder in Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = model.target.config.to_dict()
    for key in ("num_mtp_layers", "mtp_layer_types", "transformers_version", "_name_or_path"):
        config.pop(key, None)
    config |= {"architectures": ["Qwen3_5ForCausalLM"], "dtype": "bfloat16", "mtp_num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": END_OF_TEXT, "tokenizer_class": "PreTrainedTokenizerFast"}) + "\n"
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    partial = folder / "model.safetensors.part"
    save_file(tensors(model), partial, metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")
