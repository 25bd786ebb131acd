"""Attention over pages against the formula in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.kernels.native.attention import PAGE_ROWS, attend, rounded, store_key, store_value

PAGES, HEADS, FOLD = 9, 2, 3


@settings(deadline=None)  # The first example compiles.
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_rounds_as_torch_does(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    bits = [rounded(word) for word in x.numpy().view(np.uint32)]
    assert bits == x.bfloat16().view(torch.uint16).tolist()


def test_what_is_no_number_stays_none() -> None:
    for word in (0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000):
        bits = torch.tensor([rounded(np.uint32(word))], dtype=torch.uint16).view(torch.bfloat16)
        assert bits.isnan().all()
    assert rounded(np.uint32(0x7F800000)) == 0x7F80


class Cache:
    """Keys and values of one layer, and what was put there."""

    def __init__(self, dim: int, tokens: int, pages: tuple[int, ...]) -> None:
        draw = torch.Generator().manual_seed(dim + tokens)
        self.keys = np.zeros((PAGES, HEADS, PAGE_ROWS * dim), np.uint16)
        self.values = np.zeros_like(self.keys)
        self.pages = np.array(pages, np.int64)
        self.put = torch.randn(2, HEADS, tokens, dim, generator=draw)
        for head in range(HEADS):
            for token in range(tokens):
                page, row = pages[token // PAGE_ROWS], token % PAGE_ROWS
                key, value = (part.numpy().view(np.uint32) for part in self.put[:, head, token])
                store_key(self.keys[page, head], row, key)
                store_value(self.values[page, head], row, value)

    def attend(self, queries: torch.Tensor, position: int, rows: int, first: int = 0) -> torch.Tensor:
        """[rows, heads * dim] of ``rows`` rows from row ``first`` of ``queries`` on, the first at ``position``."""
        dim = queries.shape[-1]
        scores, made = np.full((24, 1024), np.nan, np.float32), np.empty((24, dim), np.float32)
        out = np.empty((rows, HEADS * FOLD * dim), np.float32)
        for head in range(HEADS):
            laid: Any = queries[:, head * FOLD : (head + 1) * FOLD].reshape(-1, dim).contiguous().numpy()
            attend(
                laid,
                first * FOLD,
                rows,
                FOLD,
                position,
                self.keys,
                self.values,
                self.pages,
                head,
                scores,
                made,
                out,
            )
        return torch.from_numpy(out)


def formula(cache: Cache, queries: torch.Tensor, position: int, rows: int) -> torch.Tensor:
    keys, values = cache.put.bfloat16().double()
    out = []
    for row in range(rows):
        end = position + row + 1
        for head in range(HEADS * FOLD):
            k, v = keys[head // FOLD, :end], values[head // FOLD, :end]
            out.append(torch.softmax(k @ queries[row, head].double(), 0) @ v)
    return torch.cat(out).view(rows, -1)


@pytest.mark.parametrize("dim", [8, 24, 64])
@pytest.mark.parametrize(("position", "rows"), [(0, 1), (0, 8), (1, 1), (60, 8), (63, 2), (64, 1), (250, 7)])
def test_agrees_with_the_formula(dim: int, position: int, rows: int) -> None:
    cache = Cache(dim, position + rows, (4, 0, 7, 2, 8))
    queries = torch.randn(rows, HEADS * FOLD, dim, generator=torch.Generator().manual_seed(3)) * dim**-0.5
    found = cache.attend(queries, position, rows)
    torch.testing.assert_close(found.double(), formula(cache, queries, position, rows), rtol=2e-6, atol=2e-6)


def test_bits_depend_neither_on_rows_beside_nor_on_pages_nor_on_what_lies_behind() -> None:
    cache = Cache(16, 140, (4, 0, 7))
    queries = torch.randn(8, HEADS * FOLD, 16, generator=torch.Generator().manual_seed(3))
    together = cache.attend(queries, 125, 8)
    for row in range(8):
        assert torch.equal(cache.attend(queries, 125 + row, 1, row)[0], together[row])
    elsewhere = Cache(16, 140, (1, 8, 3))
    assert torch.equal(elsewhere.attend(queries, 125, 8), together)
    for part in (elsewhere.keys, elsewhere.values):
        # Rows that are not visible: later in the page, and pages of others.
        part[[0, 2, 4, 5, 6, 7]] = 0x7F00
    assert torch.equal(elsewhere.attend(queries, 125, 8), together)
