"""Cosines and sines by position, for query, key and value heads of one fused projection."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class RotaryTable:
    """Angles of the positions 0 .. ``context`` - 1, computed in fp64, kept in ``dtype``.

    A table and not a function: vectorised sines differ from scalar ones in the last bit, and which of the
    two a row gets depends on its place in the batch.
    """

    def __init__(
        self,
        frequencies: Sequence[float],
        factor: float,
        *,
        turned: int,
        kept: int,
        context: int,
        dtype: torch.dtype,
    ) -> None:
        """``frequencies`` are head_dim / 2 angular frequencies in radians a token, zero for a pair that does not
        turn; ``factor`` multiplies cosines and sines. The first ``turned`` heads turn, the ``kept`` after them
        do not."""
        rates = torch.tensor(frequencies, dtype=torch.float64)
        angles = torch.arange(context, dtype=torch.float64)[:, None] * rates
        cos, sin = angles.cos() * factor, angles.sin() * factor
        self._cos = self._with_identity(torch.cat([cos, cos], -1), 1.0, dtype)
        self._sin = self._with_identity(torch.cat([-sin, sin], -1), 0.0, dtype)
        self._heads = torch.tensor([0] * turned + [1] * kept)
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
    def planned_bytes(head_dim: int, context: int, dtype: torch.dtype) -> int:
        """Bytes that a table of this size takes."""
        return 4 * context * head_dim * dtype.itemsize
