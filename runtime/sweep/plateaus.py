"""Plateaus, steps and slopes of a cost curve, and the draft lengths that they suggest. Pure.

A round of a higher width on the same plateau costs the same, so the top of a plateau is the draft length to use: a
step costs more than all that lies between two steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import attrs

TOLERANCE = 0.05
"""Share of a cost by which widths of one plateau may differ, and above which a rise is a step."""

SIGMAS = 3.0
"""Standard errors that a difference must exceed to count."""

_LEAST_SPLIT = 3
_FLATTER = 3.0


@attrs.frozen
class Measured:
    """Cost of a width with the standard error of that figure, in any one unit."""

    width: int
    cost: float
    error: float = 0.0


@attrs.frozen
class Step:
    """Between two neighbouring widths the cost rises by ``rise`` (a share of the lower one)."""

    below: int
    above: int
    rise: float


@attrs.frozen
class Region:
    """Widths ``first`` to ``last`` without a step in between: a plateau costs the same throughout, on a slope every
    row costs. ``cost`` is that of the first width, ``rise`` the share by which the last one costs more."""

    kind: Literal["plateau", "slope"]
    first: int
    last: int
    cost: float
    rise: float


@attrs.frozen
class Shape:
    """What a curve is made of, by width. ``drafts``: the draft lengths suggested, the top of each plateau less the
    row that a plain round has too."""

    regions: tuple[Region, ...]
    steps: tuple[Step, ...]

    @property
    def drafts(self) -> tuple[int, ...]:
        """Suggested draft lengths, the shortest first."""
        return tuple(
            region.last - 1 for region in self.regions if region.kind == "plateau" and region.last > 1
        )


def shape(curve: Sequence[Measured]) -> Shape:
    """Regions and steps of a curve of rising widths.

    A step is a rise between neighbours of more than 5 % and more than 3 standard errors of the difference. Between
    steps lies a plateau where every width is within that of the first; else a slope, of which a flat beginning or end
    (of at least three widths, rising a third as fast as the rest or less) is a plateau of its own.
    """
    assert curve, "a curve has points"
    assert all(left.width < right.width for left, right in itertools.pairwise(curve)), "widths rise"
    steps, runs, run = [], [], [curve[0]]
    for left, right in itertools.pairwise(curve):
        if right.cost - left.cost > _margin(left, right):
            steps.append(Step(left.width, right.width, right.cost / left.cost - 1.0))
            runs.append(run)
            run = []
        run.append(right)
    runs.append(run)
    return Shape(tuple(region for run in runs for region in _regions(run)), tuple(steps))


def _margin(reference: Measured, other: Measured) -> float:
    return max(TOLERANCE * reference.cost, SIGMAS * math.hypot(reference.error, other.error))


def _flat(run: Sequence[Measured]) -> bool:
    return all(abs(point.cost - run[0].cost) <= _margin(run[0], point) for point in run)


def _slope(run: Sequence[Measured]) -> float:
    return (run[-1].cost - run[0].cost) / max(run[-1].width - run[0].width, 1)


def _regions(run: Sequence[Measured]) -> list[Region]:
    if _flat(run):
        return [_region("plateau", run)]
    head = _flat_part(run)
    if head:
        return [_region("plateau", run[:head]), *_regions(run[head:])]
    tail = _flat_tail(run)
    if tail:
        return [*_regions(run[:-tail]), _region("plateau", run[-tail:])]
    return [_region("slope", run)]


def _flat_part(run: Sequence[Measured]) -> int:
    """Length of the longest flat beginning that stands out from the rest; 0 where there is none."""
    for count in range(len(run) - 1, _LEAST_SPLIT - 1, -1):
        if _flat(run[:count]) and _slope(run[:count]) * _FLATTER <= _slope(run[count - 1 :]):
            return count
    return 0


def _flat_tail(run: Sequence[Measured]) -> int:
    for count in range(len(run) - 1, _LEAST_SPLIT - 1, -1):
        if _flat(run[-count:]) and _slope(run[-count:]) * _FLATTER <= _slope(run[: len(run) - count + 1]):
            return count
    return 0


def _region(kind: Literal["plateau", "slope"], run: Sequence[Measured]) -> Region:
    return Region(kind, run[0].width, run[-1].width, run[0].cost, run[-1].cost / run[0].cost - 1.0)
