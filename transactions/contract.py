"""What an executor's answers must satisfy before anything is decided by them."""

from __future__ import annotations

from txdecode.transactions.executor import ExecutorFault, Outcome, Proposal
from txdecode.transactions.target import NO_LOGPROBS, Target


def check_count(what: str, found: int, expected: int) -> None:
    """One answer a round; raises ``ExecutorFault``."""
    if found != expected:
        raise ExecutorFault(f"expected {expected} {what}, one a round, the executor returned {found}")


def check_proposal(proposal: Proposal | None, asked: int, vocab_size: int) -> None:
    """At most ``asked`` drafts, all of them in the vocabulary; raises ``ExecutorFault``."""
    if proposal is None:
        return
    if proposal.law not in ("point", "sampled"):
        raise ExecutorFault(f"expected the law 'point' or 'sampled' of a proposal, found {proposal.law!r}")
    if type(proposal.source) is not str or not proposal.source.isprintable():
        raise ExecutorFault(f"expected a printable name of a drafter, found {proposal.source!r}")
    copied = proposal.copied
    if type(copied) is not int or not 0 <= copied <= len(proposal.tokens):
        raise ExecutorFault(
            f"drafter '{proposal.source}' said that {copied!r} of {len(proposal.tokens)} drafts are copied"
        )
    if not proposal.tokens:
        return
    if len(proposal.tokens) > asked:
        raise ExecutorFault(f"drafter '{proposal.source}' proposed {len(proposal.tokens)}, asked {asked}")
    if not all(type(token) is int and 0 <= token < vocab_size for token in proposal.tokens):
        raise ExecutorFault(
            f"drafter '{proposal.source}' proposed an id outside 0..{vocab_size - 1}, or no integer"
        )


def check_drafted(proposal: Proposal, asked: int, vocab_size: int) -> None:
    """What an executor drafts itself holds no copies of the host; raises ``ExecutorFault``."""
    check_proposal(proposal, asked, vocab_size)
    if proposal.copied:
        raise ExecutorFault(
            f"drafter '{proposal.source}' of the executor said that {proposal.copied} drafts were copied by the host"
        )


def check_outcome(
    request: int, outcome: Outcome, offered: Proposal | None, asked: int, vocab_size: int
) -> None:
    """The outcome is of the drafts that were offered (``None``: the executor drafted at most ``asked`` itself),
    its path a chain of their rows, its token in the vocabulary; raises ``ExecutorFault``."""
    rows = len(outcome.proposal.tokens) + 1
    if offered is None:
        check_drafted(outcome.proposal, asked, vocab_size)
    elif (outcome.proposal.tokens, outcome.proposal.copied) != (offered.tokens, offered.copied):
        raise ExecutorFault(f"request {request}: the outcome is of other drafts than were offered")
    if outcome.path != tuple(range(len(outcome.path))) or not 1 <= len(outcome.path) <= rows:
        raise ExecutorFault(f"request {request}: path {outcome.path} of {rows} rows is no chain")
    # The exact type: an integer of another library would reach the log, which cannot write it.
    if type(outcome.next_token) is not int or not 0 <= outcome.next_token < vocab_size:
        raise ExecutorFault(
            f"request {request}: token {outcome.next_token!r} outside the vocabulary, or no integer"
        )


def check_logprobs(request: int, outcome: Outcome, target: Target, vocab_size: int) -> None:
    """One entry a candidate where the target wants logprobs, none where it does not, all of it what the log can
    hold; raises ``ExecutorFault``."""
    found = tuple(entry.token for entry in outcome.logprobs)
    if target.logprobs == NO_LOGPROBS:
        expected: tuple[int, ...] = ()
    else:
        expected = (*outcome.proposal.tokens[: outcome.accepted], outcome.next_token)
    if found != expected:
        raise ExecutorFault(
            f"request {request}: expected logprobs of {expected}, the executor returned some of {found}"
        )
    for entry in outcome.logprobs:
        for top in (entry.raw_top, entry.target_top):
            if type(top) is not tuple or not all(type(pair) is tuple and len(pair) == 2 for pair in top):
                raise ExecutorFault(
                    f"request {request}: expected alternatives in logprobs as pairs, found {top!r}"
                )
            if len(top) > target.logprobs:
                raise ExecutorFault(f"request {request}: {len(top)} logprobs, {target.logprobs} asked")
        pairs = (*entry.raw_top, *entry.target_top)
        ids = (entry.token, *(token for token, _ in pairs))
        if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
            raise ExecutorFault(
                f"request {request}: logprobs of {ids}: an id outside the vocabulary, or no integer"
            )
        values = (entry.raw, entry.target, *(value for _, value in pairs))
        if not all(type(value) is float and value == value for value in values):
            raise ExecutorFault(
                f"request {request}: logprobs of token {entry.token} are no numbers: {values}"
            )
