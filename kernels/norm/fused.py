"""Normalisation through single operators of torch, which reduce in fp32."""

from __future__ import annotations

import math

import torch


def extended(rows: torch.Tensor, eps: float) -> torch.Tensor:
    """``rows`` [rows, size] with the constant column that stands for ``eps``: [rows, size + 1]."""
    size = rows.shape[1]
    return torch.cat([rows, rows.new_full((rows.shape[0], 1), math.sqrt(size * eps))], 1)


def folded(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The matrix [out, size + 1] that gives on ``unit_rows(x)`` what ``weight`` [out, size] gives on the
    RMSNorm of x with ``scale`` [size]. Computed in fp32, rounded once to the dtype of ``weight``."""
    size = weight.shape[1]
    matrix = weight.float() * scale.float() * math.sqrt(size)
    return torch.cat([matrix, matrix.new_zeros(matrix.shape[0], 1)], 1).to(weight.dtype)


def unit_rows(x: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """Each row of ``x`` [rows, size] divided by its length. ``ones`` is [rows, 1]; both of one dtype."""
    # The operator of weight normalisation (arXiv 1602.07868), which takes the lengths that are wanted.
    normal: torch.Tensor = torch._weight_norm_interface(x, ones, 0)[0]
    return normal


def rms_norm_heads(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension of ``x`` [rows, heads, size], times ``scale`` [heads, size]. At least
    two rows: with one, torch may reduce in another order."""
    return torch.rms_norm(x, x.shape[-1:], None, eps).mul_(scale)
