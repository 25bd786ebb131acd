"""What a launch costs by its rows, in units of the plain launch of the same requests.

``SweptCosts`` reads what ``txdecode sweep`` measured; ``LearnedCosts`` learns from the durations of the rounds
themselves, which the log records too. Neither looks at a clock: both are functions of what they were given.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

ROW_SLOPE = 0.02
"""Cost of one more row before anything was measured: a launch mostly reads the weights, which all rows share."""

STEP = 0.15
"""Cost of one draft of the executor's own drafter before anything was measured."""

ROW_LEAST = 0.001
"""Least cost of one more row: to propose, verify and record a draft is never free, and noise may not say so."""

CONTEXT_GRAIN = 64
"""Contexts are rounded to so many tokens; finer differences are far below the noise."""

_COLD = 3
_CLIP = 2.0
_PACE = 0.1
_LEVEL_PACE = 0.05
_REBUILT = 0.01


@attrs.frozen
class Spent:
    """Durations of one launch, in microseconds: ``forward`` is verify, accept and settle together; ``drafting`` what
    the executor's own drafter took for ``depth`` steps. ``batch`` requests had ``rows`` rows in all, at a mean
    context of ``context`` tokens."""

    batch: int
    rows: int
    context: int
    forward: float
    depth: int = 0
    drafting: float = 0.0


class Costs(Protocol):
    """Relative costs of launches."""

    def table(self, batch: int, context: int) -> Sequence[float]:
        """``table[n]``: cost of ``n`` rows in all for ``batch`` requests, in units of their plain launch
        (``table[batch] == 1``), rising; entries below ``batch`` are 1."""

    def step(self, batch: int, context: int) -> float:
        """Cost of one draft each by the executor's own drafter, in the same units."""

    def observe(self, spent: Spent) -> None:
        """A launch was committed."""

    def data(self) -> dict[str, Any]:
        """What is known now, as plain data for the log."""


