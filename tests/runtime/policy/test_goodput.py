"""The goodput controller against processes whose best draft length is known."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence

import attrs
import pytest

from txdecode.runtime.policy import DRAFT_MAX, Goodput, InvalidDraftLength
from txdecode.runtime.policy.costs import LearnedCosts, Spent
from txdecode.runtime.policy.goodput import ALLOWANCE, LEARNED, LEAST, Wish, bucket, decide

CURVES = {
    "flat": [1 + 0.01 * row for row in range(16)],
    "plateaus": [1, 1.005, 1.02, 1.45, 1.46, 1.48, 1.485, 1.49, *(2.3 + 0.001 * row for row in range(8))],
    "slope": [1 + 0.05 * row for row in range(16)],
    "steep": [1 + 0.4 * row for row in range(16)],
}
COPY = ("copies", 3)


@attrs.frozen
class Table:
    """Costs that are known."""

    costs: Sequence[float]
    of_step: float = 0.0

    def table(self, batch: int, context: int) -> Sequence[float]:
        top = len(self.costs)
        shares = [
            self.costs[min(max(rows / batch - 1, 0).__ceil__(), top - 1)] for rows in range(batch * top + 1)
        ]
        return shares if batch > 1 else [1.0, *self.costs]

    def step(self, batch: int, context: int) -> float:
        return self.of_step

    def observe(self, spent: Spent) -> None:
        pass

    def data(self) -> dict[str, object]:
        return {}


def chance(p: float, rising: bool, depth: int) -> float:
    return 1 - (1 - p) * 0.85**depth if rising else p


def best_fixed(curve: Sequence[float], p: float, rising: bool) -> float:
    """Tokens a plain round's time of the best draft length, known beforehand."""
    best, alive, expected = 1.0, 1.0, 1.0
    for drafts in range(1, DRAFT_MAX + 1):
        alive *= chance(p, rising, drafts - 1)
        expected += alive
        best = max(best, expected / curve[drafts])
    return best


@attrs.define
class Run:
    """Rounds of one request; ``worst`` is the least share of plain speed at any time, the allowance granted."""

    curve: Sequence[float]
    controller: Goodput = attrs.field(factory=Goodput)
    seed: int = 0
    key: tuple[str, int] = COPY
    step: float = 0.0
    tokens: int = 0
    time: float = 0.0
    worst: float = 9.0
    reasons: list[str] = attrs.field(factory=list)
    drafts: list[int] = attrs.field(factory=list)
    chances: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.controller.begin(0)
        self.chances = random.Random(self.seed)

    def phase(self, rounds: int, p: float, rising: bool = False) -> float:
        """Speed over so many rounds of drafts that are right with the chance ``p``."""
        tokens, time = self.tokens, self.time
        costs = Table(self.curve, self.step)
        for _ in range(rounds):
            right = 0
            while right < DRAFT_MAX and self.chances.random() < chance(p, rising, right):
                right += 1
            (wish,) = decide([[self.controller.wish(0, self.key, DRAFT_MAX)]], costs, context=0)
            accepted = min(right, wish.drafts)
            self.controller.observe(0, wish.drafts, accepted)
            self.tokens += accepted + 1
            self.time += self.curve[wish.drafts] + self.step * wish.drafts
            self.worst = min(self.worst, (self.tokens + ALLOWANCE) / self.time)
            self.reasons.append(wish.reason)
            self.drafts.append(wish.drafts)
        return (self.tokens - tokens) / (self.time - time)


GRID = [
    (name, p, rising)
    for name in CURVES
    for p, rising in ((0.05, False), (0.3, False), (0.5, True), (0.8, False), (0.95, False))
]


