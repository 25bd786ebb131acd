"""Finding the few large entries of long rows by the maxima of blocks: one pass with vector instructions."""

from __future__ import annotations

import torch

BLOCK = 256
_LOWEST = torch.finfo(torch.float32).min


def block_maxima(values: torch.Tensor) -> torch.Tensor:
    """Largest entry of each block of 256 of ``values`` [rows, n]: [rows, ceil(n / 256)]; NaN where one is NaN."""
    rows, size = values.shape
    whole = size // BLOCK
    maxima = values.new_empty(rows, -(-size // BLOCK))
    if whole:
        torch.amax(values[:, : whole * BLOCK].view(rows, whole, BLOCK), -1, out=maxima[:, :whole])
    if whole * BLOCK < size:
        torch.amax(values[:, whole * BLOCK :], -1, out=maxima[:, whole])
    return maxima


def reaching(
    values: torch.Tensor, bounds: torch.Tensor, maxima: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, columns and values of the entries of ``values`` [rows, n] that are at least ``bounds`` [rows], in the
    order of rows, then columns. ``maxima`` are the block maxima of ``values``."""
    size = values.shape[1]
    row, block = (maxima >= bounds.unsqueeze(1)).nonzero().unbind(1)
    columns = (block * BLOCK).unsqueeze(1) + torch.arange(BLOCK)
    if size % BLOCK:
        inside = columns < size
        found = values[row.unsqueeze(1), columns.clamp_(max=size - 1)]
        hits = (found >= bounds[row].unsqueeze(1)).logical_and_(inside)
    else:
        found = values.reshape(-1, BLOCK).index_select(0, row * (size // BLOCK) + block)
        hits = found >= bounds[row].unsqueeze(1)
    first, second = hits.nonzero().unbind(1)
    return row[first], columns[first, second], found[first, second]


def padded(
    row: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns and values of a list ordered by ``row``, as [rows, widest]; padding is column 0 and value -inf."""
    counts = torch.bincount(row, minlength=rows)
    place = torch.arange(row.shape[0]) - (counts.cumsum(0) - counts)[row]
    widest = int(counts.max())
    wide_columns = torch.zeros(rows, widest, dtype=torch.int64)
    wide_values = torch.full((rows, widest), -torch.inf, dtype=values.dtype)
    wide_columns[row, place] = columns
    wide_values[row, place] = values
    return wide_columns, wide_values


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns and values of the ``count`` largest entries of each row, best first, the lowest column first on ties.

    ``values`` is [rows, n], fp32, without NaN; the results [rows, m] with m at most ``count``. An entry of -inf is
    not among them: a row with fewer others ends with padding, column 0 and value -inf.
    """
    count = min(count, values.shape[1])
    maxima = block_maxima(values)
    # The count-th largest block maximum is no larger than the count-th largest entry. Of torch.topk only the
    # value is used, because its choice among equals is not fixed.
    pool = maxima if 2 * count <= maxima.shape[1] else values
    bounds = pool.topk(count).values[:, -1].clamp(min=_LOWEST)
    columns, found = padded(*reaching(values, bounds, maxima), values.shape[0])
    order = found.sort(dim=-1, descending=True, stable=True)
    return columns.gather(1, order.indices[:, :count]), order.values[:, :count]
