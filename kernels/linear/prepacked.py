"""The linear layer through oneDNN, with weights packed once.

A packed matrix is read at memory speed at any small row count; the plain bf16 product of torch is two to
eight times slower. The operators are those that torch's own compiler emits for frozen weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_pack = torch.ops.mkldnn._reorder_linear_weight.default
_unary = torch.ops.mkldnn._linear_pointwise.default
_binary = torch.ops.mkldnn._linear_pointwise.binary

# Row count that the packed layout is chosen for; the layout is the same for every count (2 to 1,024).
_ROWS_EXPECTED = 8


class PrepackedLinear:
    """See ``txdecode.kernels.linear.Linear``. More than ``row_tile`` rows are computed in several calls."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, row_tile: int) -> None:
        assert row_tile >= 2, row_tile
        self._weight: torch.Tensor = _pack(weight.contiguous(), _ROWS_EXPECTED)
        self._bias = None if bias is None else bias.contiguous()
        self._tile = row_tile
        self._out = weight.shape[0]
        self.weight_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self._tile:
            y: torch.Tensor = _unary(x, self._weight, self._bias, "none", [], "")
            return y
        return self._tiled(x, lambda part, _: self(part))

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self._tile:
            y: torch.Tensor = _unary(x, self._weight, self._bias, "swish", [], "")
            return y
        return self._tiled(x, lambda part, _: self.silu(part))

    def multiply(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self._tile:
            y: torch.Tensor = _binary(x, other, self._weight, self._bias, "mul")
            return y
        return self._tiled(x, lambda part, rows: self.multiply(part, other[rows]))

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self._tile:
            y: torch.Tensor = _binary(x, other, self._weight, self._bias, "add")
            return y
        return self._tiled(x, lambda part, rows: self.add(part, other[rows]))

    def _tiled(self, x: torch.Tensor, call: Callable[[torch.Tensor, slice], torch.Tensor]) -> torch.Tensor:
        y = x.new_empty(x.shape[0], self._out)
        for start, stop in row_tiles(x.shape[0], self._tile):
            rows = slice(start, stop)
            y[rows] = call(x[rows], rows)
        return y


def row_tiles(rows: int, tile: int) -> list[tuple[int, int]]:
    """Half-open tiles that cover ``rows``, none longer than ``tile``, none of one row.

    A last row alone is computed together with the one before it, once more: a single row takes another
    kernel. Raises ``AssertionError`` below two rows.
    """
    assert rows >= 2, f"{rows} rows; a single row must be padded to two"
    tiles = [(start, min(start + tile, rows)) for start in range(0, rows, tile)]
    if rows - tiles[-1][0] == 1:
        tiles[-1] = (rows - 2, rows)
    return tiles
