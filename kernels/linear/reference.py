"""The linear layer as a formula, in single precision throughout."""

from __future__ import annotations

import torch


class ReferenceLinear:
    """See ``txdecode.kernels.linear.Linear``."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.float()
        self._bias = None if bias is None else bias.float()
        self.out_size = weight.shape[0]
        self.weight_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x).to(x.dtype)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        y = self._product(x)
        return (y * torch.sigmoid(y)).to(x.dtype)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self._product(x)).to(x.dtype)

    def multiply(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (self._product(x) * other.float()).to(x.dtype)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (self._product(x) + other.float()).to(x.dtype)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float() @ self._weight.T
        return y if self._bias is None else y + self._bias
