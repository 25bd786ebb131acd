"""The packed linear layer: the reference within rounding, and the same bits in any company."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txdecode.kernels.capability import DTYPES, DtypeName, numerics
from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.choice import linear_for
from txdecode.kernels.linear.reference import ReferenceLinear
from txdecode.kernels.linear.tiled import TiledLinear, row_tiles

CALLS = ("plain", "silu", "sigmoid", "multiply", "add")
SHAPES = ((64, 48), (33, 40), (160, 64), (64, 160), (192, 576))
ROWS = 96


def call(linear: Linear, name: str, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if name == "plain":
        return linear(x)
    if name == "silu":
        return linear.silu(x)
    if name == "sigmoid":
        return linear.sigmoid(x)
    return linear.multiply(x, other) if name == "multiply" else linear.add(x, other)


def operands(
    shape: tuple[int, int], dtype: DtypeName, biased: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(shape[0] * 1000 + shape[1])

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=random).to(DTYPES[dtype])

    weight = draw(*shape) / math.sqrt(shape[1])
    return weight, draw(shape[0]) if biased else None, draw(ROWS, shape[1]), draw(ROWS, shape[0])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_reference(shape: tuple[int, int], dtype: DtypeName, name: str) -> None:
    """fp32 to 2e-5, bf16 to one unit in the last place (2^-7 relative) beyond that."""
    for biased in (False, True):
        weight, bias, x, other = operands(shape, dtype, biased)
        expected = call(ReferenceLinear(weight, bias), name, x, other)
        found = call(TiledLinear(linear_for(weight.dtype)(weight, bias), 32), name, x, other)
        assert found.dtype == x.dtype
        relative = 2**-7 if dtype == "bf16" else 2e-5
        torch.testing.assert_close(found.float(), expected.float(), rtol=relative, atol=2e-5)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_the_rows_beside(shape: tuple[int, int], dtype: DtypeName, name: str) -> None:
    weight, bias, x, other = operands(shape, dtype, True)
    linear = TiledLinear(linear_for(weight.dtype)(weight, bias), numerics(dtype).row_tile)
    pairs = torch.cat([call(linear, name, x[r : r + 2], other[r : r + 2]) for r in range(0, ROWS, 2)])
    for start, rows in ((0, 3), (5, 8), (17, 16), (1, 31), (0, 32), (3, 33), (2, 64), (30, 65), (0, ROWS)):
        part = slice(start, start + rows)
        assert torch.equal(call(linear, name, x[part], other[part]), pairs[part]), (start, rows)


@pytest.mark.parametrize("name", CALLS)
def test_many_rows_are_computed_in_tiles(name: str) -> None:
    weight, bias, x, other = operands((64, 48), "fp32", True)
    counts: list[int] = []

    class Counting(ReferenceLinear):
        def _product(self, x: torch.Tensor) -> torch.Tensor:
            counts.append(x.shape[0])
            return super()._product(x)

    linear = Counting(weight, bias)
    found = call(TiledLinear(linear, 16), name, x[:33], other[:33])
    assert counts == [16, 16, 2]
    assert found.shape == (33, 64)
    torch.testing.assert_close(found, call(linear, name, x[:33], other[:33]))


@given(rows=st.integers(2, 600), tile=st.integers(2, 300))
def test_tiles_cover_all_rows_and_none_is_single(rows: int, tile: int) -> None:
    tiles = row_tiles(rows, tile)
    assert tiles[0][0] == 0
    assert tiles[-1][1] == rows
    assert all(2 <= stop - start <= tile for start, stop in tiles)
    assert all(later[0] <= earlier[1] for earlier, later in itertools.pairwise(tiles))


def test_a_single_row_is_refused() -> None:
    with pytest.raises(AssertionError, match="padded to two"):
        row_tiles(1, 32)


def test_a_bf16_layer_takes_what_its_dtype_is_and_no_other_shape() -> None:
    weight, _, x, other = operands((64, 48), "bf16", False)
    linear = linear_for(torch.bfloat16)(weight, None)
    with pytest.raises(AssertionError, match="float32"):
        linear(x.float())
    with pytest.raises(AssertionError, match="48"):
        linear(x[:, :40])
    with pytest.raises(AssertionError, match="float32"):
        linear.add(x, other.float())
    with pytest.raises(AssertionError, match="64"):
        linear.multiply(x, other[:-1])
