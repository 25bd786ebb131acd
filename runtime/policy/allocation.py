"""Who gets how many drafts in a launch: a pure function of chances and costs.

The chances of a request's drafts fall with depth, so the best k drafts for a number of rows are the k most likely
ones over all requests: taking them in that order gives the most expected tokens for every number of rows, and the
best number is found by looking at each. Where a drafter of the executor's own works, each of its steps costs too, and
all requests are drafted for at once: every depth of that drafter is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

_TIE = 1e-9


def allocate(
    gains: Sequence[Sequence[float]],
    costs: Sequence[float],
    *,
    rows: int,
    tokens: float,
    rate: float | None = None,
    rows_most: int | None = None,
    learned: Sequence[bool] = (),
    step: float = 0.0,
) -> list[int]:
    """Drafts for each request.

    ``gains[i][j]``: chance that at least j+1 drafts of request i are accepted, not rising in j. ``costs[n]``: cost of
    a launch of n rows. ``rows``: rows that the launch has without these drafts, and ``tokens`` what it emits without
    them. ``learned[i]``: the drafts are the executor's own, whose every step costs ``step``, for all requests
    together. ``rows_most``: the row budget of the launch.

    Maximises expected tokens over cost; with ``rate``, the tokens that a unit of cost brings elsewhere, expected
    tokens less ``rate`` times cost. Of equally good choices the one with fewer rows.
    """
    room = (len(costs) - 1 if rows_most is None else min(rows_most, len(costs) - 1)) - rows
    own = list(learned) if learned else [False] * len(gains)
    if len(gains) == 1:
        return [_alone(gains[0], costs, rows, tokens, rate, room, step if own[0] else 0.0)]
    deepest = max((len(gain) for gain, steps in zip(gains, own, strict=True) if steps), default=0)
    best, chosen = -float("inf"), [0] * len(gains)
    for depth in range(deepest + 1 if step else 1):
        limits = [
            min(len(gain), depth) if steps and step else len(gain)
            for gain, steps in zip(gains, own, strict=True)
        ]
        order = sorted(
            ((-gain[j], j, i) for i, gain in enumerate(gains) for j in range(limits[i])),
        )
        expected, taken, extra = tokens, [0] * len(gains), depth * step
        value = _value(expected, costs[rows] + extra, rate)
        if value > best + _TIE:
            best, chosen = value, list(taken)
        for count, (chance, _, i) in enumerate(order[: max(room, 0)], 1):
            expected -= chance
            taken[i] += 1
            value = _value(expected, costs[rows + count] + extra, rate)
            if value > best + _TIE:
                best, chosen = value, list(taken)
    return chosen


def _alone(
    gains: Sequence[float],
    costs: Sequence[float],
    rows: int,
    tokens: float,
    rate: float | None,
    room: int,
    step: float,
) -> int:
    """The same for one request, in one pass."""
    best, chosen, expected = _value(tokens, costs[rows], rate), 0, tokens
    # Every round of a single request comes by here.
    for count in range(1, min(len(gains), room) + 1):
        expected += gains[count - 1]
        cost = costs[rows + count] + count * step
        value = expected / cost if rate is None else expected - rate * cost
        if value > best + _TIE:
            best, chosen = value, count
    return chosen


def _value(expected: float, cost: float, rate: float | None) -> float:
    return expected / cost if rate is None else expected - rate * cost
