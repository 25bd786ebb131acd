"""Pairs of toys: a drafter that is often right, and one whose verbs can be made to fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs

from txdecode.kernels.paired import PREFIX
from txdecode.kernels.paired_executor import PairedExecutor
from txdecode.runtime.testing import Harness
from txdecode.state.groups import StateGroup
from txdecode.transactions.executor import (
    AuditEntry,
    Capabilities,
    Description,
    Executor,
    Outcome,
    PrefillPlan,
    Proposal,
    Rollback,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
    Ticket,
)
from txdecode.transactions.judge import judge
from txdecode.transactions.toy import ToyExecutor, expected_audit, plain
from txdecode.transactions.toy_model import logits, toy_hash

VOCAB = 48


class Weaker(ToyExecutor):
    """A toy that is wrong about a row in ``wrong`` eighths of all cases, whatever the round that the row is in. It
    settles only rounds of its last ``verify``, as executors may that keep recurrent state of it."""

    wrong = 2
    last: frozenset[int] = frozenset()

    def verify(self, rounds: Sequence[Round]) -> None:
        self.last = frozenset(item.plan.request for item in rounds)
        super().verify(rounds)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        assert {item.plan.request for item in settlements} <= self.last
        super().settle(settlements)

    def _forward(self, plan: Any, proposal: Any) -> None:
        super()._forward(plan, proposal)
        scratch = self._scratch[plan.view.request, plan.view.epoch]
        scratch.rows = [
            attrs.evolve(row, target=(row.target + 1) % self.vocab_size)
            if row.hidden // 16 % 8 < self.wrong
            else row
            for row in scratch.rows
        ]


class Paged:
    """An executor of integers whose state is pages alone, as a dense model's is: one row a token. It guesses what the
    toy says, where the rows before agree with it in a hash of them. It keeps count of what it was asked for."""

    def __init__(
        self,
        *,
        vocab_size: int = VOCAB,
        page: int = 4,
        page_count: int = 40,
        context: int = 256,
        batch_max: int = 4,
        rows_max: int = 8,
        wrong: int = 2,
        rollback: Rollback = "columns",
    ) -> None:
        self.page = page
        self.vocab_size = vocab_size
        self.wrong = wrong
        self.rows = [[0] * page for _ in range(page_count)]
        self.calls: list[tuple[str, list[int]]] = []
        self._made: dict[int, list[list[float]]] = {}
        self._description = Description(
            "paged",
            vocab_size,
            context,
            rows_max,
            16,
            batch_max,
            (StateGroup("kv", "pages", page, 1, 8, "target", page_count),),
            Capabilities(row_invariant=True, sampling=True),
            {"kv": page_count * page * 8},
            {"executor": "paged-1"},
        )

    def describe(self) -> Description:
        return self._description

    def _place(self, pages: Sequence[int], position: int) -> tuple[list[int], int]:
        index, offset = divmod(position, self.page)
        return self.rows[pages[index]], offset

    def _read(self, pages: Sequence[int], tokens: Sequence[int], length: int) -> list[list[float]]:
        made = []
        for position, token in enumerate(tokens, length):
            page, offset = self._place(pages, position)
            page[offset] = toy_hash(token, position, 7)
            places = [self._place(pages, before) for before in range(position + 1)]
            hidden = toy_hash(sum(page[offset] for page, offset in places), token, position)
            target = (token * 5 + 3 + (hidden % 8 < self.wrong)) % self.vocab_size
            made.append(logits(hidden, target, self.vocab_size))
        return made

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        self.calls.append(("prefill", [len(plan.tokens) for plan in batch]))
        for plan in batch:
            assert len(plan.view.pages[0]) == -(-plan.view.length // self.page)
            self._read(plan.pages[0], plan.tokens, plan.view.length)

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        raise NotImplementedError

    def verify(self, rounds: Sequence[Round]) -> None:
        self.calls.append(("verify", [len(item.proposal.tokens) + 1 for item in rounds if item.proposal]))
        for item in rounds:
            plan, proposal = item.plan, item.proposal
            assert proposal is not None
            assert len(proposal.tokens) < plan.width
            assert len(plan.view.pages[0]) == -(-plan.view.length // self.page)
            tokens = (plan.pending, *proposal.tokens)
            self._made[plan.request] = self._read(plan.pages[0], tokens, plan.view.length)

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        outcomes = []
        for item in rounds:
            plan, proposal = item.plan, item.proposal
            assert proposal is not None
            made = judge(self._made[plan.request], plan.target, plan.history, proposal.tokens, plan.rng[0])
            outcomes.append(Outcome(proposal, made.path, made.token, made.logprobs))
        return outcomes

    def settle(self, settlements: Sequence[Settlement]) -> None:
        for item in settlements:
            del self._made[item.plan.request]

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        for plan in plans:
            self._made.pop(plan.request, None)

    def drop(self, request: int) -> None:
        self._made.pop(request, None)

    def audit(self, view: SequenceView, rows: bool = False) -> tuple[AuditEntry, ...]:
        places = [self._place(view.pages[0], position) for position in range(view.length)]
        digest = 0
        for position, (page, offset) in enumerate(places):
            digest = toy_hash(digest, page[offset], position)
        return (AuditEntry("kv", 0, 0, digest),)

    def launch(self, launch: int, rounds: Sequence[Round]) -> Ticket:
        raise NotImplementedError

    def collect(self, ticket: Ticket) -> list[Outcome] | None:
        raise NotImplementedError


def paged_audit(tokens: Sequence[int]) -> tuple[AuditEntry, ...]:
    """What the audit of ``Paged`` must say after ``tokens``."""
    digest = 0
    for position, token in enumerate(tokens):
        digest = toy_hash(digest, toy_hash(token, position, 7), position)
    return (AuditEntry(PREFIX + "kv", 0, 0, digest),)


def pair(
    rollback: Rollback = "columns",
    *,
    drafter: Callable[..., Executor] = Weaker,
    page: int = 4,
    page_count: int = 40,
    drafter_page: int = 2,
    **options: Any,
) -> PairedExecutor:
    """A pair whose page sizes differ, so that neither's tables can pass for the other's."""
    return PairedExecutor(
        ToyExecutor(vocab_size=VOCAB, page=page, page_count=page_count, rollback=rollback, **options),
        drafter(
            vocab_size=VOCAB,
            page=drafter_page,
            page_count=-(-page * page_count // drafter_page),
            rollback=rollback,
            **options,
        ),
    )


def audit_of(tokens: Sequence[int], page: int = 4, drafter_page: int = 2) -> tuple[AuditEntry, ...]:
    """What the audit of a pair must say after ``tokens``."""
    its = expected_audit(tokens, drafter_page, VOCAB)
    return (
        *expected_audit(tokens, page, VOCAB),
        *(attrs.evolve(entry, group=PREFIX + entry.group) for entry in its),
    )


def kept_by_pair(executor: Executor) -> Collection[int]:
    """Requests of which a pair of toys keeps anything."""
    assert isinstance(executor, PairedExecutor)
    kept = set(executor.kept)
    for part in (executor.target, executor.drafter):
        if isinstance(part, Paged):
            kept |= set(part._made)
        else:
            assert isinstance(part, ToyExecutor)
            kept |= {request for request, _ in part._scratch}
    return kept


def harness(
    rollback: Rollback,
    page: int = 4,
    drafter_page: int = 2,
    wrong: int = 2,
    paged: bool = False,
    **options: Any,
) -> Harness:
    """For the property machine."""
    drafter: Callable[..., Executor] = type("Drafter", (Weaker,), {"wrong": wrong})
    if paged:
        drafter = functools.partial(Paged, wrong=wrong)

    def audit(tokens: Sequence[int]) -> tuple[AuditEntry, ...]:
        if paged:
            return (*expected_audit(tokens, page, VOCAB), *paged_audit(tokens))
        return audit_of(tokens, page, drafter_page)

    return Harness(
        f"pair-{rollback}",
        lambda: pair(rollback, drafter=drafter, page=page, drafter_page=drafter_page, **options),
        lambda prompt, count, stop: plain(prompt, count, VOCAB, stop),
        audit,
        kept_by_pair,
        lambda prompt, count, stop, target: plain(prompt, count, VOCAB, stop, target),
    )
