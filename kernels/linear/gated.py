"""The gated feed-forward block, SwiGLU (arXiv 2002.05202): of a dense layer, and of each expert of a mixture."""

from __future__ import annotations

import attrs
import torch

from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.tiled import TiledLinear


@attrs.frozen(eq=False)
class GatedFeed:
    """``gate`` and ``up`` read unit rows [rows, hidden + 1], at least two; ``down`` gives [rows, hidden + 1], whose
    last column is zero."""

    gate: Linear
    up: Linear
    down: Linear

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices."""
        return self.gate.weight_bytes + self.up.weight_bytes + self.down.weight_bytes

    def __call__(self, normal: torch.Tensor) -> torch.Tensor:
        """``down(silu(gate) * up)``."""
        return self.down(self.up.multiply(normal, self.gate.silu(normal)))

    def add(self, normal: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The same added to the residual ``x`` [rows, hidden + 1]."""
        return self.down.add(self.up.multiply(normal, self.gate.silu(normal)), x)

    def tiled(self, row_tile: int) -> GatedFeed:
        """The same for more rows than one call of a matrix takes."""
        return GatedFeed(*(TiledLinear(matrix, row_tile) for matrix in (self.gate, self.up, self.down)))
