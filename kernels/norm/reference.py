"""RMSNorm as a formula."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps)``, rounded to the dtype of ``x``, then times ``weight``, rounded again."""
    wide = x.double()
    normal = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normal.to(x.dtype).double() * weight.double()).to(x.dtype)


def rms_norm_heads(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same over the last dimension of ``x`` [rows, heads, size], with a ``weight`` [heads, size]."""
    return rms_norm(x, weight, eps)
