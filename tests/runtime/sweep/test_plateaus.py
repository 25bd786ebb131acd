"""Plateaus, steps and slopes are found and named."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txdecode.runtime.sweep.plateaus import Measured, Step, shape

# The curve of ../shared/seeds/001: milliseconds by width, a dense model of 30 billion parameters.
SEED = {1: 36.9, 2: 37.1, 3: 37.7, 4: 53.6, 5: 54.0, 6: 54.4, 7: 54.7, 8: 54.9, 9: 84.6, 12: 84.7, 16: 81.0}


def points(curve: dict[int, float], error: float = 0.0) -> list[Measured]:
    return [Measured(width, cost, error) for width, cost in curve.items()]


def regions(curve: list[Measured]) -> list[tuple[str, int, int]]:
    return [(region.kind, region.first, region.last) for region in shape(curve).regions]


def test_the_curve_that_started_it() -> None:
    made = shape(points(SEED, 0.2))
    assert [(r.kind, r.first, r.last) for r in made.regions] == [
        ("plateau", 1, 3),
        ("plateau", 4, 8),
        ("plateau", 9, 16),
    ]
    assert [(step.below, step.above) for step in made.steps] == [(3, 4), (8, 9)]
    assert made.steps[0].rise == pytest.approx(53.6 / 37.7 - 1)
    assert made.drafts == (2, 7, 15)


def test_a_slope_is_no_plateau() -> None:
    assert regions(points({width: 10 + 0.3 * width for width in range(1, 17)})) == [("slope", 1, 16)]
    assert shape(points({width: 10 + 0.3 * width for width in range(1, 17)})).drafts == ()


def test_where_every_row_is_a_step() -> None:
    made = shape(points({width: float(width) for width in range(1, 6)}))
    assert len(made.steps) == 4
    assert [(r.first, r.last) for r in made.regions] == [(width, width) for width in range(1, 6)]


def test_a_plateau_that_leads_into_a_slope() -> None:
    curve = {**dict.fromkeys(range(1, 9), 10.0), **{width: 10 + 0.4 * (width - 8) for width in range(9, 17)}}
    kinds = regions(points(curve))
    assert kinds[0][:2] == ("plateau", 1)
    assert kinds[0][2] in (8, 9)
    assert kinds[-1] == ("slope", kinds[0][2] + 1, 16)


def test_a_slope_that_ends_on_a_plateau() -> None:
    curve = {**{width: 6 + 0.28 * width for width in range(1, 9)}, **dict.fromkeys(range(9, 17), 8.3)}
    kinds = regions(points(curve))
    assert kinds[0][0] == "slope"
    assert kinds[-1][0] == "plateau"
    assert kinds[-1][2] == 16


def test_noise_makes_no_step() -> None:
    curve = {1: 10.0, 2: 10.8, 3: 10.1, 4: 14.0}
    assert shape(points(curve)).steps[0] == Step(1, 2, pytest.approx(0.08))  # type: ignore[arg-type]
    assert [(step.below, step.above) for step in shape(points(curve, 0.5)).steps] == [(3, 4)]


def test_one_width() -> None:
    assert regions([Measured(1, 5.0)]) == [("plateau", 1, 1)]
    assert shape([Measured(1, 5.0)]).drafts == ()


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    rises=st.lists(st.floats(0.3, 1.0), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
def test_plateaus_are_found_through_noise(lengths: list[int], rises: list[float], seed: int) -> None:
    """Levels at least 30 % apart, with noise of half a per cent whose size is known."""
    chance, curve, level, width, borders = random.Random(seed), [], 10.0, 1, []
    for index, length in enumerate(lengths):
        borders.append((width, width + length - 1))
        for _ in range(length):
            curve.append(Measured(width, level * (1 + 0.005 * chance.uniform(-1, 1)), 0.005 * level))
            width += 1
        level *= 1 + rises[index]
    made = shape(curve)
    assert [(region.first, region.last) for region in made.regions] == borders
    assert {region.kind for region in made.regions} == {"plateau"}
    assert made.drafts == tuple(last - 1 for _, last in borders if last > 1)


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0, 5)), min_size=1, max_size=16))
def test_regions_cover_every_width_once(values: list[tuple[float, float]]) -> None:
    made = shape([Measured(width, cost, error) for width, (cost, error) in enumerate(values, 1)])
    covered = [width for region in made.regions for width in range(region.first, region.last + 1)]
    assert covered == list(range(1, len(values) + 1))
    for step in made.steps:
        assert any(region.first == step.above for region in made.regions)
        assert any(region.last == step.below for region in made.regions)
