"""The linear layer through oneDNN, with weights packed once.

A packed matrix is read at memory speed at any small row count; the plain bf16 product of torch is two to
eight times slower. The operators are those that torch's own compiler emits for frozen weights.
"""

from __future__ import annotations

import torch

_pack = torch.ops.mkldnn._reorder_linear_weight.default
_unary = torch.ops.mkldnn._linear_pointwise.default
_binary = torch.ops.mkldnn._linear_pointwise.binary

# Row count that the packed layout is chosen for; the layout is the same for every count (2 to 1,024).
_ROWS_EXPECTED = 8


class PrepackedLinear:
    """See ``txdecode.kernels.linear.Linear``. Bits are the same for 2 to ``Numerics.row_tile`` rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight: torch.Tensor = _pack(weight.contiguous(), _ROWS_EXPECTED)
        self._bias = None if bias is None else bias.contiguous()
        self.out_size = weight.shape[0]
        self.weight_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _unary(x, self._weight, self._bias, "none", [], "")  # type: ignore[no-any-return]

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return _unary(x, self._weight, self._bias, "swish", [], "")  # type: ignore[no-any-return]

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return _unary(x, self._weight, self._bias, "sigmoid", [], "")  # type: ignore[no-any-return]

    def multiply(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return _binary(x, other, self._weight, self._bias, "mul")  # type: ignore[no-any-return]

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return _binary(x, other, self._weight, self._bias, "add")  # type: ignore[no-any-return]
