"""Norm, rotation and argmax against their references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.rope import inverse_frequencies
from txdecode.kernels.norm import fused as fast_norm
from txdecode.kernels.norm import reference as plain_norm
from txdecode.kernels.rotary import fused as fast_rotary
from txdecode.kernels.rotary import reference as plain_rotary
from txdecode.kernels.rotary.tables import RotaryTable
from txdecode.kernels.sampling import reference as plain_sampling
from txdecode.kernels.sampling.argmax import lowest_argmax
from txdecode.kernels.sampling.reference import NOTHING

BOUNDS = {torch.float32: (2e-6, 2e-6), torch.bfloat16: (2**-7, 1e-3)}


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Relative and absolute bounds: some units of fp32, one unit in the last place of bf16."""
    relative, absolute = BOUNDS[found.dtype]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.float(), expected.float(), rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_unit_rows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, ones = (3 * torch.randn(7, 577)).to(dtype), torch.ones(7, 1, dtype=dtype)
    close(fast_norm.unit_rows(x, ones), plain_norm.unit_rows(x, ones))
    for row in range(7):
        assert torch.equal(
            fast_norm.unit_rows(x[row : row + 1], ones[:1])[0], fast_norm.unit_rows(x, ones)[row]
        )


@pytest.mark.parametrize("magnitude", [1e-4, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_a_unit_row_and_a_folded_matrix_are_rms_norm_and_its_matrix(magnitude: float, eps: float) -> None:
    """Also where eps outweighs the row."""
    torch.manual_seed(1)
    x, scale, weight = magnitude * torch.randn(7, 96), 1 + torch.randn(96), torch.randn(40, 96)
    rows = fast_norm.extended(x, eps)
    assert rows.shape == (7, 97)
    found = fast_norm.unit_rows(rows, torch.ones(7, 1)) @ fast_norm.folded(weight, scale).T
    expected = plain_norm.rms_norm(x, scale, eps) @ weight.double().T
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_folded_matrix_is_rounded_once() -> None:
    torch.manual_seed(1)
    weight, scale = torch.randn(40, 96).bfloat16(), (1 + torch.randn(96)).bfloat16()
    exact = weight.double() * scale.double() * 96**0.5
    found = fast_norm.folded(weight, scale)
    assert found.dtype == torch.bfloat16
    assert not found[:, -1].any()
    torch.testing.assert_close(found[:, :-1].double(), exact, rtol=2**-8 * 1.001, atol=0)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_rms_norm_over_heads(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(5, 9, 64).to(dtype), (1 + torch.randn(9, 64)).to(dtype)
    close(fast_norm.rms_norm_heads(x, weight, 1e-6), plain_norm.rms_norm_heads(x, weight, 1e-6))


def rotary_table(config: DenseConfig, dtype: torch.dtype) -> RotaryTable:
    heads = {"turned": config.head_count + config.kv_head_count, "kept": config.kv_head_count}
    return RotaryTable(inverse_frequencies(config), 1.0, **heads, context=512, dtype=dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_rotation(dtype: torch.dtype, make_config) -> None:  # type: ignore[no-untyped-def]
    config = make_config()
    table = rotary_table(config, dtype)
    torch.manual_seed(3)
    x = torch.randn(6, config.head_count + 2 * config.kv_head_count, config.head_dim).to(dtype)
    kept = x.clone()
    cos, sin = table.rows(torch.tensor([0, 1, 2, 100, 510, 511]))
    turned, expected = torch.empty_like(x), torch.empty_like(x)
    fast_rotary.rotate(x, cos, sin, turned)
    assert torch.equal(x, kept)
    # The fast form rounds one of the two products to the dtype before it adds the other.
    plain_rotary.rotate(x, cos, sin, expected)
    unit = 2**-8 if dtype == torch.bfloat16 else 2**-23
    torch.testing.assert_close(turned.double(), expected.double(), rtol=unit, atol=4 * unit)
    # Position 0 turns nothing, and no position turns the values.
    assert torch.equal(turned[0], x[0])
    assert torch.equal(turned[:, -config.kv_head_count :], x[:, -config.kv_head_count :])


def test_rotation_keeps_lengths_and_depends_on_distance_only(make_config) -> None:  # type: ignore[no-untyped-def]
    config = make_config()
    table = rotary_table(config, torch.float32)
    torch.manual_seed(4)
    heads = config.head_count + 2 * config.kv_head_count
    pair = torch.randn(2, heads, config.head_dim)

    def product(first: int, second: int) -> torch.Tensor:
        turned = torch.empty_like(pair)
        fast_rotary.rotate(pair, *table.rows(torch.tensor([first, second])), turned)
        return (turned[0] * turned[1]).sum(-1)

    torch.testing.assert_close(product(3, 10), product(403, 410), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(product(3, 10), product(3, 11), rtol=1e-3, atol=1e-3)


@given(
    vocab=st.sampled_from([7, 97, 320, 4096, 4100, 49_152]),
    seed=st.integers(0, 2**32),
    levels=st.sampled_from([1, 2, 5, 1000]),
    dtype=st.sampled_from(list(BOUNDS)),
)
def test_argmax_takes_the_lowest_of_equals(vocab: int, seed: int, levels: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randint(-levels, levels, (3, vocab), generator=random).to(dtype)
    assert lowest_argmax(logits) == plain_sampling.lowest_argmax(logits)


def test_argmax_with_one_row_and_infinities() -> None:
    row = torch.full((1, 512), float("-inf"))
    assert lowest_argmax(row) == plain_sampling.lowest_argmax(row) == [NOTHING]
    row[0, [300, 301, 511]] = 2.0
    assert lowest_argmax(row) == [300]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("vocab", [7, 4096])
def test_argmax_of_what_is_no_number_is_nothing(vocab: int, value: float) -> None:
    rows = torch.randn(3, vocab, generator=torch.Generator().manual_seed(1))
    rows[1, vocab - 2] = value
    found = lowest_argmax(rows)
    assert found == plain_sampling.lowest_argmax(rows)
    assert [token == NOTHING for token in found] == [False, True, False]
