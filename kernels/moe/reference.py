"""The block as a formula, a row and an expert at a time, in double precision."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from txdecode.kernels.models.hybrid_config import MoeConfig


def moe(
    tensors: Mapping[str, torch.Tensor],
    prefix: str,
    config: MoeConfig,
    scale: torch.Tensor,
    normal: torch.Tensor,
    x: torch.Tensor,
) -> torch.Tensor:
    """``x`` plus the block: fp64 [rows, hidden + 1].

    Arguments as of ``fused.Moe`` and its ``add``, all taken as exact; nothing is rounded between.
    """
    weights = {name: tensors[f"{prefix}.{name}"].double() for name in _names(config)}
    result = x.double().clone()
    hidden = scale.shape[0]
    for row, unit in enumerate(normal.double()[:, :hidden]):
        n = unit * math.sqrt(hidden) * scale.double()
        for expert, weight in zip(*chosen(weights["gate.weight"] @ n, config), strict=True):
            gate, up = (weights["experts.gate_up_proj"][expert] @ n).chunk(2)
            result[row, :hidden] += weight * _down(weights["experts.down_proj"][expert], gate, up)
        if config.shared_size:
            gate, up = (weights[f"shared_expert.{name}_proj.weight"] @ n for name in ("gate", "up"))
            share = torch.sigmoid(weights["shared_expert_gate.weight"] @ n)
            result[row, :hidden] += share * _down(weights["shared_expert.down_proj.weight"], gate, up)
    return result


def chosen(logits: torch.Tensor, config: MoeConfig) -> tuple[list[int], list[float]]:
    """Experts of one row, ascending, and their weights, from its router ``logits`` [experts]."""
    p = torch.softmax(logits.double(), 0).tolist()
    best = sorted(range(len(p)), key=lambda expert: (-p[expert], expert))[: config.per_token]
    total = math.fsum(p[expert] for expert in best) if config.normalise else 1.0
    experts = sorted(best)
    return experts, [p[expert] / total for expert in experts]


def _down(down: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return down @ (gate * torch.sigmoid(gate) * up)


def _names(config: MoeConfig) -> tuple[str, ...]:
    names = ("gate.weight", "experts.gate_up_proj", "experts.down_proj")
    if not config.shared_size:
        return names
    shared = tuple(f"shared_expert.{name}_proj.weight" for name in ("gate", "up", "down"))
    return (*names, *shared, "shared_expert_gate.weight")
