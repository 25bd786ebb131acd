"""Rows times panels: double precision within rounding, and one order of summation whatever is computed together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.kernels.native.panels import pack, panel_count, unpack, words
from txdecode.kernels.native.product import block_rows, panel_product


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def multiplied(x: torch.Tensor, panels: torch.Tensor, onto: torch.Tensor | None = None) -> torch.Tensor:
    """All rows at once, [rows, 8 * panels]."""
    out = torch.full((x.shape[0], panels.shape[0] * 8), 9.0) if onto is None else onto.clone()
    rows: Any = torch.nn.functional.pad(x, (0, 2 * panels.shape[1] - x.shape[1])).contiguous().numpy()
    matrix, made = words(panels).numpy(), out.numpy()
    panel_product(
        rows.ctypes.data,
        rows.strides[0],
        rows.shape[0],
        matrix.ctypes.data,
        matrix.strides[0],
        matrix.shape[1],
        matrix.shape[0],
        made.ctypes.data,
        made.strides[0],
        0 if onto is None else 1,
    )
    return out


@settings(deadline=None)  # The first example compiles.
@given(outputs=st.integers(1, 70), inputs=st.integers(1, 40))
def test_packing_keeps_every_weight_and_pads_with_zeros(outputs: int, inputs: int) -> None:
    weight = drawn(outputs, inputs)
    panels = pack(weight)
    assert panels.shape == (panel_count(outputs), -(-inputs // 2), 8, 2)
    assert torch.equal(unpack(panels, outputs, inputs), weight.bfloat16())
    assert panels.count_nonzero() == weight.bfloat16().count_nonzero()


@pytest.mark.parametrize(("outputs", "inputs"), [(8, 2), (48, 64), (100, 33), (7, 578)])
def test_agrees_with_double_precision(outputs: int, inputs: int) -> None:
    weight, x = drawn(outputs, inputs), drawn(40, inputs)
    expected = x.double() @ weight.bfloat16().double().T
    found = multiplied(x, pack(weight))
    torch.testing.assert_close(found[:, :outputs].double(), expected, rtol=1e-5, atol=2e-6 * inputs)
    assert torch.equal(found[:, outputs:], torch.zeros(40, found.shape[1] - outputs))
    twice = multiplied(x, pack(weight), found)
    torch.testing.assert_close(twice[:, :outputs].double(), 2 * expected, rtol=1e-5, atol=4e-6 * inputs)


@settings(deadline=None)  # The first example compiles.
@given(rows=st.integers(1, 40), first=st.integers(0, 39), panel=st.integers(0, 12), count=st.integers(1, 13))
def test_bits_depend_neither_on_rows_beside_nor_on_panels_beside(
    rows: int, first: int, panel: int, count: int
) -> None:
    x, panels = drawn(40, 66), pack(drawn(104, 66))
    whole = multiplied(x, panels)
    part = multiplied(x[first : first + rows], panels[panel : panel + count])
    assert torch.equal(part, whole[first : first + rows, panel * 8 : (panel + count) * 8])


def test_the_order_of_a_sum_is_the_one_that_is_written_down() -> None:
    """Pairs in their order, even before odd, each step fused: other processors must find the same bits."""
    x, weight = drawn(3, 32), drawn(8, 32)
    expected = np.zeros((3, 8), np.float32)
    for k in range(32):
        # fp32 times bf16 fits double precision exactly, and so does its sum with an fp32 but for rare ties.
        term = x[:, k : k + 1].double().numpy() * weight.bfloat16().double().numpy()[None, :, k]
        expected = (expected.astype(np.float64) + term).astype(np.float32)
    assert np.array_equal(multiplied(x, pack(weight)).numpy(), expected)


@settings(deadline=None)  # The first example compiles.
@given(rows=st.integers(1, 400))
def test_blocks_cover_the_rows_and_fit_the_registers(rows: int) -> None:
    left, blocks = rows, []
    while left:
        blocks.append(block_rows(left))
        left -= blocks[-1]
    assert sum(blocks) == rows
    assert all(1 <= block <= 6 for block in blocks)
    assert rows <= 2 or min(blocks) >= 3
