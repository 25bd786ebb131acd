"""Medians, spreads, which repeats count, where texts part."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txdecode.runtime.bench.statistics import clean, first_difference, median, outside, quantile, spread

NUMBERS = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=12)
TEXTS = st.lists(st.integers(0, 3), max_size=8)


@given(NUMBERS)
def test_a_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values), rel=1e-12)


@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=12))
def test_quartiles_are_those_of_the_standard_library(values: list[float]) -> None:
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    found = spread(values)
    assert (found.lower, found.median, found.upper) == pytest.approx((lower, middle, upper), rel=1e-9)


@given(NUMBERS)
def test_a_spread_is_ordered_and_does_not_depend_on_the_order_of_its_values(values: list[float]) -> None:
    found = spread(values)
    assert found.low <= found.lower <= found.median <= found.upper <= found.high
    assert found == spread(list(reversed(values)))
    assert found.count == len(values)
    assert found.iqr == found.upper - found.lower
    assert {found.low, found.high} <= set(values)


@given(NUMBERS, st.floats(0, 1))
def test_a_quantile_lies_between_neighbours(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, share) <= ordered[-1]


def test_nothing_has_no_median() -> None:
    with pytest.raises(AssertionError, match="no values"):
        median([])


@given(NUMBERS, st.floats(0.01, 0.5))
def test_what_lies_outside_a_band_is_far_from_the_median(values: list[float], band: float) -> None:
    middle = median(values)
    assert outside(values, band) == tuple(abs(value / middle - 1) > band for value in values) or any(
        abs(abs(value / middle - 1) - band) < 1e-9 for value in values
    )


def test_the_band_has_two_sides_and_its_border_is_inside() -> None:
    assert outside([100, 85, 115, 84, 116], 0.15) == (False, False, False, True, True)
    assert outside([], 0.1) == ()


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_flagged_repeats_are_left_out_only_where_half_remain(flagged: list[bool]) -> None:
    kept, contended = clean(flagged)
    good = [index for index, flag in enumerate(flagged) if not flag]
    if contended:
        assert kept == tuple(range(len(flagged)))
        assert 2 * len(good) < len(flagged)
    else:
        assert list(kept) == good
        assert 2 * len(good) >= len(flagged)


@given(TEXTS, TEXTS)
def test_the_first_difference_is_where_two_texts_part(left: list[int], right: list[int]) -> None:
    index = first_difference(left, right)
    if index is None:
        assert left == right
    else:
        assert left[:index] == right[:index]
        assert left[index : index + 1] != right[index : index + 1]