def test_close_to_the_best_length_known_beforehand() -> None:
    shares = []
    for name, p, rising in GRID:
        run = Run(CURVES[name])
        # The seed's noise is in the run's own favour or not: both sides get the expectation where there is one.
        share = run.phase(1200, p, rising) / best_fixed(CURVES[name], p, rising)
        shares.append(share)
        assert share > 0.93, (name, p, rising)
        assert run.worst >= LEAST - 1e-9, (name, p, rising)
    assert statistics.mean(shares) > 0.98


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("key", [COPY, ("copies", 5), LEARNED])
def test_never_slower_than_plain_by_more_than_the_allowance(name: str, key: tuple[str, int]) -> None:
    run = Run(CURVES[name], key=key, step=0.3 if key == LEARNED else 0.0)
    run.phase(400, 0.0)
    assert run.worst >= LEAST - 1e-9
    # A long gain must not be gambled away either, nor an alternating text cheat it.
    for _ in range(6):
        run.phase(40, 0.9)
        run.phase(40, 0.0)
    assert run.worst >= LEAST - 1e-9


@pytest.mark.parametrize("name", ["flat", "plateaus", "slope"])
def test_it_follows_a_text_that_changes(name: str) -> None:
    run, curve = Run(CURVES[name]), CURVES[name]
    speeds = [run.phase(300, p) for p in (0.9, 0.05, 0.9)]
    assert speeds[0] > 0.85 * best_fixed(curve, 0.9, False)
    assert speeds[1] > 0.93
    assert speeds[2] > 0.8 * best_fixed(curve, 0.9, False)


def test_it_falls_back_where_drafts_do_not_pay_and_probes_ever_more_seldom() -> None:
    run = Run(CURVES["steep"])
    run.phase(600, 0.02)
    assert run.reasons.count("fallback") > 500
    probes = [index for index, reason in enumerate(run.reasons) if reason == "probe"]
    assert probes
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    assert max(gaps[-3:]) >= 32
    run.phase(600, 0.95)
    assert run.drafts[-50:].count(0) < 25


def test_the_top_of_a_plateau_is_taken() -> None:
    run = Run(CURVES["plateaus"])
    run.phase(400, 0.75)
    counts = {drafts: run.drafts[100:].count(drafts) for drafts in range(16)}
    assert counts[2] + counts[7] > 280
    assert counts[3] + counts[4] + counts[5] < 10


def test_a_threshold_is_kept() -> None:
    lenient, strict = (Run(CURVES["slope"], Goodput(fallback=x)) for x in (1.0, 3.0))
    lenient.phase(300, 0.6)
    strict.phase(300, 0.6)
    assert lenient.drafts.count(0) < 30
    assert strict.reasons.count("pays") < 30


def test_steps_of_the_executors_drafter_cost() -> None:
    free, dear = Run(CURVES["flat"], key=LEARNED), Run(CURVES["flat"], key=LEARNED, step=0.4)
    free.phase(200, 0.7)
    dear.phase(200, 0.7)
    assert statistics.mean(free.drafts) > 8
    assert 0 < statistics.mean(dear.drafts) < 3


def test_a_cap_is_kept() -> None:
    run = Run(CURVES["flat"], Goodput(cap=4))
    run.phase(100, 0.95)
    assert max(run.drafts) == 4
    for cap in (0, 16):
        with pytest.raises(InvalidDraftLength):
            Goodput(cap=cap)


def wish(controller: Goodput, request: int, key: tuple[str, int] = COPY, most: int = 7) -> Wish:
    return controller.wish(request, key, most)


def test_sources_are_told_apart() -> None:
    controller = Goodput()
    controller.begin(0)
    costs = Table(CURVES["steep"])
    for _ in range(40):
        for key, right in ((COPY, 7), (("copies", 1), 0)):
            (found,) = decide([[wish(controller, 0, key)]], costs, context=0)
            controller.observe(0, found.drafts, min(right, found.drafts))
    assert decide([[wish(controller, 0, COPY)]], costs, context=0)[0].drafts == 7
    assert decide([[wish(controller, 0, ("copies", 1))]], costs, context=0)[0].drafts == 0


