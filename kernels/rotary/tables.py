"""Cosines and sines by position, for query, key and value heads of one fused projection."""

from __future__ import annotations

import torch

from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.rope import attention_factor, inverse_frequencies


class RotaryTable:
    """Angles of the positions 0 .. ``context`` - 1, computed in fp64, kept in ``dtype``.

    A table and not a function: vectorised sines differ from scalar ones in the last bit, and which of the
    two a row gets depends on its place in the batch.
    """

    def __init__(self, config: DenseConfig, context: int, dtype: torch.dtype) -> None:
        frequencies = torch.tensor(inverse_frequencies(config), dtype=torch.float64)
        angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies
        factor = attention_factor(config)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        self._cos = self._with_identity(torch.cat([cos, cos], -1), 1.0, dtype)
        self._sin = self._with_identity(torch.cat([-sin, sin], -1), 0.0, dtype)
        turned = config.head_count + config.kv_head_count
        self._heads = torch.tensor([0] * turned + [1] * config.kv_head_count)
        self.nbytes = self._cos.nbytes + self._sin.nbytes

    @staticmethod
    def _with_identity(turned: torch.Tensor, identity: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.stack([turned, torch.full_like(turned, identity)], 1).to(dtype)

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [rows, query + key + value heads, head_dim] for ``positions`` [rows] int64.

        Value heads get the identity, so that one rotation serves the whole fused projection.
        """
        cos = self._cos.index_select(0, positions).index_select(1, self._heads)
        sin = self._sin.index_select(0, positions).index_select(1, self._heads)
        return cos, sin

    @staticmethod
    def planned_bytes(config: DenseConfig, context: int, dtype: torch.dtype) -> int:
        """Bytes that a table of this size takes."""
        return 4 * context * config.head_dim * dtype.itemsize
