"""The controller that asks what a draft is worth: expected tokens against measured cost.

For every request, and every source of drafts that it has seen, it knows how likely prefixes of drafts survive
(``survival``); what a launch costs by its rows is given (``costs``); who gets how many drafts is one pure function of
both (``allocation``). A source that does not pay is tried anew now and then, and only out of what speculation has
gained: a request's rounds never cost more than plain ones by over 1 % of its text and ``ALLOWANCE`` rounds, by the
costs known.

Deterministic: no clock, no draws, nothing shared between requests but the costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from txdecode.runtime.policy.allocation import allocate
from txdecode.runtime.policy.bounds import DRAFT_MAX, InvalidDraftLength
from txdecode.runtime.policy.costs import Costs
from txdecode.runtime.policy.decision import Decision
from txdecode.runtime.policy.survival import Prior, Survival

Key = tuple[str, int]
"""A source of drafts: its name, and of copies how long a match they come from, as a bucket."""

LEARNED: Key = ("", 0)
"""The executor's own drafter."""

BUCKETS = (1, 2, 3, 5, 9)
"""Least match lengths of the buckets 1 to 5: 1, 2, 3 to 4, 5 to 8, 9 and more; 0 is a match of unknown length."""

_COPY_PRIORS = (
    Prior(0.5),
    Prior(0.25),
    Prior(0.4),
    Prior(0.6),
    Prior(0.75),
    Prior(0.9),
)
_LEARNED_PRIOR = Prior(0.6)

LEAST = 0.99
"""Least share of plain speed that a request's rounds may come down to, its allowance apart."""

ALLOWANCE = 1.0
"""Plain rounds that a request may lose before it has gained any."""

PROBE_FIRST, PROBE_MOST = 16, 128
"""Rounds that a source waits until a depth that does not pay is tried anew: at first, and at most."""

PROBE_HOPEFUL = 4
"""The same where so little is known of it that it may well pay."""

_PLATEAU = 1.02
_DOUBTFUL = 0.3
_RATE_DECAY = 0.97


def bucket(length: int) -> int:
    """The bucket of a match of ``length`` tokens."""
    return sum(length >= least for least in BUCKETS)


@attrs.define
class _Source:
    survival: Survival
    waited: int = 0
    interval: int = PROBE_FIRST


@attrs.define
class Wish:
    """What one request could be given, and, once ``decide`` has seen it, what it gets: ``drafts``. ``most``: drafts
    at hand, or that may be asked for; ``learned``: they are the executor's own, and cost steps of its drafter."""

    state: State
    key: Key
    most: int
    learned: bool = False
    drafts: int = 0
    base: int = 0
    doubtful: bool = False
    reason: str = "nothing"

    @property
    def curve(self) -> tuple[float, ...]:
        """Chances of the drafts."""
        return self.state.source(self.key).survival.curve(self.most) if self.most else ()


@attrs.define
class _Setting:
    """What the last decision was made under: enough to decide about copies that come after it."""

    table: Sequence[float] = ()
    batch: int = 1
    rows: int = 1


@attrs.define
class State:
    """One request: its sources, its balance, its last decision. ``emitted`` and ``spent`` are in plain rounds."""

    fallback: float
    sources: dict[Key, _Source] = attrs.field(factory=dict)
    emitted: float = 0.0
    spent: float = 0.0
    recent_emitted: float = 1.0
    recent_spent: float = 1.0
    wish: Wish | None = None
    decision: Decision | None = None
    setting: _Setting = attrs.field(factory=_Setting)
    after: Key | None = None
    cost: float = 1.0

    def source(self, key: Key) -> _Source:
        """What is known of a source."""
        found = self.sources.get(key)
        if found is None:
            prior = _LEARNED_PRIOR if key == LEARNED else _COPY_PRIORS[key[1]]
            found = self.sources[key] = _Source(Survival(prior))
        return found

    @property
    def rate(self) -> float:
        """Tokens a plain round's time brings this request of late: what time is worth. Never below plain decoding."""
        return max(1.0, self.recent_emitted / self.recent_spent)

    @property
    def afford(self) -> float:
        """Most that a round may cost, if all of its drafts were wrong."""
        return (self.emitted + 1.0 + ALLOWANCE) / LEAST - self.spent


