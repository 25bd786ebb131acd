"""One round of one request, from begin to its end."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from txdecode.state.changes import Ids, PerGroup
from txdecode.state.ledgers import Ledgers
from txdecode.state.reservations import Reservation
from txdecode.transactions.clip import ClipReason, ClipRules
from txdecode.transactions.executor import AuditEntry, Outcome, Proposal, RoundPlan, SequenceView, Ticket
from txdecode.transactions.phase import Phase, Signal, step
from txdecode.transactions.target import GREEDY, History, Target, TokenLogprobs

Observer = Callable[[int, Phase, Signal, Phase], None]
"""Told of every transition: request, phase before, signal, phase after."""


@attrs.frozen
class Ask:
    """What the runtime wants of a round: at most ``drafts`` drafts, ended by ``rules``. ``propose`` is the
    host drafter: it must not fail and keeps to the count it is given; ``None`` where there is none, or as its answer,
    leaves the round to the executor's drafter, which is asked for at most ``depth`` drafts (all of them).
    ``extend(drafts, count)`` is what the host expects after those, under the same rules. ``target`` is how the tokens
    are chosen. ``decision()``: what the record is to say of how the number of drafts was chosen."""

    request: int
    drafts: int
    rules: ClipRules
    propose: Callable[[int], Proposal | None] | None = None
    target: Target = GREEDY
    extend: Callable[[Ids, int], Proposal] | None = None
    depth: int | None = None
    decision: Callable[[], Ids] | None = None


@attrs.define
class Transaction:
    """A round with its reservation. ``ended_by`` is the signal that ended it, once it is over."""

    ask: Ask
    plan: RoundPlan
    reservation: Reservation
    phase: Phase = Phase.IDLE
    proposal: Proposal | None = None
    outcome: Outcome | None = None
    emitted: Ids = ()
    clip: ClipReason = "none"
    ended_by: Signal | None = None
    dirty: bool = False
    before: tuple[AuditEntry, ...] | None = None

    @property
    def request(self) -> int:
        """The request whose round this is."""
        return self.plan.view.request

    @property
    def open(self) -> bool:
        """Whether the round is still under way."""
        return self.ended_by is None

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Logprobs of the emitted tokens, where they are wanted."""
        assert self.outcome is not None
        return self.outcome.logprobs[: len(self.emitted)]

    @property
    def path(self) -> Ids:
        """The committed rows: the first t of the accepted path."""
        assert self.outcome is not None
        return self.outcome.path[: len(self.emitted)]

    def signal(self, signal: Signal, observe: Observer | None) -> None:
        """Move to the next phase; raises ``IllegalTransition``."""
        before = self.phase
        self.phase = step(before, signal)
        if observe is not None:
            observe(self.request, before, signal, self.phase)


@attrs.define
class Launch:
    """The rounds that share a forward. ``ticket`` is set while a fused program holds them: those in ``flown``,
    since a round that ended before the program began is not in it."""

    number: int
    transactions: list[Transaction]
    ticket: Ticket | None = None
    flown: list[Transaction] = attrs.Factory(list)
    fault: Exception | None = None
    retained: list[Reservation] = attrs.Factory(list)
    retired: list[Reservation] = attrs.Factory(list)
    times: tuple[int, int, int] = (0, 0, 0)

    @property
    def open(self) -> list[Transaction]:
        """Rounds still under way."""
        return [tx for tx in self.transactions if tx.ended_by is None]

    @property
    def done(self) -> bool:
        """Whether every round is over and no program still holds their pages."""
        return self.ticket is None and not self.open


def view(ledgers: Ledgers, request: int) -> SequenceView:
    """Where the committed state of a resident request lies."""
    state = ledgers.tokens.sequences[request]
    return SequenceView(
        request,
        state.epoch,
        state.consumed,
        ledgers.pages.tables.get(request, ()),
        ledgers.recurrent.units.get(request, ()),
        ledgers.history.units.get(request, ()),
    )


def history(ledgers: Ledgers, request: int, target: Target) -> History | None:
    """The committed tokens that a round's logits are conditioned on; ``None`` where they are not."""
    if not target.changes_logits:
        return None
    state = ledgers.tokens.sequences[request]
    counts = dict(state.counts) if target.penalises else {}
    return History(state.prompt, counts, len(state.generated))


def extended(table: PerGroup, reserved: PerGroup) -> PerGroup:
    """Page tables with the reserved pages appended; the same object where nothing was reserved."""
    if not any(reserved):
        return table
    return tuple(old + new for old, new in zip(table, reserved, strict=True))
