"""Keys and values in pages that the runtime chooses.

Whatever the attention kernel reads beyond a sequence's own rows must be zero, not merely masked: a masked
key still enters the product with the values, where zero times infinity is NaN. So a page is cleared behind
the rows that are written to it, and keys are padded with a page of zeros.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs
import torch

PAGE_ROWS = 64
# Most (first page, page count) ranges whose views are kept; making them costs 12 µs a layer.
_VIEWS_MAX = 64

KeysValues = tuple[torch.Tensor, torch.Tensor]


@attrs.frozen
class Segment:
    """Rows of one sequence in a launch: ``tokens`` at positions ``position`` ..; ``pages`` is its page
    table, which covers them. All rows before ``position`` are in the cache."""

    tokens: tuple[int, ...]
    position: int
    pages: tuple[int, ...]

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.position + len(self.tokens)


@attrs.frozen(eq=False)
class Window:
    """Where attention finds ``keys`` rows of keys and values: ``views`` by layer where they lie in a row,
    else ``index``, the pages to gather [pages] int64, zero pages at the end."""

    keys: int
    views: Sequence[KeysValues] | None
    index: torch.Tensor | None


class PagedCache:
    """Keys and values of all layers, ``page_count`` pages of 64 rows.

    A row of a layer is [2 * kv_heads, head_dim], keys first. Two pages are its own: one of zeros and one
    that takes the rows nobody wants. Memory is not initialised.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        page_count: int,
        dtype: torch.dtype,
        key_multiple: int,
    ) -> None:
        assert key_multiple % PAGE_ROWS == 0, key_multiple
        self._kv_heads = kv_heads
        self._page_count = page_count
        self._zero_page, trash_page = page_count, page_count + 1
        self._pages_multiple = key_multiple // PAGE_ROWS
        self._pool = torch.empty(layers, (page_count + 2) * PAGE_ROWS, 2 * kv_heads, head_dim, dtype=dtype)
        self._pool[:, self._zero_page * PAGE_ROWS :].zero_()
        self.layers = self._pool.unbind(0)
        self._paged = [layer.view(-1, PAGE_ROWS, 2 * kv_heads, head_dim) for layer in self.layers]
        # Rows of each page from which on it is zero; a page never touched is nowhere.
        self._written = [PAGE_ROWS] * page_count
        self._views: OrderedDict[tuple[int, int], Sequence[KeysValues]] = OrderedDict()
        self._scratch: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.trash_slot = trash_page * PAGE_ROWS

    @staticmethod
    def planned_bytes(layers: int, kv_heads: int, head_dim: int, page_count: int, dtype: torch.dtype) -> int:
        """Bytes of a cache of this size."""
        page_bytes = layers * PAGE_ROWS * 2 * kv_heads * head_dim * dtype.itemsize
        return (page_count + 2) * page_bytes

    def place(self, segment: Segment) -> list[int]:
        """Physical rows that the segment's rows go to; what lies behind them in the last page is cleared."""
        assert segment.tokens, "empty segment"
        pages = segment.pages[: -(-segment.end // PAGE_ROWS)]
        assert len(pages) * PAGE_ROWS >= segment.end, f"{len(pages)} pages for {segment.end} rows"
        assert all(0 <= page < self._page_count for page in pages), pages
        first = segment.position // PAGE_ROWS
        for page in pages[first:-1]:
            self._written[page] = PAGE_ROWS
        self._clear_behind(pages[-1], segment.end - (len(pages) - 1) * PAGE_ROWS)
        return [
            pages[position // PAGE_ROWS] * PAGE_ROWS + position % PAGE_ROWS
            for position in range(segment.position, segment.end)
        ]

    def _clear_behind(self, page: int, row: int) -> None:
        if self._written[page] > row:
            base = page * PAGE_ROWS
            self._pool[:, base + row : base + self._written[page]].zero_()
        self._written[page] = row

    def window(self, segment: Segment) -> Window:
        """Where to find all keys that the segment's rows may see, after ``place``."""
        count = -(-segment.end // PAGE_ROWS)
        padding = -count % self._pages_multiple
        keys = (count + padding) * PAGE_ROWS
        pages = segment.pages[:count]
        if padding == 0 and pages == tuple(range(pages[0], pages[0] + count)):
            return Window(keys, self._range_views(pages[0], count), None)
        return Window(keys, None, torch.tensor(pages + (self._zero_page,) * padding))

    def _range_views(self, first: int, count: int) -> Sequence[KeysValues]:
        views = self._views.get((first, count))
        if views is not None:
            self._views.move_to_end((first, count))
            return views
        rows = slice(first * PAGE_ROWS, (first + count) * PAGE_ROWS)
        views = [self._split(layer[rows]) for layer in self.layers]
        self._views[(first, count)] = views
        if len(self._views) > _VIEWS_MAX:
            self._views.popitem(last=False)
        return views

    def gather(self, layer: int, index: torch.Tensor) -> KeysValues:
        """Copy pages into a row. The result is overwritten by the next call."""
        scratch, keys, values = self._scratch_for(index.shape[0])
        torch.index_select(self._paged[layer], 0, index, out=scratch)
        return keys, values

    def _scratch_for(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = self._scratch.get(count)
        if found is None:
            largest = max(self._scratch, default=0)
            if count > largest:
                # Shapes of one size share the memory of the largest; it grows, so old views go.
                self._scratch.clear()
                whole = self._pool.new_empty(count, *self._paged[0].shape[1:])
            else:
                whole = self._scratch[largest][0][:count]
            found = (whole, *self._split(whole.flatten(0, 1)))
            self._scratch[count] = found
        return found

    def _split(self, rows: torch.Tensor) -> KeysValues:
        """[rows, 2 * kv_heads, head_dim] as keys and values [1, kv_heads, rows, head_dim]."""
        keys, values = rows[:, : self._kv_heads], rows[:, self._kv_heads :]
        return keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)

    def page_rows(self, layer: int, page: int, rows: int) -> torch.Tensor:
        """The first ``rows`` rows of a page, [rows, 2 * kv_heads, head_dim]."""
        assert 0 <= page < self._page_count, page
        return self.layers[layer][page * PAGE_ROWS : page * PAGE_ROWS + rows]
