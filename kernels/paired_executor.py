"""A target and a second, smaller model that drafts for it: two executors behind one ``Executor``.

The drafter's state groups stand beside the target's, so its pages, columns and rings are reserved, committed, rolled
back, audited and rebuilt in the same transactions. It is driven by its own verbs:

- *Drafting* verifies and accepts rounds of its own on the committed state. Where its state is pages alone, each step
  is one row, settled at once: rows past the committed length are scratch to the next round, whoever wrote them.
  Other state can't be moved and moved back, so there a step verifies the drafts so far once more and one row besides.
- *Settling* makes its state cover the committed rows and no others. Rows that it has from drafting stay; those that
  it lacks (the last draft's, copies of the host, rounds without drafts) it reads now.

Drafts are guesses, so a drafter that fails costs speed only: see ``kernels.paired.Faults``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import attrs
import torch

from txdecode.kernels.deciding import VerbByVerb, proposal_of
from txdecode.kernels.drafting import draw
from txdecode.kernels.paired import DRAFT_FAULTS_MAX, PREFIX, Faults, described, parts
from txdecode.transactions.executor import (
    NO_PROPOSAL,
    AuditEntry,
    CapabilityMissing,
    Description,
    Executor,
    Outcome,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
    Ticket,
)
from txdecode.transactions.target import GREEDY, NO_LOGPROBS, History, Target

SOURCE = "draft_model"
"""Name of the drafter in the log."""


@attrs.define(eq=False)
class _Ahead:
    """What the drafter has read past a request's committed rows: ``tokens``, the pending one first. ``plan`` is the
    round that it verified last, where it is still open."""

    tokens: list[int]
    plan: RoundPlan | None = None


@attrs.define(eq=False)
class _Drafting:
    """One request while it is drafted for. ``plan`` is the drafter's share of its round."""

    plan: RoundPlan
    ahead: _Ahead
    drafts: list[int] = attrs.Factory(list)
    q: list[torch.Tensor] = attrs.Factory(list)

    @property
    def wants(self) -> bool:
        """Whether the round has room for more drafts."""
        return len(self.drafts) < self.plan.width - 1


