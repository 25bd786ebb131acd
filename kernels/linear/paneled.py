"""The linear layer through our own panels: bf16 weights read once, sums in fp32, the same bits on every processor.

oneDNN has no bf16 product for processors without AVX-512, and a call of it costs more than a small matrix.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from txdecode.kernels.native.attention import rounded
from txdecode.kernels.native.compiled import compiled
from txdecode.kernels.native.lanes import LANES, sigmoid
from txdecode.kernels.native.panels import pack, words
from txdecode.kernels.native.product import PANEL_TILE, panel_product
from txdecode.kernels.native.team import Team, meet, take

# Below this a second thread costs more than it takes over.
_SHARED_BYTES = 1 << 20
_PLAIN, _SILU, _SIGMOID, _MULTIPLY, _ADD = range(5)
_COLUMNS = PANEL_TILE * LANES
_SHIFT = np.uint32(16)


class PanelLinear:
    """See ``txdecode.kernels.linear.Linear``; ``x`` is bf16, any number of rows from one on."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_size, self._in_size = weight.shape
        self._panels = words(pack(weight)).numpy()
        self._bias = np.zeros(self._panels.shape[0] * LANES, np.float32)
        if bias is not None:
            self._bias[: self.out_size] = bias.float().numpy()
        self.weight_bytes = weight.shape.numel() * 2
        shared = self._panels.nbytes >= _SHARED_BYTES
        self._team = _team(torch.get_num_threads() if shared else 1)
        self._nothing = np.zeros((1, 1), np.uint16)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x, _PLAIN, None)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x, _SILU, None)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x, _SIGMOID, None)

    def multiply(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._run(x, _MULTIPLY, other)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._run(x, _ADD, other)

    def _run(self, x: torch.Tensor, kind: int, other: torch.Tensor | None) -> torch.Tensor:
        assert x.dtype == torch.bfloat16, x.dtype
        assert x.shape[1] == self._in_size, (x.shape, self._in_size)
        if other is not None:
            assert other.dtype == x.dtype, other.dtype
            assert other.shape == (x.shape[0], self.out_size), (other.shape, self.out_size)
        made = torch.empty(x.shape[0], self.out_size, dtype=torch.bfloat16)
        self._team.run(
            _linear,
            words(x.contiguous()).numpy(),
            self._panels,
            self._bias,
            self._nothing if other is None else words(other.contiguous()).numpy(),
            words(made).numpy(),
            kind,
        )
        return made


@functools.cache
def _team(threads: int) -> Team:
    """Layers run one after the other, so those of as many threads share them."""
    team = Team(threads, 1)
    if threads > 1:
        # Compiled before two threads run it.
        PanelLinear(torch.zeros(1, 2), None)(torch.zeros(1, 2, dtype=torch.bfloat16))
    return team


@compiled
def _widened(x: Any, out: Any) -> None:
    """bf16 words as fp32 words."""
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[row, i] = np.uint32(x[row, i]) << _SHIFT


@compiled
def _linear(
    _rank: Any,
    threads: Any,
    counters: Any,
    meetings: Any,
    x: Any,
    panels: Any,
    bias: Any,
    other: Any,
    out: Any,
    kind: Any,
) -> None:
    rows, pairs = x.shape[0], panels.shape[1]
    # Every thread widens all rows: there are few of them, and a meeting costs as much.
    wide = np.zeros((rows, 2 * pairs), np.float32)
    _widened(x, wide.view(np.uint32))
    tile = np.empty((rows, _COLUMNS), np.float32)
    shares = np.empty((rows, _COLUMNS), np.float32)
    term = np.empty(1, np.uint32)
    while True:
        first = take(counters, 0) * PANEL_TILE
        if first >= panels.shape[0]:
            break
        count = min(PANEL_TILE, panels.shape[0] - first)
        panel_bytes = pairs * LANES * 4
        panel_product(
            wide.ctypes.data,
            wide.shape[1] * 4,
            rows,
            panels.ctypes.data + first * panel_bytes,
            panel_bytes,
            pairs,
            count,
            tile.ctypes.data,
            _COLUMNS * 4,
            0,
        )
        column = first * LANES
        width = min(count * LANES, out.shape[1] - column)
        for row in range(rows):
            y = tile[row]
            for c in range(count * LANES):
                y[c] += bias[column + c]
            if kind in (_SILU, _SIGMOID):
                sigmoid(y.ctypes.data, shares[row].ctypes.data, count)
                for c in range(width):
                    y[c] = y[c] * shares[row, c] if kind == _SILU else shares[row, c]
            elif kind in (_MULTIPLY, _ADD):
                for c in range(width):
                    term[0] = np.uint32(other[row, column + c]) << _SHIFT
                    value = term.view(np.float32)[0]
                    y[c] = y[c] * value if kind == _MULTIPLY else y[c] + value
            bits = y.view(np.uint32)
            for c in range(width):
                out[row, column + c] = rounded(bits[c])
    meet(counters, threads, meetings)
