"""``txdecode describe``: what a model is, from its files alone."""

from __future__ import annotations

from typing import Any

import attrs
import click

from txdecode.kernels.models.describe import ModelDescription, describe_model
from txdecode.kernels.models.hybrid_config import HybridConfig, ModelConfig
from txdecode.kernels.models.source import resolve
from txdecode.runtime.cli.options import dtype_option, json_option
from txdecode.runtime.cli.render import human_bytes, print_json, print_pairs


@click.command()
@click.argument("model", default="bundled", metavar="MODEL")
@dtype_option
@json_option
def describe(model: str, dtype: str, as_json: bool) -> None:
    """Say what MODEL is: architecture, state groups, what it needs and what rules it out.

    MODEL is bundled, smollm2, a folder in Hugging Face layout, or a GGUF file. Only its files are read; nothing is
    loaded.
    """
    description = describe_model(resolve(model), dtype)
    if as_json:
        print_json(description_data(description))
        return
    click.echo(click.style(description.name, bold=True))
    print_pairs(_pairs(description))


def description_data(description: ModelDescription) -> dict[str, Any]:
    """The JSON object of a description."""
    data = attrs.asdict(description)
    data["path"] = str(description.path)
    return data


def _pairs(description: ModelDescription) -> dict[str, object]:
    config = description.config
    pairs: dict[str, object] = {
        "architecture": description.architecture,
        "supported": "yes" if description.supported else f"no: {description.reason}",
        "parameters": f"{description.parameters:,}",
        "weights": ", ".join(f"{human_bytes(n)} {kind}" for kind, n in description.weight_bytes.items()),
    }
    if config is not None:
        pairs |= _geometry(config)
    for state in description.states:
        held = f"{human_bytes(state.token_bytes)} a token"
        if not state.token_bytes:
            held = f"{human_bytes(state.sequence_bytes)} a sequence"
        layers = "1 layer" if state.layers == 1 else f"{state.layers} layers"
        pairs[f"state '{state.name}'"] = f"{state.kind}, {layers}, {held} in {state.dtype}"
    pairs |= {
        "tokenizer": description.tokenizer or "none",
        "chat template": "yes" if description.chat_template else "no",
        "end tokens": ", ".join(map(str, description.eos_ids)) or "none",
        "sampling": ", ".join(f"{k}={v}" for k, v in description.sampling.items()) or "no defaults",
    }
    if description.notes:
        pairs["notes"] = "; ".join(description.notes)
    return pairs


def _geometry(config: ModelConfig) -> dict[str, object]:
    heads = f"{config.head_count} query, {config.kv_head_count} key/value, {config.head_dim} wide"
    pairs: dict[str, object] = {"layers": config.layer_count, "heads": heads}
    inner = f", feed-forward {config.intermediate_size}" if config.intermediate_size else ""
    if isinstance(config, HybridConfig):
        pairs["layers"] = (
            f"{config.layer_count}: {len(config.linear_layers)} gated delta net, "
            f"{len(config.full_layers)} full attention{', and one MTP layer' if config.mtp else ''}"
        )
        pairs["delta net"] = (
            f"{config.key_heads} key heads, {config.key_dim} wide, {config.value_heads} value heads, "
            f"{config.value_dim} wide, convolution over {config.conv_width} rows"
        )
    if isinstance(config, HybridConfig) and config.moe is not None:
        moe = config.moe
        shared = f", and a shared one, {moe.shared_size} wide" if moe.shared_size else ""
        pairs["experts"] = (
            f"{moe.per_token} of {moe.experts} a token, {moe.intermediate_size} wide{shared}, "
            f"in {config.feeds.count('moe')} layers"
        )
    return pairs | {
        "hidden": f"{config.hidden_size}{inner}",
        "vocabulary": f"{config.vocab_size:,}",
        "context": f"{config.context:,} tokens",
    }
