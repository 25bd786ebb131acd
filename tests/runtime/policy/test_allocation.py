"""Who gets how many drafts: against all ways to give them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.runtime.policy.allocation import allocate

CHANCES = (0.0, 0.1, 0.4, 0.5, 0.9)
CURVES = (
    (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7),
    (1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 2.5, 2.5),
    (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0),
)


def best(gains, costs, rows, tokens, rate, rows_most, learned, step):
    """The value of the best of all choices."""
    top = -float("inf")
    for counts in itertools.product(*(range(len(gain) + 1) for gain in gains)):
        if rows + sum(counts) > min(rows_most, len(costs) - 1):
            continue
        top = max(top, value(gains, costs, rows, tokens, rate, learned, step, counts))
    return top


def value(gains, costs, rows, tokens, rate, learned, step, counts):
    expected = tokens + sum(sum(gain[:count]) for gain, count in zip(gains, counts, strict=True))
    deepest = max((count for count, own in zip(counts, learned, strict=True) if own), default=0)
    cost = costs[rows + sum(counts)] + step * deepest
    return expected / cost if rate is None else expected - rate * cost


FALLING = [
    tuple(sorted(chances, reverse=True))
    for length in range(4)
    for chances in itertools.combinations_with_replacement(CHANCES, length)
]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("rate", [None, 1.0, 2.5])
@pytest.mark.parametrize("step", [0.0, 0.3])
def test_no_choice_is_better_for_one_request(curve, rate, step) -> None:
    for gain in FALLING:
        for own in (False, True):
            counts = allocate([gain], (1.0, *curve), rows=1, tokens=1.0, rate=rate, learned=[own], step=step)
            arguments = ([gain], (1.0, *curve), 1, 1.0, rate)
            found = value(*arguments, [own], step, counts)
            assert found == pytest.approx(best(*arguments, 99, [own], step), abs=1e-6)


@settings(max_examples=150, deadline=None)
@given(
    gains=st.lists(
        st.lists(st.floats(0, 1), max_size=3).map(lambda chances: sorted(chances, reverse=True)),
        min_size=2,
        max_size=3,
    ),
    rises=st.lists(st.sampled_from([0.001, 0.1, 0.6]), min_size=12, max_size=12),
    rate=st.sampled_from([None, 1.0, 3.0, 8.0]),
    rows_most=st.integers(3, 20),
    own=st.lists(st.booleans(), min_size=3, max_size=3),
    step=st.sampled_from([0.0, 0.2]),
)
def test_no_choice_is_better_for_a_batch(gains, rises, rate, rows_most, own, step) -> None:
    costs = [1.0] * 4 + [1.0 + sum(rises[: i + 1]) for i in range(len(rises))]
    learned = own[: len(gains)]
    rows, tokens = len(gains), float(len(gains))
    counts = allocate(
        gains, costs, rows=rows, tokens=tokens, rate=rate, rows_most=rows_most, learned=learned, step=step
    )
    assert rows + sum(counts) <= max(rows_most, rows)
    found = value(gains, costs, rows, tokens, rate, learned, step, counts)
    assert found == pytest.approx(best(gains, costs, rows, tokens, rate, max(rows_most, rows), learned, step))


def test_equal_choices_take_fewer_rows() -> None:
    assert allocate([[0.0, 0.0]], [1.0] * 4, rows=1, tokens=1.0) == [0]


def test_nothing_to_give() -> None:
    assert allocate([], [1.0, 1.0], rows=1, tokens=1.0) == []
    assert allocate([[0.9]], [1.0, 1.0], rows=1, tokens=1.0) == [0]