def decide(
    wishes: Sequence[Sequence[Wish]],
    costs: Costs,
    *,
    context: int,
    others: Sequence[int] = (),
    rows_most: int | None = None,
) -> list[Wish]:
    """Give every request its drafts; returns the wish that each of them gets.

    ``wishes``: for each request what it could be given, one or more: the best is taken. ``others``: drafts of the
    requests of the launch that are none of this controller's. ``context``: mean context of all of them.
    ``rows_most``: the row budget.
    """
    batch = len(wishes) + len(others)
    table, step = costs.table(batch, context), costs.step(batch, context)
    rows = batch + sum(others)
    last = len(table) - 1
    chosen = [own[0] if len(own) == 1 else _best(own, table, step, batch, rows, last) for own in wishes]
    open_ = [wish for wish in chosen if wish.most]
    if open_:
        rate = sum(wish.state.rate for wish in open_) / len(open_)
        steps = step if any(wish.learned for wish in open_) else 0.0
        drafts = allocate(
            [wish.curve for wish in open_],
            table,
            rows=rows,
            tokens=float(batch),
            rate=rate * batch,
            rows_most=rows_most,
            learned=[wish.learned for wish in open_] if steps else (),
            step=steps,
        )
        for wish, count in zip(open_, drafts, strict=True):
            wish.drafts, wish.reason = count, "pays" if count else "fallback"
    for wish in chosen:
        _settle(wish, chosen, table, step, batch, rows, last if rows_most is None else min(last, rows_most))
    total = rows + sum(wish.drafts for wish in chosen)
    deepest = max((wish.drafts for wish in chosen if wish.learned), default=0)
    extra = batch * (table[total] - 1.0 + step * deepest)
    drafted = total - batch
    for wish in chosen:
        state = wish.state
        state.cost = 1.0 + (extra * wish.drafts / drafted if wish.drafts else 0.0)
        curve = wish.curve[: wish.drafts]
        state.wish, state.after = wish, None
        state.setting = _Setting(table, batch, total)
        state.decision = Decision(
            "goodput",
            wish.drafts,
            wish.reason,
            1.0 + sum(curve),
            state.cost,
            curve[-1] if curve else 1.0,
        )
    return chosen


def _best(own: Sequence[Wish], table: Sequence[float], step: float, batch: int, rows: int, last: int) -> Wish:
    """Of the sources that a request has, the one that is worth most alone; of equals the first."""
    best, found = -float("inf"), own[0]
    for wish in own:
        if not wish.most:
            continue
        rate = wish.state.rate * batch
        steps = step if wish.learned else 0.0
        (count,) = allocate(
            [wish.curve], table, rows=rows, tokens=1.0, rate=rate, learned=[wish.learned], step=steps
        )
        value = sum(wish.curve[:count]) - rate * (table[min(rows + count, last)] + steps * count)
        if value > best + 1e-9:
            best, found = value, wish
    return found


def _settle(
    wish: Wish,
    chosen: Sequence[Wish],
    table: Sequence[float],
    step: float,
    batch: int,
    rows: int,
    last: int,
) -> None:
    """Hold one request's drafts against its threshold and its balance, and probe where it is time to."""
    if not wish.most:
        return
    others = rows + sum(other.drafts for other in chosen) - wish.drafts
    steps = step if wish.learned else 0.0
    afford = wish.state.afford

    def cost(count: int) -> float:
        return 1.0 + batch * (table[others + count] - table[others] + steps * count)

    curve = wish.curve
    if wish.drafts:
        if 1.0 + sum(curve[: wish.drafts]) < wish.state.fallback * cost(wish.drafts):
            wish.drafts, wish.reason = 0, "fallback"
        elif cost(wish.drafts) > afford:
            while wish.drafts and cost(wish.drafts) > afford:
                wish.drafts -= 1
            wish.reason = "held"
    wish.base = wish.drafts
    most = min(wish.most, last - others)
    source = wish.state.source(wish.key)
    if wish.drafts >= most:
        source.waited, source.interval = 0, PROBE_FIRST
        return
    source.waited += 1
    if wish.reason == "held":
        return
    count = 0
    if source.waited >= source.interval:
        count = wish.drafts + 1
        within = table[others + count] * _PLATEAU
        while count < most and table[others + count + 1] <= within and not steps:
            count += 1
    elif not source.waited % (2 * PROBE_FIRST if wish.drafts else PROBE_HOPEFUL):
        (count,) = allocate(
            [source.survival.hopeful(most)],
            table,
            rows=others,
            tokens=0.0,
            rate=wish.state.rate * batch,
            learned=[wish.learned],
            step=steps,
        )
    if count > wish.drafts and cost(count) <= afford:
        wish.doubtful = source.survival.chance(wish.base + 1) < _DOUBTFUL
        wish.drafts, wish.reason, source.waited = count, "probe", 0


