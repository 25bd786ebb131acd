"""Medians, spreads and ratios. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs


def median(values: Iterable[float]) -> float:
    """The middle value, the mean of the two middle ones where their count is even. At least one value."""
    return quantile(sorted(values), 0.5)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the ``ordered`` values lie, linear between neighbours (Hyndman and Fan's
    definition 7)."""
    assert ordered, "no values"
    assert 0 <= share <= 1, f"share {share}"
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    # Not a weighted sum of both: rounding could leave the interval.
    return min(max(low + (high - low) * (place - below), low), high)


@attrs.frozen
class Spread:
    """Several values of one thing: ``median``, least and most, and the middle half (``lower`` to ``upper``)."""

    count: int
    median: float
    low: float
    high: float
    lower: float
    upper: float

    @property
    def iqr(self) -> float:
        """Width of the middle half."""
        return self.upper - self.lower


def spread(values: Iterable[float]) -> Spread:
    """The spread of at least one value."""
    ordered = sorted(values)
    return Spread(
        len(ordered),
        quantile(ordered, 0.5),
        ordered[0],
        ordered[-1],
        quantile(ordered, 0.25),
        quantile(ordered, 0.75),
    )


def outside(values: Sequence[float], band: float) -> tuple[bool, ...]:
    """Which values lie further from their median than ``band``, a share of it."""
    if not values:
        return ()
    middle = median(values)
    return tuple(abs(value - middle) > band * abs(middle) for value in values)


def clean(flagged: Sequence[bool]) -> tuple[tuple[int, ...], bool]:
    """Which repeats count, and whether the whole is contended.

    Flagged ones are left out where at least half of all remain; otherwise none is, and the whole is contended.
    """
    kept = tuple(index for index, flag in enumerate(flagged) if not flag)
    if kept and 2 * len(kept) >= len(flagged):
        return kept, False
    return tuple(range(len(flagged))), True


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first index at which two texts differ, their common length where one ends early, ``None`` where equal."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))
