"""The norms as formulas, in double precision."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    """``scale * x / sqrt(mean(x^2) + eps)`` over the last dimension, fp64."""
    wide = x.double()
    return wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps) * scale.double()


def unit_rows(x: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """See ``fused``."""
    wide = x.double()
    return (wide / wide.square().sum(-1, keepdim=True).sqrt() * ones.double()).to(x.dtype)


def rms_norm_heads(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    """See ``fused``: rounded to the dtype of ``x`` before the scale and after it."""
    normal = rms_norm(x, torch.ones_like(scale), eps).to(x.dtype)
    return (normal.double() * scale.double()).to(x.dtype)