def monotone(values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The least-squares fit to ``values`` that does not fall (pool adjacent violators)."""
    given = [1.0] * len(values) if weights is None else weights
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, given, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] >= block[0]:
            mean, mass, count = blocks.pop()
            total = mass + block[1]
            block = ((mean * mass + block[0] * block[1]) / total, total, count + block[2])
        blocks.append(block)
    return [mean for mean, _, count in blocks for _ in range(count)]


def between(points: Sequence[tuple[float, float]], x: float) -> float:
    """Linear interpolation through ``points`` sorted by their first part; flat beyond both ends."""
    first, last = points[0], points[-1]
    if x <= first[0]:
        return first[1]
    if x >= last[0]:
        return last[1]
    for left, right in itertools.pairwise(points):
        if x <= right[0]:
            return left[1] + (right[1] - left[1]) * (x - left[0]) / (right[0] - left[0])
    raise AssertionError("unreachable")


def relative(times: Sequence[float], batch: int) -> tuple[float, ...]:
    """A cost table from the times of ``batch``, ``batch`` + 1, .. rows: made monotone, each row at least
    ``ROW_LEAST`` more than the one before, and in units of the first."""
    fitted = monotone(times)
    table = [1.0] * (batch + 1)
    for time in fitted[1:]:
        table.append(max(time / fitted[0], table[-1] + ROW_LEAST))
    return tuple(table)


@attrs.define
class _Curve:
    """What is known of launches of one number of requests.

    A duration is ``level`` times ``ratio[rows]``. Both follow what is observed: the level what moves all widths alike
    (a growing context, a slower machine), a ratio what is its own.
    """

    batch: int
    most: int
    level: float = 0.0
    count: int = 0
    ratio: dict[int, float] = attrs.field(factory=dict)
    counts: dict[int, int] = attrs.field(factory=dict)
    step: float | None = None
    steps: int = 0
    table: tuple[float, ...] = ()
    stale: float = 1.0

    def expected(self, rows: int) -> float:
        found = self.ratio.get(rows)
        return self._shape(rows) if found is None else found

    def _shape(self, rows: int) -> float:
        """The prior of a width, moved as far as the widths measured beside it were."""
        prior = 1.0 + ROW_SLOPE * (rows - self.batch)
        if not self.ratio:
            return prior
        moved = [
            (float(n), ratio / (1.0 + ROW_SLOPE * (n - self.batch)))
            for n, ratio in sorted(self.ratio.items())
        ]
        return prior * between(moved, float(rows))

    def observe(self, spent: Spent) -> None:
        if spent.forward > 0:
            self._forward(spent.rows, spent.forward)
        if spent.depth and spent.drafting > 0 and self.level:
            self._drafting(spent.drafting / spent.depth / self.level)

    def _forward(self, rows: int, micros: float) -> None:
        expected = self.expected(rows)
        self.count += 1
        if self.count <= _COLD:
            # What is cold is slow, whatever its width.
            self.level = min(self.level or micros / expected, micros / expected)
            return
        # One launch that was interrupted must not look like a width that is dear.
        moved = min(max(micros / (self.level * expected), 1 / _CLIP), _CLIP) - 1.0
        seen = self.counts.get(rows, 0) + 1
        own = expected * (1.0 + max(_PACE, 0.5 / seen) * moved)
        self.level *= 1.0 + max(_LEVEL_PACE, 0.5 / self.count) * moved
        self.stale += abs(own / expected - 1.0)
        self.ratio[rows], self.counts[rows] = own, seen

    def _drafting(self, step: float) -> None:
        self.steps += 1
        if self.step is None:
            self.step = step
            return
        moved = min(max(step / self.step, 1 / _CLIP), _CLIP) - 1.0
        self.step *= 1.0 + max(_PACE, 0.5 / self.steps) * moved

    def costs(self) -> tuple[float, ...]:
        if self.stale > _REBUILT:
            times = [self.expected(rows) for rows in range(self.batch, self.most + 1)]
            self.table = relative(times, self.batch)
            self.stale = 0.0
        return self.table


class LearnedCosts:
    """Costs learned from the launches of a runtime whose rounds have at most ``rows_most`` rows a request. Before
    anything was seen a row costs ``ROW_SLOPE``, a draft step ``STEP``."""

    def __init__(self, rows_most: int) -> None:
        assert rows_most >= 1, rows_most
        self._rows_most = rows_most
        self._curves: dict[int, _Curve] = {}

    def _curve(self, batch: int) -> _Curve:
        found = self._curves.get(batch)
        if found is None:
            found = self._curves[batch] = _Curve(batch, batch * self._rows_most)
        return found

    def table(self, batch: int, context: int) -> Sequence[float]:
        """As ``Costs.table``; the context is followed, not told apart."""
        return self._curve(batch).costs()

    def step(self, batch: int, context: int) -> float:
        """As ``Costs.step``."""
        step = self._curve(batch).step
        return STEP if step is None else step

    def observe(self, spent: Spent) -> None:
        """Follow one launch."""
        self._curve(spent.batch).observe(spent)

    def data(self) -> dict[str, Any]:
        """How it starts, and what was learned by number of requests."""
        learned = {
            str(batch): [[n, round(curve.ratio[n], 4), curve.counts[n]] for n in sorted(curve.ratio)]
            for batch, curve in sorted(self._curves.items())
            if curve.ratio
        }
        return {"source": "learned", "row_slope": ROW_SLOPE, "step": STEP, "learned": learned}


@attrs.frozen
class Point:
    """Medians of one sweep: milliseconds of a launch of ``batch`` rounds of ``width`` rows each at ``context``."""

    batch: int
    context: int
    width: int
    median: float


class SweptCosts:
    """Costs read from a sweep: ``points`` by batch, context and width. ``steps`` are milliseconds of one draft of the
    executor's own drafter by batch, where it was measured; else they are learned.

    Between contexts, between widths and between batches times are interpolated linearly; beyond what was measured the
    nearest counts, and rows past the widest go on with the slope of the last.
    """

    def __init__(
        self, points: Sequence[Point], rows_most: int, steps: Mapping[int, float] | None = None, key: str = ""
    ) -> None:
        assert points, "a sweep has points"
        self._rows_most = rows_most
        self._key = key
        self._steps = dict(steps or {})
        self._learned = LearnedCosts(rows_most)
        self._batches = sorted({point.batch for point in points})
        self._curves: dict[int, dict[int, list[tuple[float, float]]]] = {}
        for point in sorted(points, key=lambda p: (p.batch, p.context, p.width)):
            curve = self._curves.setdefault(point.batch, {}).setdefault(point.context, [])
            curve.append((float(point.batch * point.width), point.median))
        self._tables: dict[tuple[int, int], tuple[float, ...]] = {}
        self._plain: dict[tuple[int, int], float] = {}

    def table(self, batch: int, context: int) -> Sequence[float]:
        """As ``Costs.table``."""
        key = batch, context // CONTEXT_GRAIN
        found = self._tables.get(key)
        if found is None:
            times = [self._time(batch, context, rows) for rows in range(batch, batch * self._rows_most + 1)]
            found = self._tables[key] = relative(times, batch)
            self._plain[key] = times[0]
        return found

    def step(self, batch: int, context: int) -> float:
        """As ``Costs.step``."""
        if not self._steps:
            return self._learned.step(batch, context)
        self.table(batch, context)
        measured = sorted((float(b), time) for b, time in self._steps.items())
        return between(measured, float(batch)) / self._plain[batch, context // CONTEXT_GRAIN]

    def observe(self, spent: Spent) -> None:
        """Widths are known; draft steps are learned where the sweep has none."""
        if not self._steps:
            self._learned.observe(spent)

    def data(self) -> dict[str, Any]:
        """Which sweep it is, and its table at the least batch and context."""
        batch = self._batches[0]
        context = min(self._curves[batch])
        return {
            "source": "sweep",
            "key": self._key,
            "batches": self._batches,
            "contexts": sorted(self._curves[batch]),
            "table": [round(cost, 4) for cost in self.table(batch, context)],
        }

    def _time(self, batch: int, context: int, rows: int) -> float:
        """Milliseconds of ``rows`` rows in all; a batch between two measured ones takes from each the time of as many
        rows a request, so that plain launches are compared with plain ones."""
        share = rows / batch
        return between(
            [(float(b), self._at_context(b, context, share * b)) for b in self._batches], float(batch)
        )

    def _at_context(self, batch: int, context: int, rows: float) -> float:
        return between(
            [(float(c), _along(curve, rows)) for c, curve in sorted(self._curves[batch].items())],
            float(context),
        )


def _along(curve: Sequence[tuple[float, float]], rows: float) -> float:
    """Time at ``rows``; past the widest it goes on with the slope over the upper half."""
    if rows <= curve[-1][0] or len(curve) == 1:
        return between(curve, rows)
    (x, y), (right, time) = curve[(len(curve) - 1) // 2], curve[-1]
    return time + max(time - y, 0.0) / (right - x) * (rows - right)