def test_of_two_sources_the_better_is_taken() -> None:
    controller = Goodput()
    controller.begin(0)
    state = controller.state(0)
    for _ in range(30):
        state.source(LEARNED).survival.observe(3, 3)
        state.source(COPY).survival.observe(3, 0)
    costs = Table(CURVES["slope"], 0.05)
    (found,) = decide([[wish(controller, 0), wish(controller, 0, LEARNED, 3)]], costs, context=0)
    assert found.learned
    assert found.drafts == 3
    state.source(LEARNED).survival.observe(3, 0)
    dear = Table(CURVES["slope"], 5.0)
    (found,) = decide([[wish(controller, 0), wish(controller, 0, LEARNED, 3)]], dear, context=0)
    assert not found.learned


def test_a_batch_gives_rows_to_who_uses_them() -> None:
    controller = Goodput()
    costs = Table(CURVES["slope"])
    for request, right in ((0, 7), (1, 0), (2, 7)):
        controller.begin(request)
        for _ in range(20):
            controller.state(request).source(COPY).survival.observe(7, right)
    found = decide([[wish(controller, request)] for request in range(3)], costs, context=0, others=(4,))
    assert found[0].drafts > found[1].drafts + 3
    assert found[0].drafts == found[2].drafts
    few = decide([[wish(controller, request)] for request in range(3)], costs, context=0, rows_most=5)
    assert sum(one.drafts for one in few) <= 2


def test_copies_after_drafts_count_on_those() -> None:
    controller = Goodput()
    controller.begin(0)
    after = ("+copies", 5)
    for _ in range(30):
        controller.state(0).source(LEARNED).survival.observe(3, 3)
        controller.state(0).source(after).survival.observe(4, 4)
    costs = Table(CURVES["slope"], 0.05)
    (found,) = decide([[wish(controller, 0, LEARNED, 3)]], costs, context=0)
    assert found.drafts == 3
    assert controller.extend(0, after, 3, 4) == 4
    decision = controller.state(0).decision
    assert decision is not None
    assert decision.asked == 7
    assert decision.cost == pytest.approx(1 + 7 * 0.05 + 3 * 0.05)
    # Only a round in which all drafts before it were right says anything of a copy.
    before = controller.state(0).source(after).survival.chance(1)
    controller.observe(0, 7, 2, 4)
    assert controller.state(0).source(after).survival.chance(1) == before
    for _ in range(60):
        controller.state(0).source(LEARNED).survival.observe(3, 0)
    decide([[wish(controller, 0, LEARNED, 3)]], costs, context=0)
    assert controller.extend(0, after, 3, 4) == 0


def test_buckets() -> None:
    assert [bucket(length) for length in (0, 1, 2, 3, 4, 5, 8, 9, 500)] == [0, 1, 2, 3, 3, 4, 4, 5, 5]


def test_the_same_observations_give_the_same_decisions() -> None:
    first, second = (Run(CURVES["plateaus"], seed=3) for _ in range(2))
    first.phase(300, 0.6)
    second.phase(300, 0.6)
    assert first.drafts == second.drafts


def test_learned_costs_lead_to_the_plateau_too() -> None:
    controller, costs, curve = Goodput(), LearnedCosts(16), CURVES["plateaus"]
    controller.begin(0)
    chances = random.Random(5)
    drafts = []
    for _ in range(500):
        right = 0
        while right < DRAFT_MAX and chances.random() < 0.75:
            right += 1
        (found,) = decide([[wish(controller, 0, COPY, 15)]], costs, context=0)
        controller.observe(0, found.drafts, min(right, found.drafts))
        noise = 1 + 0.03 * chances.uniform(-1, 1)
        costs.observe(Spent(1, 1 + found.drafts, 0, 5000 * curve[found.drafts] * noise))
        drafts.append(found.drafts)
    assert statistics.mean(curve[count] for count in drafts[250:]) < 1.6
