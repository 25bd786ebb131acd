"""What a round that was decided says in the log. Pure."""

from __future__ import annotations

from txdecode.state.changes import PerGroup
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.clip import CLIP_REASONS
from txdecode.transactions.events import RoundCommitted
from txdecode.transactions.transaction import Launch, Transaction

_LAW_NUMBER = {"point": 0, "sampled": 1}


def round_committed(ledgers: Ledgers, launch: Launch, tx: Transaction, now: int) -> RoundCommitted:
    """The event of a round that was decided; ``now`` is in microseconds since the journal was opened."""
    assert tx.outcome is not None
    proposal, plan = tx.outcome.proposal, tx.plan
    count = len(tx.emitted)
    ends = tx.clip != "none"
    adopted, columns = _kept(ledgers, tx, count)
    return RoundCommitted(
        plan.view.request,
        plan.view.epoch,
        plan.ordinal,
        launch.number,
        proposal.source,
        _LAW_NUMBER[proposal.law],
        proposal.tokens,
        len(proposal.tokens) + 1,
        tx.outcome.accepted,
        CLIP_REASONS.index(tx.clip),
        tx.emitted,
        (),
        () if ends else adopted,
        plan.view.pages if ends else (),
        () if ends else columns,
        tuple(position + count for position in ledgers.rng.streams[tx.request].positions),
        (now, *launch.times),
        logprobs=tx.logprobs,
        copied=proposal.copied,
        decision=() if tx.ask.decision is None else tx.ask.decision(),
    )


def _kept(ledgers: Ledgers, tx: Transaction, count: int) -> tuple[PerGroup, tuple[int, ...]]:
    """The reserved pages that ``count`` rows reach, and the column that holds the state after the last of them."""
    where = tx.plan.view
    adopted = tuple(
        pages[: ledgers.pages.needed(g, where.length + count) - len(where.pages[g])]
        for g, pages in enumerate(tx.reservation.pages)
    )
    last = tx.path[-1]
    return adopted, tuple(
        columns[last if group.columns == "row" else 0]
        for group, columns in zip(ledgers.recurrent.groups, tx.plan.columns, strict=True)
    )
