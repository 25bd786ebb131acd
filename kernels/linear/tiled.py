"""A linear layer over many rows, in calls of a few."""

from __future__ import annotations

from collections.abc import Callable

import torch

from txdecode.kernels.linear import Linear


class TiledLinear:
    """``linear`` in calls of at most ``row_tile`` rows: the same bits for any number of rows from two on."""

    def __init__(self, linear: Linear, row_tile: int) -> None:
        assert row_tile >= 2, row_tile
        self._linear = linear
        self._tile = row_tile
        self.out_size = linear.out_size
        self.weight_bytes = linear.weight_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._each(x, lambda rows: self._linear(x[rows]))

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return self._each(x, lambda rows: self._linear.silu(x[rows]))

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return self._each(x, lambda rows: self._linear.sigmoid(x[rows]))

    def multiply(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._each(x, lambda rows: self._linear.multiply(x[rows], other[rows]))

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._each(x, lambda rows: self._linear.add(x[rows], other[rows]))

    def _each(self, x: torch.Tensor, call: Callable[[slice], torch.Tensor]) -> torch.Tensor:
        y = x.new_empty(x.shape[0], self.out_size)
        for start, stop in row_tiles(x.shape[0], self._tile):
            rows = slice(start, stop)
            y[rows] = call(rows)
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
