"""Who drafts a round: the host, the executor, or the host after the executor.

host asked ─ proposes ──────────────────────────────── its drafts
           └ leaves it ─ executor drafts ─ host asked ─ learned drafts, then copies
                                           └ nothing ── learned drafts
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txdecode.transactions.contract import check_count, check_drafted, check_proposal
from txdecode.transactions.executor import NO_PROPOSAL, Executor, Proposal
from txdecode.transactions.transaction import Transaction


def draft(executor: Executor, rounds: Sequence[Transaction]) -> None:
    """Give every round its proposal; ``None`` stays where a fused executor will draft. Raises ``ExecutorFault``."""
    description = executor.describe()
    capabilities, vocab_size = description.capabilities, description.vocab_size
    for tx in rounds:
        propose = tx.ask.propose
        if propose is not None:
            tx.proposal = propose(tx.ask.drafts) if tx.ask.drafts else NO_PROPOSAL
            check_proposal(tx.proposal, tx.ask.drafts, vocab_size)
    learned = [tx for tx in rounds if tx.proposal is None]
    if not learned:
        return
    if not capabilities.drafts:
        for tx in learned:
            tx.proposal = NO_PROPOSAL
    elif not capabilities.fused:
        depths = [
            tx.ask.drafts if tx.ask.depth is None else min(tx.ask.depth, tx.ask.drafts) for tx in learned
        ]
        plans = [tx.plan.narrowed(depth) for tx, depth in zip(learned, depths, strict=True)]
        proposals = executor.draft(plans)
        check_count("proposals", len(proposals), len(learned))
        for tx, depth, proposal in zip(learned, depths, proposals, strict=True):
            check_drafted(proposal, depth, vocab_size)
            tx.proposal = _extended(tx, proposal)
            check_proposal(tx.proposal, tx.ask.drafts, vocab_size)


def _extended(tx: Transaction, proposal: Proposal) -> Proposal:
    """The executor's drafts with what the host expects after them, as far as there is room."""
    room = tx.ask.drafts - len(proposal.tokens)
    if tx.ask.extend is None or room <= 0:
        return proposal
    return appended(proposal, tx.ask.extend(proposal.tokens, room))


def appended(proposal: Proposal, copy: Proposal) -> Proposal:
    """One proposal of an executor's drafts and a copy of the host after them."""
    if not copy.tokens:
        return proposal
    if not proposal.tokens:
        return copy
    return attrs.evolve(
        proposal,
        tokens=(*proposal.tokens, *copy.tokens),
        source=f"{proposal.source}+{copy.source}",
        copied=len(copy.tokens),
    )
