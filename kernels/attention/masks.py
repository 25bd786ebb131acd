"""Additive causal masks for query rows that are folded."""

from __future__ import annotations

import torch


def table_size(fold: int, width: int, key_multiple: int, row_multiple: int) -> tuple[int, int]:
    """Rows of a table of masks for segments of ``width`` rows, and keys that it holds beyond the context.

    Rows are padded, so longer segments may find their mask in the table too: the keys must do for them.
    """
    rows = -(-max(width, 2) * fold // row_multiple) * row_multiple
    return rows, rows // fold + key_multiple


class CausalMasks:
    """Masks for query rows of which ``fold`` successive ones share a position.

    Row r of a segment at position p sees the keys 0 .. p + r // fold. Masks of short segments are windows
    on one table, so that a decoding round makes none.
    """

    def __init__(
        self,
        fold: int,
        rows_table: int,
        context: int,
        keys_slack: int,
        dtype: torch.dtype,
        hidden: int = 0,
    ) -> None:
        """``hidden``: so many first keys are seen by no row."""
        self._fold = fold
        self._hidden = hidden
        self._dtype = dtype
        self._context = context
        # Column c stands for the key at p + c - context.
        columns = torch.arange(context + keys_slack) - context
        self._table = self._mask(columns, torch.arange(rows_table) // fold)
        self.nbytes = self._table.nbytes

    @staticmethod
    def planned_bytes(rows_table: int, context: int, keys_slack: int, dtype: torch.dtype) -> int:
        """Bytes of the table."""
        return rows_table * (context + keys_slack) * dtype.itemsize

    def of(self, position: int, rows: int, keys: int) -> torch.Tensor:
        """The mask [1, 1, rows, keys] of a segment at ``position``: 0 where a key is seen, else -inf."""
        if rows > self._table.shape[0]:
            last = position + torch.arange(rows) // self._fold
            return self._hide(self._mask(torch.arange(keys), last)[None, None])
        start = self._context - position
        assert start >= 0, f"position {position} of {self._context}"
        assert start + keys <= self._table.shape[1], (position, keys, self._table.shape)
        return self._hide(self._table[None, None, :rows, start : start + keys])

    def _hide(self, mask: torch.Tensor) -> torch.Tensor:
        if not self._hidden:
            return mask
        mask = mask.clone()
        mask[..., : self._hidden] = float("-inf")
        return mask

    def _mask(self, keys: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(last.shape[0], keys.shape[0], dtype=self._dtype)
        return mask.masked_fill_(keys > last[:, None], float("-inf"))
