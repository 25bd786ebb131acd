"""Canonical tensors of a hybrid decoder from those that its checkpoint stores."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from txdecode.kernels.models.hybrid_config import HybridConfig
from txdecode.kernels.models.hybrid_folder import Recipe, recipe
from txdecode.kernels.models.hybrid_layout import hybrid_tensor_shapes


def assembled(config: HybridConfig, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every tensor of ``hybrid_tensor_shapes(config)``, in that order and in its stored dtype.

    ``stored`` are the tensors that ``hybrid_folder.hybrid_tensors`` names, already checked for their shapes.
    """
    tensors = {}
    for name, shape in hybrid_tensor_shapes(config).items():
        made = recipe(config, name, shape, stored)
        tensors[name] = _made(config, made, [stored[part] for part in made.parts]).reshape(shape)
    return tensors


def _made(config: HybridConfig, made: Recipe, parts: list[torch.Tensor]) -> torch.Tensor:
    if made.form == "joined":
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    # The rows lie by key head: within one, those of its query, its key, and then of its value heads.
    (whole,) = parts
    by_key = whole.reshape(config.key_heads, -1, whole.shape[-1])
    ratio = config.value_heads // config.key_heads
    if made.form in ("b", "a"):
        return by_key[:, :ratio] if made.form == "b" else by_key[:, ratio:]
    key, value = config.key_dim, ratio * config.value_dim
    *qkv, z = torch.split(by_key, [key, key, value, value], dim=1)
    return z if made.form == "z" else torch.cat([group.flatten(0, 1) for group in qkv])
