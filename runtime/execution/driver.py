"""The events of a log, run again on an executor.

Each round is planned on the ledgers as they are before its event, and run with the recorded drafts, width, pages
and columns. Rounds of one launch run together, as they did: that is cheaper than one by one, and where an executor
is not row-invariant its bits depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from txdecode.runtime.drafters.spelling import HOSTED, learned_part
from txdecode.runtime.errors import EventUndecodable, InvalidRequest
from txdecode.runtime.execution.compare import difference, drafts_differ, entries_differ
from txdecode.runtime.execution.errors import Difference, ExecutionDivergence
from txdecode.runtime.execution.plans import (
    Asked,
    Planned,
    Prefill,
    Step,
    asked_of,
    completed,
    plan_prefill,
    plan_round,
    restoring,
    with_copies,
)
from txdecode.runtime.request import Parameters
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.audit import as_recorded, entries_from, has_draft_model
from txdecode.transactions.contract import check_count, check_outcome
from txdecode.transactions.events import (
    Event,
    PrefillCommitted,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RoundRolledBack,
    RuntimeNote,
    Snapshot,
    StateAudited,
)
from txdecode.transactions.executor import (
    Executor,
    Outcome,
    Proposal,
    Round,
    RoundPlan,
    Settlement,
)
from txdecode.transactions.transaction import view

SAMPLED = 1
"""Number of the law of a proposal that was drawn from q, which only the executor's own drafter does."""


@attrs.define
class Counts:
    """What was run and compared. ``tokens`` are emitted ids, ``entries`` digests of audits; ``audits_skipped`` are
    those that say nothing here, since bits may differ."""

    prefills: int = 0
    rounds: int = 0
    tokens: int = 0
    logprobs: int = 0
    audits: int = 0
    entries: int = 0
    audits_skipped: int = 0


@attrs.frozen
class Failed:
    """The round at which execution parted from the log: its plan, complete, and what came out of it now. ``drafted``
    is what the executor's own drafter proposes now, where that is what differs; the round may then have no outcome.
    The device state is the one before the round; ``mates`` are the plans of all rounds of the launch."""

    item: Planned
    outcome: Outcome | None
    drafted: tuple[int, ...] | None
    mates: tuple[RoundPlan, ...]


