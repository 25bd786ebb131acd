"""Why a round came out otherwise than its log says.

The executor itself is asked again, from the same device state, with one thing changed: random words at other
positions or of another seed, other penalty counts. What reproduces the record explains it. Logits are not part of
the protocol and are not needed.

One token can come about in many ways. Where logprobs are recorded they must be reproduced too, to the bit, which
tells words from counts; without them all explanations that fit are given, those of which fewer were tried first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import attrs

from txdecode.runtime.execution.compare import difference, drafts_differ
from txdecode.runtime.execution.driver import Failed, run
from txdecode.runtime.execution.plans import asked_of, with_copies
from txdecode.transactions.executor import (
    Executor,
    Outcome,
    Proposal,
    Round,
    RoundPlan,
    Settlement,
)
from txdecode.transactions.target import History

Ledger = Literal["rng", "tokens", "acceptance", "logits", "drafter"]

SHIFTS = range(-16, 17)
SEEDS_MAX = 16
COUNTED_MAX = 32
MOST_WRONG = 4


@attrs.frozen
class Explanation:
    """``ledger`` is whose content, were it ``found`` in ``field`` and not ``expected``, gives what was recorded:
    ``rng``, ``tokens`` (counts), ``acceptance``. Where nothing on the host does, ``logits`` (device state,
    kernels) or ``drafter`` (its state), with what comes out now and what was recorded."""

    ledger: Ledger
    field: str
    expected: object
    found: object


Guess = tuple[Explanation, RoundPlan]


class Explainer:
    """Asks ``executor``, whose device state is the one before the round that failed, with changed plans.

    ``drew`` says that its own drafter proposed in that round. ``seeds`` are those of the log's requests. ``tried``
    counts the plans that were run.
    """

    def __init__(self, executor: Executor, failed: Failed, drew: bool, seeds: Mapping[int, int]) -> None:
        self.tried = 0
        self._executor = executor
        self._fused = executor.describe().capabilities.fused
        self._item = failed.item
        self._drew = drew
        self._seeds = seeds
        executor.abandon(failed.mates)
        self._outcome = failed.outcome
        self._drafted = failed.drafted
        if failed.drafted is not None:
            # With the recorded drafts, since its drafter proposes others now.
            event = self._item.event
            self._outcome = self._run(Round(self._item.plan, Proposal(event.drafts, event.source)))

    def explanations(self) -> list[Explanation]:
        """All that fit, the likeliest first; never empty."""
        made = [*self._one_less()]
        plan = self._item.plan
        # Counts of the tokens that changed places are few, so that one of them fits by chance less often.
        close, far = self._counted()
        guesses = (
            *_counts(plan, close),
            *_shifts(plan, self._item.generated),
            *_other_seeds(plan, self._seeds),
        )
        made.extend(guess for guess, changed in guesses if self._fits(changed))
        if not made:
            made.extend(guess for guess, changed in _counts(plan, far) if self._fits(changed))
        made.extend(self._more_accepted())
        if not made:
            made.append(self._unexplained())
        return made

    # Asking.

    def _run(self, entry: Round) -> Outcome:
        self.tried += 1
        (outcome,) = run(self._executor, [entry], (1 << 40) + self.tried)
        self._executor.abandon([entry.plan])
        return outcome

    def _fits(self, plan: RoundPlan) -> bool:
        """Whether a changed plan gives what was recorded, down to its drafts."""
        changed = attrs.evolve(self._item, plan=plan)
        return any(difference(changed, self._run(entry)) is None for entry in self._offers(plan))

    def _offers(self, plan: RoundPlan) -> Iterator[Round]:
        """The recorded drafts; of the executor's own drafter with their q, drawn under the changed plan and under
        the true one, as far as it draws them again."""
        event = self._item.event
        if not self._drew:
            yield Round(plan, Proposal(event.drafts, event.source))
        elif self._fused:
            yield Round(plan, None)
        else:
            for drawn_by in (plan, self._item.plan):
                (drawn,) = self._executor.draft([asked_of(event, drawn_by)])
                proposal = with_copies(event, drawn)
                if drafts_differ(event, proposal) is None:
                    yield Round(plan, proposal)
                else:
                    self._executor.abandon([drawn_by])

    # What may have been otherwise.

    def _counted(self) -> tuple[list[int], list[int]]:
        """Tokens whose counts may be wrong: those that changed places and the last one, and all others."""
        history = self._item.plan.history
        if history is None or not self._item.plan.target.penalises:
            return [], []
        event, plan = self._item.event, self._item.plan
        close = [plan.pending]
        if self._outcome is not None:
            now = _candidates(self._outcome)
            close += next(([a, b] for a, b in zip(event.emitted, now, strict=False) if a != b), [])
        close = list(dict.fromkeys(close))
        others = dict.fromkeys((*event.emitted, *event.drafts, *history.counts))
        return close, [token for token in others if token not in close][:COUNTED_MAX]

    def _one_less(self) -> Iterator[Explanation]:
        """Right tokens, and a smaller number of them."""
        event, now = self._item.event, self._outcome
        if now is None or now.proposal.tokens != event.drafts or event.accepted >= now.accepted:
            return
        if event.emitted == _candidates(now)[: len(event.emitted)]:
            yield Explanation("acceptance", "accepted", now.accepted, event.accepted)

    def _more_accepted(self) -> Iterator[Explanation]:
        """A draft that stood though it is wrong, and the right token after it. This settles the rows up to there:
        nothing else can be asked after it."""
        event, now, plan = self._item.event, self._outcome, self._item.plan
        if now is None or now.proposal.tokens != event.drafts or event.accepted <= now.accepted:
            return
        if event.clip and len(event.emitted) <= event.accepted:
            # All that was emitted are drafts; the token after them is not known.
            yield Explanation("acceptance", "accepted", now.accepted, event.accepted)
            return
        next_token = _after_accepting(self._executor, plan, now.proposal, event.accepted)
        if next_token == event.emitted[-1]:
            yield Explanation("acceptance", "accepted", now.accepted, event.accepted)

    def _unexplained(self) -> Explanation:
        assert self._outcome is not None
        at = difference(self._item, self._outcome)
        # Under the chain law the outcome depends on q, which was not offered.
        if self._drafted is not None and (at is None or self._item.plan.target.law == "chain"):
            return Explanation("drafter", "drafts", self._drafted, self._item.event.drafts)
        assert at is not None
        ledger: Ledger = "tokens" if at.field == "clip" else "logits"
        return Explanation(ledger, at.field, at.found, at.expected)


def _candidates(outcome: Outcome) -> tuple[int, ...]:
    return (*outcome.proposal.tokens[: outcome.accepted], outcome.next_token)


def _shifts(plan: RoundPlan, generated: int) -> Iterator[Guess]:
    """Words of other positions: some to either side, or counted from the first generated token."""
    if plan.target.law == "greedy":
        return
    start, stop = plan.rng
    moved = sorted((start + shift for shift in SHIFTS if shift), key=lambda to: abs(to - start))
    for first in dict.fromkeys((*moved, generated, plan.ordinal, 0)):
        if first >= 0 and first != start:
            guess = Explanation("rng", "position", start, first)
            yield guess, attrs.evolve(plan, rng=(first, first + stop - start))


def _other_seeds(plan: RoundPlan, seeds: Mapping[int, int]) -> Iterator[Guess]:
    if plan.target.law == "greedy":
        return
    others = sorted({seed for seed in seeds.values() if seed != plan.target.seed})
    for seed in others[:SEEDS_MAX]:
        guess = Explanation("rng", "seed", plan.target.seed, seed)
        yield guess, attrs.evolve(plan, target=attrs.evolve(plan.target, seed=seed))


def _counts(plan: RoundPlan, tokens: list[int]) -> Iterator[Guess]:
    """One token counted too often or too seldom."""
    history = plan.history
    if history is None:
        return
    for token in tokens:
        count = history.counts.get(token, 0)
        near = sorted(range(max(count - MOST_WRONG, 0), count + MOST_WRONG + 1), key=lambda n: abs(n - count))
        for wrong in dict.fromkeys((*near, 0, 2 * count)):
            if wrong != count:
                counts = {**history.counts, token: wrong}
                if not wrong:
                    del counts[token]
                changed = History(history.prompt, counts, history.generated)
                guess = Explanation("tokens", f"count of token {token}", count, wrong)
                yield guess, attrs.evolve(plan, history=changed)


def _after_accepting(executor: Executor, plan: RoundPlan, proposal: Proposal, accepted: int) -> int:
    """The token after ``accepted`` drafts, right or wrong."""
    (outcome,) = run(executor, [Round(plan, proposal)], 1 << 41)
    del outcome
    executor.settle([Settlement(plan, tuple(range(accepted)))])
    view = attrs.evolve(
        plan.view,
        length=plan.view.length + accepted,
        pages=plan.pages,
        # One a round holds it wherever the path ends.
        columns=tuple(columns[min(accepted, len(columns)) - 1] for columns in plan.columns),
    )
    history = plan.history
    if history is not None:
        counts = dict(history.counts)
        for token in proposal.tokens[:accepted]:
            counts[token] = counts.get(token, 0) + 1
        history = History(history.prompt, counts, history.generated + accepted)
    start = plan.rng[0] + accepted
    after = attrs.evolve(
        plan,
        view=view,
        ordinal=plan.ordinal + 1,
        pending=proposal.tokens[accepted - 1],
        parents=(-1,),
        columns=tuple(
            # What a round reserves but once is used up; the column before the round is free by now.
            columns[accepted : accepted + 1] or (before,)
            for columns, before in zip(plan.columns, plan.view.columns, strict=True)
        ),
        rng=(start, start + 1),
        budget=1,
        history=history,
    )
    (outcome,) = run(executor, [Round(after, Proposal())], (1 << 41) + 1)
    executor.abandon([after])
    return outcome.next_token


__all__ = ["Explainer", "Explanation"]
