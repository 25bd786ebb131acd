"""Where what comes out of an execution differs from what the log says. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txdecode.runtime.execution.errors import Difference
from txdecode.runtime.execution.plans import Planned, clip_agrees
from txdecode.transactions.events import RoundCommitted
from txdecode.transactions.executor import AuditEntry, Outcome, Proposal
from txdecode.transactions.rebuild import place


def drafts_differ(event: RoundCommitted, proposal: Proposal) -> Difference | None:
    """Where the executor's own drafter proposes something else now."""
    if event.drafts == proposal.tokens:
        return None
    return Difference("draft", "drafts", *_first("drafts", event.drafts, proposal.tokens))


def difference(item: Planned, outcome: Outcome) -> Difference | None:
    """Where an outcome is not what the log says: drafts, accepted, emitted ids, clip, logprobs."""
    event = item.event
    drafts = drafts_differ(event, outcome.proposal)
    if drafts is not None:
        return drafts
    if event.accepted != outcome.accepted:
        return Difference("accept", "tokens", "accepted", event.accepted, outcome.accepted)
    candidates = (*outcome.proposal.tokens[: outcome.accepted], outcome.next_token)[: len(event.emitted)]
    if candidates != event.emitted:
        return Difference("accept", "tokens", *_first("emitted", event.emitted, candidates))
    clipped = clip_agrees(item, outcome)
    if clipped is not None:
        return Difference("accept", "tokens", "clip", *clipped)
    if not item.exact:
        return None
    logprobs = outcome.logprobs[: len(event.emitted)]
    if event.logprobs != logprobs:
        return Difference("accept", "logprobs", *_first("logprobs", event.logprobs, logprobs))
    return None


def entries_differ(
    request: int, expected: Sequence[AuditEntry], found: Sequence[AuditEntry]
) -> Difference | None:
    """The first piece of device state that is not what an audit says."""
    for wanted, entry in zip(expected, found, strict=False):
        if wanted != entry:
            field, where = place(request, wanted), (wanted.layer, wanted.index, wanted.row)
            if attrs.evolve(entry, digest=0) != attrs.evolve(wanted, digest=0):
                return Difference("audit", wanted.group, field, "an entry", place(request, entry), *where)
            digests = f"{wanted.digest:016x}", f"{entry.digest:016x}"
            return Difference("audit", wanted.group, field, *digests, *where)
    if len(expected) != len(found):
        return Difference("audit", "tokens", "number of audit entries", len(expected), len(found))
    return None


def _first(name: str, expected: Sequence[object], found: Sequence[object]) -> tuple[str, object, object]:
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return f"{name}[{index}]", one, other
    return f"number of {name}", len(expected), len(found)