class Reexecutor:
    """Runs events on ``executor``. ``before`` is called with each event while ``ledgers`` are still those before it,
    ``after`` once it is folded, ``flush`` at the end.

    ``request`` limits it to one request. ``exact`` says that the executor computes the bits of the recorded run:
    then audits and logprobs are compared too. ``own`` says that proposals of other names than those of host drafters
    came from the executor. Everything raises ``ExecutionDivergence`` and ``ExecutorFault``.
    """

    def __init__(
        self,
        executor: Executor,
        ledgers: Ledgers,
        path: Path,
        *,
        request: int | None = None,
        exact: bool = True,
        own: bool = False,
        note: str = "",
    ) -> None:
        self.executor = executor
        self.ledgers = ledgers
        self.counts = Counts()
        self.failed: Failed | None = None
        self.asked: dict[int, Asked] = {}
        self._path = path
        self._description = executor.describe()
        self._request = request
        self._exact = exact
        self._own = own and self._description.capabilities.drafts
        self._note = note
        self._group: list[Step] = []
        self._launches = 0
        self._attempts: dict[tuple[int, int], int] = {}
        self._restored: set[int] = set()

    # Events.

    def before(self, sequence: int, event: Event | None) -> Step | None:
        """Run what must have run before this event; its own plan, where it has one."""
        if self._group and not self._joins(event):
            self.flush()
        request = getattr(event, "request", None)
        if isinstance(event, RoundCommitted | RoundRolledBack):
            attempt = self._attempts.get((event.request, event.epoch), 0)
            self._attempts[event.request, event.epoch] = attempt + 1
        if isinstance(event, RuntimeNote) and event.kind == "recovered":
            # Another drafter may have been given then.
            own = learned_part(event.data.get("draft", "executor" if self._own else ""))
            self._own = bool(own) and self._description.capabilities.drafts
        if event is None or not self._concerns(request):
            return None
        if isinstance(event, RoundCommitted):
            exact = self._exact and event.request not in self._restored
            return plan_round(self.ledgers, sequence, event, self.asked.get(event.request), attempt, exact)
        if isinstance(event, PrefillCommitted):
            return plan_prefill(self.ledgers, sequence, event)
        if isinstance(event, StateAudited):
            self._audit(sequence, event)
        elif isinstance(event, RequestPreempted | RequestFinished):
            self._leave(event.request)
        return None

    def after(self, event: Event | None, step: Step | None) -> None:
        """The event is in the ledgers."""
        if step is not None:
            self._group.append(step)
        elif isinstance(event, RequestSubmitted):
            self._submitted(event)
        elif isinstance(event, Snapshot) and not self.asked:
            self._restore(event)

    def _concerns(self, request: int | None) -> bool:
        return request is not None and self._request in (None, request)

    def _joins(self, event: Event | None) -> bool:
        """Whether an event is of the same call as those that wait."""
        first = self._group[0].event
        return (
            isinstance(event, PrefillCommitted | RoundCommitted)
            and type(event) is type(first)
            and event.launch == first.launch
            and all(event.request != step.event.request for step in self._group)
        )

    def _submitted(self, event: RequestSubmitted) -> None:
        try:
            parameters = Parameters.from_event(event)
        except (KeyError, TypeError, InvalidRequest) as error:
            raise EventUndecodable(
                f"'{self._path}', request {event.request}: its recorded parameters cannot be read ({error}); "
                f"execute the log with the version that wrote it"
            ) from error
        stops = tuple(sorted(event.stop_ids))
        self.asked[event.request] = Asked(
            parameters.sampling.target(stops), frozenset(stops), bool(parameters.stop)
        )

    def _restore(self, event: Snapshot) -> None:
        """A log that begins with a snapshot: device state is what the tokens make it."""
        for unfinished in event.unfinished:
            request = unfinished.submitted.request
            self._submitted(unfinished.submitted)
            epoch = self.ledgers.tokens.sequences[request].epoch
            self._attempts[request, epoch] = unfinished.attempts
        for request, state in self.ledgers.tokens.sequences.items():
            if state.resident and self._concerns(request):
                for plan in restoring(self.ledgers, request, self._description.prefill_rows_max):
                    self.executor.prefill([plan])
                if not self._description.capabilities.row_invariant:
                    self._restored.add(request)

    def _leave(self, request: int) -> None:
        self._restored.discard(request)
        self.executor.drop(request)

    def flush(self) -> None:
        """Run the call that waits."""
        group, self._group = self._group, []
        most = self._description.batch_max
        for start in range(0, len(group), most):
            part = group[start : start + most]
            if prefills := [step for step in part if isinstance(step, Prefill)]:
                self.executor.prefill([step.plan for step in prefills])
                self.counts.prefills += len(prefills)
        rounds = completed(self.ledgers, [step for step in group if isinstance(step, Planned)])
        for start in range(0, len(rounds), most):
            self._rounds(rounds[start : start + most])

    # Rounds.

    def _rounds(self, group: list[Planned]) -> None:
        mates = tuple(item.plan for item in group)
        rounds = [Round(item.plan, self._offered(item)) for item in group]
        if not self._description.capabilities.fused:
            rounds = self._drafted(group, rounds, mates)
        outcomes = run(self.executor, rounds, self._next_launch())
        for item, entry, outcome in zip(group, rounds, outcomes, strict=True):
            check_outcome(
                item.event.request, outcome, entry.proposal, item.plan.width - 1, self._description.vocab_size
            )
            found = difference(item, outcome)
            if found is not None:
                self._diverge(item, outcome, mates, found)
        self.executor.settle([Settlement(item.plan, item.path) for item in group])
        for item in group:
            self.counts.rounds += 1
            self.counts.tokens += len(item.event.emitted)
            self.counts.logprobs += len(item.event.logprobs) if item.exact else 0
            if item.event.clip:
                self._leave(item.event.request)

    def _diverge(
        self,
        item: Planned,
        outcome: Outcome | None,
        mates: tuple[RoundPlan, ...],
        found: Difference,
        drafted: tuple[int, ...] | None = None,
    ) -> None:
        event = item.event
        if outcome is not None and found.phase == "draft":
            drafted = outcome.proposal.tokens
        self.failed = Failed(item, outcome, drafted, mates)
        raise ExecutionDivergence(
            self._path,
            item.sequence,
            type(event).__name__,
            event.request,
            event.epoch,
            event.ordinal,
            found,
            self._note,
        )

    def _next_launch(self) -> int:
        self._launches += 1
        return self._launches

    def drew(self, event: RoundCommitted) -> bool:
        """Whether the executor itself proposed: then it is asked to do so again."""
        return event.law == SAMPLED or (self._own and event.source not in HOSTED)

    def _offered(self, item: Planned) -> Proposal | None:
        if self.drew(item.event):
            return None
        return Proposal(item.event.drafts, item.event.source)

    def _drafted(
        self, group: Sequence[Planned], rounds: list[Round], mates: tuple[RoundPlan, ...]
    ) -> list[Round]:
        """Rounds of a verb by verb executor with what its own drafter proposes now, which must be what it did."""
        plans = [
            asked_of(item.event, entry.plan)
            for item, entry in zip(group, rounds, strict=True)
            if entry.proposal is None
        ]
        if not plans:
            return rounds
        proposals = self.executor.draft(plans)
        check_count("proposals", len(proposals), len(plans))
        drawn = iter(proposals)
        made = [
            entry if entry.proposal is not None else Round(entry.plan, with_copies(item.event, next(drawn)))
            for item, entry in zip(group, rounds, strict=True)
        ]
        for item, entry in zip(group, made, strict=True):
            assert entry.proposal is not None
            found = drafts_differ(item.event, entry.proposal)
            if found is not None:
                self._diverge(item, None, mates, found, entry.proposal.tokens)
        return made

    # Audits.

    def _audit(self, sequence: int, event: StateAudited) -> None:
        state = self.ledgers.tokens.sequences.get(event.request)
        recorded = event.epoch, event.consumed
        now = (state.epoch, state.consumed) if state is not None and state.resident else None
        if recorded != now:
            at = Difference("audit", "tokens", "epoch and tokens consumed", recorded, now)
            raise self._wrong_audit(sequence, event, at)
        if not self._exact or event.request in self._restored:
            self.counts.audits_skipped += 1
            return
        expected = entries_from(event.entries)
        where = view(self.ledgers, event.request)
        rows = any(entry.row >= 0 for entry in expected)
        found = self.executor.audit(where, True) if rows else self.executor.audit(where)
        drafts = has_draft_model(entry.group for entry in expected)
        found = as_recorded(self.executor.describe().groups, drafts, found)
        at_fault = entries_differ(event.request, expected, found)
        if at_fault is not None:
            raise self._wrong_audit(sequence, event, at_fault)
        self.counts.audits += 1
        self.counts.entries += len(expected)

    def _wrong_audit(self, sequence: int, event: StateAudited, at: Difference) -> ExecutionDivergence:
        return ExecutionDivergence(
            self._path, sequence, "StateAudited", event.request, event.epoch, event.ordinal, at, self._note
        )


def run(executor: Executor, rounds: Sequence[Round], launch: int) -> list[Outcome]:
    """Outcomes of the rounds, in either style. A fused program is waited for."""
    if executor.describe().capabilities.fused:
        ticket = executor.launch(launch, rounds)
        outcomes = None
        while outcomes is None:
            outcomes = executor.collect(ticket)
    else:
        executor.verify(rounds)
        outcomes = executor.accept(rounds)
    check_count("outcomes", len(outcomes), len(rounds))
    return outcomes