class Goodput:
    """Chooses the drafts that are expected to bring most tokens for their cost.

    ``cap``: most drafts of a round. ``fallback``: a round must be expected to be at least so many times as fast as
    plain ones, else it is one. Raises ``InvalidDraftLength`` for a cap outside 1..15.
    """

    kind: ClassVar[str] = "goodput"

    def __init__(self, cap: int = DRAFT_MAX, fallback: float = 1.0) -> None:
        self._cap = cap
        if not 1 <= cap <= DRAFT_MAX:
            raise InvalidDraftLength(self.name)
        self._fallback = fallback
        self._states: dict[int, State] = {}

    @property
    def name(self) -> str:
        """How ``parse`` would spell it."""
        return f"goodput:{self._cap}"

    def begin(self, request: int) -> None:
        """A request starts, or starts again: what was known of it is forgotten."""
        self._states[request] = State(self._fallback)

    def next(self, request: int) -> int:
        """Most drafts to ask a drafter for: how many of them are kept is for ``decide`` to say."""
        assert request in self._states, f"request {request} has not begun"
        return self._cap

    def state(self, request: int) -> State:
        """What is known of a request."""
        assert request in self._states, f"request {request} has not begun"
        return self._states[request]

    def wish(self, request: int, key: Key, most: int) -> Wish:
        """What ``decide`` is to look at: at most ``most`` drafts of the source ``key``."""
        return Wish(self.state(request), key, min(most, self._cap), key == LEARNED)

    def extend(self, request: int, key: Key, drafts: int, most: int) -> int:
        """How many of ``most`` copies are to follow ``drafts`` drafts of the executor's own in the round that was
        decided last. They are judged only where all of those are right."""
        state = self.state(request)
        setting, wish = state.setting, state.wish
        if wish is None or most <= 0:
            return 0
        before = state.source(LEARNED).survival.curve(drafts)[-1] if drafts else 1.0
        gains = [before * chance for chance in state.source(key).survival.curve(most)]
        rows = setting.rows - wish.drafts + drafts
        (count,) = allocate([gains], setting.table, rows=rows, tokens=0.0, rate=state.rate * setting.batch)
        table = setting.table

        def extra(copies: int) -> float:
            return setting.batch * (table[rows + copies] - table[rows])

        while count and state.cost + extra(count) > state.afford:
            count -= 1
        if count:
            state.after = key
            state.cost += extra(count)
            assert state.decision is not None
            state.decision = attrs.evolve(
                state.decision,
                asked=drafts + count,
                expected=state.decision.expected + sum(gains[:count]),
                cost=state.cost,
                survival=gains[count - 1],
            )
        return count

    def observe(self, request: int, offered: int, accepted: int, copied: int = 0) -> None:
        """A round was committed: ``accepted`` of the ``offered`` drafts were, before any clip. The last ``copied`` of
        them followed those of the executor's own drafter."""
        state = self.state(request)
        assert 0 <= accepted <= offered, (offered, accepted)
        assert 0 <= copied <= offered, (offered, copied)
        wish, cost = state.wish, state.cost
        if offered and wish is not None:
            first = offered - copied
            state.source(wish.key).survival.observe(first, min(accepted, first))
            if copied and state.after is not None and accepted >= first:
                state.source(state.after).survival.observe(copied, accepted - first)
            if wish.reason == "probe":
                self._probed(state.source(wish.key), wish, min(accepted, first))
        elif not offered:
            cost = 1.0
        state.emitted += accepted + 1
        state.spent += cost
        state.recent_emitted = state.recent_emitted * _RATE_DECAY + accepted + 1
        state.recent_spent = state.recent_spent * _RATE_DECAY + cost

    @staticmethod
    def _probed(source: _Source, wish: Wish, accepted: int) -> None:
        """A result that was not to be expected is followed up at once; others make the next probe wait longer."""
        if accepted > wish.base and wish.doubtful:
            source.interval = 1
        else:
            source.interval = min(max(2 * source.interval, PROBE_FIRST), PROBE_MOST)

    def end(self, request: int) -> None:
        """The request is over."""
        assert request in self._states, f"request {request} has not begun"
        del self._states[request]
