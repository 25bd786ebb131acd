"""``txdecode describe``: what a model is, from its files alone."""

from __future__ import annotations

from typing import Any

import attrs
import click

from txdecode.kernels.models.describe import ModelDescription, describe_model
from txdecode.kernels.models.source import resolve
from txdecode.runtime.cli.options import dtype_option, json_option
from txdecode.runtime.cli.render import human_bytes, print_json, print_pairs


@click.command()
@click.argument("model", default="smollm2", metavar="MODEL")
@dtype_option
@json_option
def describe(model: str, dtype: str, as_json: bool) -> None:
    """Say what MODEL is: architecture, state groups, what it needs and what rules it out.

    MODEL is smollm2, a folder in Hugging Face layout, or a GGUF file. Only its files are read; nothing is loaded.
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
        pairs |= {
            "layers": config.layer_count,
            "heads": f"{config.head_count} query, {config.kv_head_count} key/value, {config.head_dim} wide",
            "hidden": f"{config.hidden_size}, feed-forward {config.intermediate_size}",
            "vocabulary": f"{config.vocab_size:,}",
            "context": f"{config.context:,} tokens",
        }
    for state in description.states:
        pairs[f"state '{state.name}'"] = (
            f"{state.kind}, {state.layers} layers, {human_bytes(state.token_bytes)} a token in {state.dtype}"
        )
    pairs |= {
        "tokenizer": description.tokenizer or "none",
        "chat template": "yes" if description.chat_template else "no",
        "end tokens": ", ".join(map(str, description.eos_ids)) or "none",
        "sampling": ", ".join(f"{k}={v}" for k, v in description.sampling.items()) or "no defaults",
    }
    return pairs
