"""Relative costs of launches: swept, and learned."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txdecode.runtime.policy.costs import (
    ROW_LEAST,
    ROW_SLOPE,
    STEP,
    LearnedCosts,
    Point,
    Spent,
    SweptCosts,
    between,
    monotone,
    relative,
)

SEED = {1: 36.9, 2: 37.1, 3: 37.7, 4: 53.6, 5: 54.0, 6: 54.4, 7: 54.7, 8: 54.9}


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20))
def test_monotone_is_a_projection(values: list[float]) -> None:
    fitted = monotone(values)
    assert len(fitted) == len(values)
    assert all(left <= right + 1e-9 for left, right in itertools.pairwise(fitted))
    assert sum(fitted) == pytest.approx(sum(values))
    assert monotone(fitted) == pytest.approx(fitted)


def test_monotone_by_hand() -> None:
    assert monotone([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert monotone([1, 4, 1], [1, 1, 3]) == [1, 1.75, 1.75]


def test_between_is_linear_and_flat_beyond() -> None:
    points = [(1.0, 10.0), (3.0, 30.0)]
    assert [between(points, x) for x in (0, 1, 2, 3, 4)] == [10, 10, 20, 30, 30]


def test_a_table_rises_by_the_least_even_where_times_do_not() -> None:
    table = relative([10.0, 9.0, 9.5], 2)
    assert table[:3] == (1.0, 1.0, 1.0)
    assert table[3] == pytest.approx(1 + ROW_LEAST)
    assert table[4] == pytest.approx(1 + 2 * ROW_LEAST)


def swept(**more: object) -> SweptCosts:
    points = [
        Point(1, context, width, time + context / 100)
        for context in (0, 1000)
        for width, time in SEED.items()
    ]
    points += [Point(2, 0, width, 1.1 * time) for width, time in SEED.items()]
    return SweptCosts(points, 8, **more)  # type: ignore[arg-type]


def test_a_sweep_says_what_it_measured() -> None:
    table = swept().table(1, 0)
    assert [round(table[width], 2) for width in SEED] == [1.0, 1.01, 1.02, 1.45, 1.46, 1.47, 1.48, 1.49]


def test_contexts_and_batches_are_interpolated() -> None:
    costs = swept()
    assert costs.table(1, 512)[4] == pytest.approx((53.6 + 5.12) / (36.9 + 5.12), rel=1e-3)
    # Eight rows of two requests are four each.
    assert costs.table(2, 0)[8] == pytest.approx(SEED[4] / SEED[1])
    # Past the last batch and context the nearest counts.
    assert costs.table(4, 5000)[16] == pytest.approx(SEED[4] / SEED[1])
    assert len(costs.table(4, 0)) == 33


def test_rows_past_the_widest_go_on_as_before() -> None:
    costs = SweptCosts([Point(1, 0, width, 10.0 + width) for width in range(1, 5)], 8)
    assert costs.table(1, 0)[8] == pytest.approx(18 / 11)


def test_draft_steps_are_measured_or_learned() -> None:
    measured = swept(steps={1: 36.9 / 10})
    assert measured.step(1, 0) == pytest.approx(0.1)
    learned = swept()
    assert learned.step(1, 0) == STEP
    for _ in range(5):
        learned.observe(Spent(1, 1, 0, 1000.0, 2, 600.0))
    assert learned.step(1, 0) == pytest.approx(0.3)


def test_before_anything_is_seen() -> None:
    costs = LearnedCosts(8)
    assert costs.table(1, 0)[1] == 1.0
    assert costs.table(1, 0)[8] == pytest.approx(1 + 7 * ROW_SLOPE)
    assert costs.step(1, 0) == STEP
    assert len(costs.table(3, 0)) == 25


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_curve_is_learned(noise: float) -> None:
    costs, chance = LearnedCosts(8), random.Random(1)
    for _ in range(600):
        width = chance.choice(list(SEED))
        costs.observe(Spent(1, width, 100, SEED[width] * 1000 * (1 + noise * chance.uniform(-1, 1))))
    table = costs.table(1, 100)
    for width, time in SEED.items():
        assert table[width] == pytest.approx(time / SEED[1], rel=0.02 + noise)


def test_interrupted_launches_move_little() -> None:
    costs = LearnedCosts(4)
    for number in range(400):
        for width in (1, 4):
            slow = 50.0 if number % 10 == 5 and width == 4 else 1.0
            costs.observe(Spent(1, width, 0, 1000.0 * (1.2 if width == 4 else 1.0) * slow))
    assert 1.1 < costs.table(1, 0)[4] < 1.5


def test_a_slow_beginning_is_forgotten() -> None:
    costs = LearnedCosts(4)
    costs.observe(Spent(1, 4, 0, 10**9))
    for _ in range(30):
        for width in (1, 4):
            costs.observe(Spent(1, width, 0, 1000.0 + 100 * width))
    assert costs.table(1, 0)[4] == pytest.approx(1400 / 1100, rel=0.03)


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    costs = LearnedCosts(4)
    for number in range(300):
        factor = 1.0 + number / 100
        for width in (1, 3):
            costs.observe(Spent(1, width, 0, factor * (1000.0 + 100 * width)))
    assert costs.table(1, 0)[3] == pytest.approx(1300 / 1100, rel=0.03)


def test_numbers_of_requests_are_told_apart() -> None:
    costs = LearnedCosts(4)
    for _ in range(30):
        costs.observe(Spent(1, 4, 0, 5000.0))
        costs.observe(Spent(1, 1, 0, 1000.0))
    assert costs.table(1, 0)[4] > 3
    assert costs.table(2, 0)[8] == pytest.approx(1 + 6 * ROW_SLOPE)


def test_what_the_log_gets_is_plain() -> None:
    costs = LearnedCosts(4)
    for _ in range(6):
        costs.observe(Spent(1, 2, 0, 1000.0))
    assert costs.data()["source"] == "learned"
    assert costs.data()["learned"]["1"][0][0] == 2
    data = swept(key="sweep-x").data()
    assert (data["source"], data["key"], data["batches"], data["contexts"]) == (
        "sweep",
        "sweep-x",
        [1, 2],
        [0, 1000],
    )