class PairedExecutor:
    """``target`` with ``drafter`` to draft for it; see ``txdecode.transactions.executor.Executor`` for the verbs.

    Under the greedy law a draft is the drafter's argmax, after the request's penalties. Under ``coupled`` it is the
    drafter's choice by the very noise that the target will use at that position. Under ``chain`` it is drawn from the
    drafter's distribution q, which goes with it, where both executors show their logits; else it is the drafter's
    argmax as a point mass.

    Raises ``VocabularyMismatch``, and ``CapabilityMissing`` for a pair that can't be driven as one.
    """

    def __init__(self, target: Executor, drafter: Executor) -> None:
        assert target is not drafter, "an executor cannot draft for itself"
        self.target = target
        self.drafter = drafter
        self._description = described(target.describe(), drafter.describe())
        self._mine, self._its = parts(target.describe(), drafter.describe())
        self._paged = all(group.kind == "pages" for group in drafter.describe().groups)
        self._samples = drafter.describe().capabilities.sampling
        self._logits = drafter if isinstance(drafter, VerbByVerb) and isinstance(target, VerbByVerb) else None
        self._ahead: dict[int, _Ahead] = {}
        self._verified: dict[int, tuple[RoundPlan, RoundPlan, tuple[int, ...]]] = {}
        self._last: frozenset[int] = frozenset()
        self._faults = Faults()

    def describe(self) -> Description:
        """Static facts; the same object each time."""
        return self._description

    @property
    def kept(self) -> frozenset[int]:
        """Requests of which it keeps anything itself."""
        return frozenset({*self._ahead, *self._verified, *self._faults.drafts, *self._faults.stale})

    def logits_of_last_launch(self) -> list[torch.Tensor]:
        """The target's; see ``VerbByVerb``."""
        assert isinstance(self.target, VerbByVerb), "the target does not show its logits"
        return self.target.logits_of_last_launch()

    # Reading.

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        """Both consume the tokens."""
        self.target.prefill([self._mine.prefill(plan) for plan in batch])
        faults = self._faults
        for plan in batch:
            if not plan.view.length:
                faults.stale.discard(plan.view.request)
        faults.fed(
            [plan.view.request for plan in batch],
            lambda: self.drafter.prefill([self._its.prefill(plan) for plan in batch]),
        )

    def verify(self, rounds: Sequence[Round]) -> None:
        """The target's forward; the drafter has no part in it."""
        mine = []
        for item in rounds:
            plan, proposal = self._mine.round(item.plan), proposal_of(item)
            self._verified[item.plan.request] = item.plan, plan, (item.plan.pending, *proposal.tokens)
            mine.append(Round(plan, item.proposal))
        self.target.verify(mine)

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        """The target's choice."""
        return self.target.accept([Round(self._share(item.plan), item.proposal) for item in rounds])

    def _share(self, plan: RoundPlan) -> RoundPlan:
        """The target's share of a plan; the one that was verified where it is that one."""
        known = self._verified.get(plan.request)
        return known[1] if known is not None and known[0] is plan else self._mine.round(plan)

    # Drafting.

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        """At most ``width - 1`` tokens for each plan, one depth after another for all of them; none where the drafter
        fails."""
        made = [NO_PROPOSAL] * len(plans)
        faults = self._faults
        wanted = [
            index
            for index, plan in enumerate(plans)
            if plan.width > 1 and not faults.off and faults.drafts.get(plan.request, 0) < DRAFT_FAULTS_MAX
        ]
        sound = [index for index in wanted if plans[index].request not in faults.drafts]
        alone = [[index] for index in wanted if plans[index].request in faults.drafts]
        for group in filter(None, (sound, *alone)):
            drafting = [self._begun(self._its.round(plans[index])) for index in group]
            try:
                self._run(drafting)
            except AssertionError:
                raise
            except Exception:
                for item in drafting:
                    request = item.plan.request
                    faults.drafts[request] = faults.drafts.get(request, 0) + 1
                    self._forget(request)
                continue
            for index, item in zip(group, drafting, strict=True):
                faults.drafts.pop(item.plan.request, None)
                made[index] = _proposal(item)
        return made

    def _begun(self, plan: RoundPlan) -> _Drafting:
        ahead = self._ahead[plan.request] = _Ahead([])
        return _Drafting(plan, ahead)

    def _forget(self, request: int) -> None:
        """What drafting left of a round. Rows that were settled are scratch, since no table covers them."""
        ahead = self._ahead.pop(request, None)
        if ahead is not None and ahead.plan is not None:
            with contextlib.suppress(Exception):
                self.drafter.abandon([ahead.plan])

    def _run(self, drafting: Sequence[_Drafting]) -> None:
        active = [item for item in drafting if item.wants]
        while active:
            rounds = [self._single(item) if self._paged else self._longer(item) for item in active]
            for item, entry in zip(active, rounds, strict=True):
                item.ahead.plan = entry.plan
            self._verify(rounds)
            tokens = self._chosen(active, rounds)
            if self._paged:
                self.drafter.settle([Settlement(entry.plan, (0,)) for entry in rounds])
            stay = []
            for item, token in zip(active, tokens, strict=True):
                # The row that was read is that of the token before.
                item.ahead.tokens = [item.plan.pending, *item.drafts]
                if self._paged:
                    item.ahead.plan = None
                if token is not None:
                    item.drafts.append(token)
                    if item.wants:
                        stay.append(item)
            active = stay

    def _single(self, item: _Drafting) -> Round:
        """The last token as a round of one row, behind what the drafter has settled."""
        plan, depth = item.plan, len(item.drafts)
        length = plan.view.length + depth
        return Round(
            attrs.evolve(
                plan,
                view=self._its.at(plan.view, length, plan.pages),
                pending=item.drafts[-1] if depth else plan.pending,
                parents=(-1,),
                rng=(plan.rng[0] + depth, plan.rng[0] + depth + 1),
                budget=1,
                target=self._target(plan.target),
                history=_followed(plan.history, item.drafts),
                borders=(),
            ),
            NO_PROPOSAL,
        )

    def _longer(self, item: _Drafting) -> Round:
        """All drafts so far once more, behind the committed state."""
        plan, count = item.plan, len(item.drafts) + 1
        shorter = attrs.evolve(plan, parents=plan.parents[:count], target=self._target(plan.target))
        return Round(shorter, Proposal(tuple(item.drafts), SOURCE))

    def _target(self, target: Target) -> Target:
        """How the drafter chooses in the place of ``target``."""
        if not self._samples:
            return GREEDY
        law = "greedy" if target.law == "chain" else target.law
        return attrs.evolve(target, law=law, logprobs=NO_LOGPROBS)

    def _draws(self, plan: RoundPlan) -> bool:
        return self._logits is not None and plan.target.law == "chain"

    def _chosen(self, active: Sequence[_Drafting], rounds: Sequence[Round]) -> list[int | None]:
        """The next draft of each; ``None`` where the drafter disagrees with what it said before."""
        drawn = {}
        if self._logits is not None and any(self._draws(item.plan) for item in active):
            for place, (item, rows) in enumerate(
                zip(active, self._logits.logits_of_last_launch(), strict=True)
            ):
                if self._draws(item.plan):
                    with torch.inference_mode():
                        token, q = draw(item.plan, rows[-1:].float(), len(item.drafts))
                    item.q.append(q)
                    drawn[place] = token
        asked = [entry for place, entry in enumerate(rounds) if place not in drawn]
        outcomes = iter(self.drafter.accept(asked) if asked else ())
        chosen: list[int | None] = []
        for place, entry in enumerate(rounds):
            if place in drawn:
                chosen.append(drawn[place])
                continue
            outcome = next(outcomes)
            whole = outcome.accepted == len(proposal_of(entry).tokens)
            chosen.append(outcome.next_token if whole else None)
        return chosen

    # The end of a round.

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """The target moves to the last row of each path, and so does the drafter."""
        moves = []
        for item in settlements:
            assert item.path == tuple(range(len(item.path))), f"path {item.path} is no chain"
            _, _, tokens = self._verified[item.plan.request]
            moves.append((self._its.round(item.plan), tokens[: len(item.path)]))
        self.target.settle([Settlement(self._share(item.plan), item.path) for item in settlements])
        for item in settlements:
            del self._verified[item.plan.request]
        follow = self._follow_pages if self._paged else self._follow
        requests = [plan.request for plan, _ in moves]
        if self._faults.fed(requests, lambda: follow(moves)):
            self._faults.followed(requests)
        else:
            for plan, _ in moves:
                self._forget(plan.request)

    def _read(self, plan: RoundPlan, tokens: tuple[int, ...]) -> int:
        """How many of the committed ``tokens`` the drafter has read while it drafted."""
        ahead = self._ahead.get(plan.request)
        if ahead is None:
            return 0
        same = 0
        while same < min(len(tokens), len(ahead.tokens)) and tokens[same] == ahead.tokens[same]:
            same += 1
        return same

    def _follow_pages(self, moves: Sequence[tuple[RoundPlan, tuple[int, ...]]]) -> None:
        """Read the rows that are missing; those past the committed ones no table will cover."""
        missing = []
        for plan, tokens in moves:
            read = self._read(plan, tokens)
            self._ahead.pop(plan.request, None)
            if read < len(tokens):
                start, end = plan.view.length + read, plan.view.length + len(tokens)
                pages = self._its.at(plan.view, end, plan.pages).pages
                where = self._its.at(plan.view, start, plan.pages)
                missing.append(PrefillPlan(where, tokens[read:], pages, ()))
        if missing:
            self.drafter.prefill(missing)

    def _follow(self, moves: Sequence[tuple[RoundPlan, tuple[int, ...]]]) -> None:
        """Settle the rounds as they were drafted where all committed rows are there. Where some are not, verify the
        committed rows of all once more: an executor settles rounds of its last ``verify``."""
        if not all(
            plan.request in self._last and self._read(plan, tokens) == len(tokens) for plan, tokens in moves
        ):
            rounds = []
            for plan, tokens in moves:
                self._forget(plan.request)
                short = attrs.evolve(plan, parents=plan.parents[: len(tokens)], target=GREEDY, history=None)
                rounds.append(Round(short, Proposal(tokens[1:], SOURCE)))
            self._verify(rounds)
        self.drafter.settle([Settlement(plan, tuple(range(len(tokens)))) for plan, tokens in moves])
        for plan, _ in moves:
            self._ahead.pop(plan.request, None)

    def _verify(self, rounds: Sequence[Round]) -> None:
        """The drafter's own."""
        self._last = frozenset(item.plan.request for item in rounds)
        self.drafter.verify(rounds)

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        """Both forget the rounds."""
        try:
            self.target.abandon([self._share(plan) for plan in plans])
        finally:
            for plan in plans:
                self._verified.pop(plan.request, None)
                self._forget(plan.request)

    def drop(self, request: int) -> None:
        """Both forget the request."""
        self._verified.pop(request, None)
        self._faults.drafts.pop(request, None)
        self._faults.stale.discard(request)
        self._forget(request)
        try:
            self.drafter.drop(request)
        finally:
            self.target.drop(request)

    def audit(self, view: SequenceView, rows: bool = False) -> tuple[AuditEntry, ...]:
        """Digests of both, the drafter's groups by their names here; without the drafter once it was given up."""
        found = self.target.audit(self._mine.view(view), rows)
        if view.request in self._faults.stale:
            return found
        its = self.drafter.audit(self._its.view(view), rows)
        return (*found, *(attrs.evolve(entry, group=PREFIX + entry.group) for entry in its))

    # The fused style.

    def launch(self, launch: int, rounds: Sequence[Round]) -> Ticket:
        """Not fused: raises ``CapabilityMissing``."""
        raise CapabilityMissing("a pair is driven verb by verb; it has no fused launch")

    def collect(self, ticket: Ticket) -> list[Outcome] | None:
        """Not fused: raises ``CapabilityMissing``."""
        raise CapabilityMissing("a pair is driven verb by verb; it has no fused launch to collect")


def _followed(history: History | None, drafts: Sequence[int]) -> History | None:
    """The history of the row after ``drafts``."""
    if history is None or not drafts:
        return history
    counts = dict(history.counts)
    for token in drafts:
        counts[token] = counts.get(token, 0) + 1
    return History(history.prompt, counts, history.generated + len(drafts))


def _proposal(item: _Drafting) -> Proposal:
    if not item.drafts:
        return NO_PROPOSAL
    tokens, law = tuple(item.drafts), item.plan.target.law
    if law == "chain" and item.q:
        return Proposal(tokens, SOURCE, "sampled", torch.stack(item.q))
    # The coupled law accepts by equality, and looks at no distribution.
    return Proposal(tokens, SOURCE, "sampled" if law == "coupled" else "point")
