"""Vector code against double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import njit

from txdecode.kernels.native.lanes import LANES, exp_sum, largest, sigmoid, silu_multiply, square_sum


@njit
def reduced(x: Any) -> Any:
    at, count = x.ctypes.data, x.shape[0] // 8
    return square_sum(at, count), largest(at, count)


@njit
def weighed(x: Any, most: Any) -> Any:
    return exp_sum(x.ctypes.data, x.shape[0] // 8, most)


@njit
def shares(x: Any, out: Any) -> None:
    sigmoid(x.ctypes.data, out.ctypes.data, x.shape[0] // 8)


@njit
def gated(gate: Any, up: Any, out: Any) -> None:
    silu_multiply(gate.ctypes.data, up.ctypes.data, out.ctypes.data, gate.shape[0] // 8)


def numbers(count: int, scale: float) -> Any:
    return (np.random.default_rng(count).standard_normal(count) * scale).astype(np.float32)


@pytest.mark.parametrize("vectors", [1, 2, 7, 72])
def test_sums_and_maxima(vectors: int) -> None:
    x = numbers(vectors * LANES, 3.0)
    squares, most = reduced(x)
    assert squares == pytest.approx(float((x.astype(np.float64) ** 2).sum()), rel=1e-6)
    assert most == x.max()
    x[3] = x.max() + 1
    assert reduced(x)[1] == x[3]


def test_the_largest_of_nothing_but_minus_infinity() -> None:
    assert reduced(np.full(8, -np.inf, np.float32))[1] == -np.inf


@pytest.mark.parametrize("vectors", [1, 3, 90])
def test_weights_of_a_softmax(vectors: int) -> None:
    x = numbers(vectors * LANES, 4.0)
    most = x.max()
    expected = np.exp((x - most).astype(np.float64))
    x[::5], expected[::5] = -np.inf, 0.0
    total = weighed(x, most)
    assert np.abs(x - expected).max() < 2e-7
    assert np.all(x[::5] == 0)
    assert total == pytest.approx(expected.sum(), rel=1e-6)


def test_exponentials_over_their_whole_range() -> None:
    x = np.linspace(-87, 0, 8 * 4000, dtype=np.float32)
    expected = np.exp(x.astype(np.float64))
    weighed(x, np.float32(0.0))
    assert (np.abs(x - expected) / expected).max() < 2.0**-22


def test_gates_and_what_is_no_number() -> None:
    x = np.concatenate([numbers(72, 5.0), np.array([0, -0.0, 200, -200, 88, -88, 30, -30], np.float32)])
    up, out = numbers(80, 1.0), np.empty(80, np.float32)
    wide = np.clip(x.astype(np.float64), -700, 700)
    shares(x, out)
    np.testing.assert_allclose(out, 1 / (1 + np.exp(-wide)), rtol=1e-6, atol=1e-36)
    gated(x, up, out)
    np.testing.assert_allclose(out, wide / (1 + np.exp(-wide)) * up, rtol=2e-6, atol=1e-34)
    for bad in (math.nan, math.inf, -math.inf):
        x[17] = bad
        shares(x, out)
        assert math.isnan(out[17]) == math.isnan(bad)
        gated(x, up, out)
        assert math.isfinite(out[16])
        # An activation of minus infinity is damage too, which a product with zero shows.
        assert not math.isfinite(out[17]) or bad == -math.inf
