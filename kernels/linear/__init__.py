"""Linear layers whose bits do not depend on how many rows are computed together.

``reference``, ``paneled`` (bf16, our own) and ``prepacked`` (oneDNN, which ``choice`` takes for fp32) offer a class
each with the same constructor and the same calls;
``tiled`` computes many rows in calls of a few.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Linear(Protocol):
    """``y = x W^T + b`` with what follows it fused: one rounding to the dtype of ``x``.

    Built from ``weight`` [out, in] and ``bias`` [out] or ``None``. ``x`` is [rows, in] with at least two rows,
    contiguous; every result and ``other`` are [rows, out].
    """

    out_size: int
    weight_bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x W^T + b``."""

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """``y * sigmoid(y)`` of ``y = x W^T + b``."""

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        """``sigmoid(x W^T + b)``."""

    def multiply(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """``(x W^T + b) * other``."""

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """``x W^T + b + other``."""
