"""Logs of the toy executor with everything in them that can be executed again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import msgspec
import pytest

from txdecode.runtime import Runtime, Sampling
from txdecode.runtime.configuration import groups_from
from txdecode.runtime.journal import Journal, iterate
from txdecode.runtime.testing.faults import Breaker
from txdecode.state.digest import pack
from txdecode.state.ledgers import Ledgers
from txdecode.transactions import fold
from txdecode.transactions.codec import decode, encode
from txdecode.transactions.events import Event
from txdecode.transactions.executor import (
    AuditEntry,
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
from txdecode.transactions.toy import ToyExecutor

SAMPLINGS: dict[str, Sampling | None] = {
    "greedy": None,
    "coupled": Sampling(temperature=1.0, seed=7),
    "filtered": Sampling(temperature=1.2, seed=8, top_k=12, top_p=0.95),
    "chain": Sampling(temperature=1.0, seed=9, law="chain"),
    "chain with logprobs": Sampling(temperature=1.0, seed=10, law="chain", logprobs=1),
    "penalised": Sampling(
        temperature=1.0, seed=11, repetition_penalty=1.3, frequency_penalty=0.7, logprobs=0
    ),
    "greedy penalised": Sampling(temperature=0.0, repetition_penalty=1.8, presence_penalty=1.0, min_tokens=9),
}


def _toy(**fields: Any) -> ToyExecutor:
    """A toy with room for long texts."""
    return ToyExecutor(**{"context": 256, "page_count": 96, "batch_max": 4, "rows_max": 8, **fields})


@attrs.frozen
class Written:
    """A log with what its run emitted, by request."""

    path: Path
    rounds: int
    texts: dict[int, tuple[int, ...]]


Write = Callable[..., Written]


def _write(
    path: Path,
    executor: Executor,
    *,
    samplings: Sequence[Sampling | None] = tuple(SAMPLINGS.values()),
    draft: str = "lookup",
    tokens: int = 60,
    seed: int = 0,
    faults: bool = True,
    rounds: int = 0,
    stop_ids: Sequence[int] = (46,),
    **options: Any,
) -> Written:
    """Run requests of ``samplings`` in turn until at least ``rounds`` rounds are in the log, with rollbacks and
    preemptions on the way where ``faults``."""
    chance = random.Random(seed)
    breaker = Breaker(executor, lambda what: None)
    fused = executor.describe().capabilities.fused
    verbs = ("launch", "collect") if fused else ("verify", "accept")
    handles = []
    count = turn = armed = 0
    # What is drafted must not depend on how long it took.
    options = {"draft_len": "additive", **options}
    with Runtime.open(breaker, log=path, draft=draft, **options) as runtime:
        while count < rounds or not handles:
            for sampling in samplings:
                prompt = [chance.randrange(48) for _ in range(chance.randrange(1, 40))]
                handles.append(
                    runtime.submit(prompt, max_tokens=tokens, sampling=sampling, stop_ids=stop_ids)
                )
            while runtime.step():
                if faults and chance.random() < 0.1:
                    runtime.preempt(chance.choice([handle for handle in handles if not handle.done]))
                turn += 1
                # Three in a row would end a request.
                if faults and turn % 16 == 0 and breaker.fired == armed and chance.random() < 0.6:
                    verb = chance.choice(verbs)
                    breaker.arm(verb, "before" if verb == "launch" else "late", 1)
                    armed += 1
            count = sum(handle.result().stats.rounds for handle in handles)
        texts = {handle.request: handle.result().ids for handle in handles}
    return Written(path, count, texts)


Change = Callable[[int, Event], Event | None]
"""``change(sequence, event)``: what stands in its place; ``None`` ends the log before it."""


def _rewrite(path: Path, to: Path, change: Change, digests: bool = True, **fingerprint: str) -> Path:
    """A log with other events and right checksums; with ``digests`` those of the ledgers are made right too."""
    with iterate(path) as reader:
        header = reader.header
        ledgers = Ledgers(groups_from(header.configuration))
        journal = Journal.create(
            to, fingerprint={**header.fingerprint, **fingerprint}, configuration=header.configuration
        )
        with journal:
            for record in reader:
                event = decode(record.type, record.version, record.flags, record.payload)
                assert event is not None
                event = change(record.sequence, event)
                if event is None:
                    break
                asked = fold.change(event)
                if digests and asked is not None:
                    delta = ledgers.delta(asked)
                    event = msgspec.structs.replace(event, digests=pack(delta.digests))
                    ledgers.apply(delta)
                journal.append([encode(event)])
    return to


def _read(path: Path) -> list[Event]:
    """All events of a log."""
    with iterate(path) as reader:
        made = [decode(record.type, record.version, record.flags, record.payload) for record in reader]
    return [event for event in made if event is not None]


@pytest.fixture(scope="session")
def rewrite() -> Callable[..., Path]:
    """Writes a changed copy of a log."""
    return _rewrite


@pytest.fixture(scope="session")
def read() -> Callable[[Path], list[Event]]:
    """Reads a log."""
    return _read


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a test writes."""
    return tmp_path / "run.txlog"


@pytest.fixture(scope="session")
def toy() -> Callable[..., ToyExecutor]:
    """Makes toys."""
    return _toy


@pytest.fixture(scope="session")
def write() -> Write:
    """Writes logs."""
    return _write


What = Literal["conv", "gdn", "kv", "pairs", "ngram", "tail", "count", "rng"]

HANDED: frozenset[What] = frozenset({"count", "rng"})
"""Faults in what is handed to the executor, rather than in what it holds."""


@attrs.define
class Planted:
    """Where a fault went: request and ordinal of the round, and what was changed."""

    request: int
    ordinal: int
    detail: str


class Corrupting:
    """A toy that goes wrong once: at the first round from number ``at_round`` on, of all requests, in which it can.

    Device state (``conv``, ``gdn``, ``kv``, ``pairs``, ``ngram``, ``tail``) is changed after the round is settled and
    before its audit. ``count`` and ``rng`` are changed in the plan that the inner executor is given, in the first
    round for which that changes the outcome: one that changes nothing leaves nothing to be found.
    """

    def __init__(self, inner: ToyExecutor, what: What, at_round: int, seed: int = 0) -> None:
        self.inner = inner
        self.what = what
        self.at_round = at_round
        self.planted: Planted | None = None
        self._chance = random.Random(seed)
        self._rounds = 0
        self._unseen = False

    @property
    def _due(self) -> bool:
        return self.planted is None and self._rounds >= self.at_round

    def describe(self) -> Description:
        return self.inner.describe()

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        self.inner.prefill(batch)

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        self._unseen = False
        return self.inner.draft(plans)

    def verify(self, rounds: Sequence[Round]) -> None:
        self._unseen = False
        self.inner.verify(rounds)

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        outcomes = self.inner.accept(rounds)
        if not (self.what in HANDED and self._due):
            return outcomes
        for index, (entry, right) in enumerate(zip(rounds, outcomes, strict=True)):
            wrong = self._changed(entry.plan)
            if wrong is not None:
                plan, detail = wrong
                (outcome,) = self.inner.accept([attrs.evolve(entry, plan=plan)])
                if outcome != right:
                    outcomes[index] = outcome
                    self.planted = Planted(plan.request, plan.ordinal, detail)
                    break
        return outcomes

    def _changed(self, plan: RoundPlan) -> tuple[RoundPlan, str] | None:
        target, history = plan.target, plan.history
        if self.what == "rng":
            if target.law == "greedy" or target.penalises:
                return None
            shift = self._chance.choice([-3, -2, -1, 1, 2, 3])
            moved = attrs.evolve(plan, rng=(plan.rng[0] + shift, plan.rng[1] + shift))
            return moved, str(plan.rng[0] + shift)
        if history is None or not target.penalises or not history.counts:
            return None
        token = self._chance.choice(sorted(history.counts))
        count = history.counts[token] + self._chance.choice([-1, 1, 2])
        counts = {**history.counts, token: count}
        if not count:
            del counts[token]
        return attrs.evolve(plan, history=attrs.evolve(history, counts=counts)), f"count of token {token}"

    def launch(self, launch: int, rounds: Sequence[Round]) -> Ticket:
        self._unseen = False
        if self.what in HANDED and self._due:
            entry = rounds[0]
            wrong = self._changed(entry.plan)
            if wrong is not None and self._would_change(entry, wrong[0]):
                rounds = [attrs.evolve(entry, plan=wrong[0]), *rounds[1:]]
                self.planted = Planted(entry.plan.request, entry.plan.ordinal, wrong[1])
        return self.inner.launch(launch, rounds)

    def _would_change(self, entry: Round, plan: RoundPlan) -> bool:
        outcomes = []
        for index, one in enumerate((entry.plan, plan)):
            ticket = self.inner.launch(-1 - index, [attrs.evolve(entry, plan=one)])
            outcome = None
            while outcome is None:
                outcome = self.inner.collect(ticket)
            self.inner.abandon([one])
            outcomes.append(outcome)
        return outcomes[0] != outcomes[1]

    def collect(self, ticket: Ticket) -> list[Outcome] | None:
        return self.inner.collect(ticket)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        self.inner.settle(settlements)
        for item in settlements:
            self._rounds += 1
            if self._due and self.what not in HANDED:
                self._spoil(item)

    def _spoil(self, item: Settlement) -> None:
        inner, plan = self.inner, item.plan
        end = plan.view.length + len(item.path)
        slot = plan.view.slots[0]
        row = (
            self._chance.randrange(max(end - 3, 0), end)
            if self.what == "conv"
            else self._chance.randrange(end)
        )
        index, offset = divmod(row, inner.page)
        if self.what == "conv":
            inner.rings[slot][row % inner.ring] += 1
        elif self.what == "gdn":
            inner.columns[plan.columns[0][item.path[-1]]] += 1
        elif self.what == "kv":
            inner.kv[plan.pages[0][index]][offset] += 1
        elif self.what == "pairs":
            if not row:
                return
            inner.pairs[plan.pages[1][index]][offset] += 1
        elif self.what == "ngram":
            first, second = inner.contexts[slot]
            inner.contexts[slot] = (first, second + 1)
        else:
            inner.tails[slot] += 1
        self.planted = Planted(plan.request, plan.ordinal, str(row))
        self._unseen = True

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        if self.what in HANDED and self.planted is not None:
            rounds = [(plan.request, plan.ordinal) for plan in plans]
            if (self.planted.request, self.planted.ordinal) in rounds:
                self.planted = None
        self.inner.abandon(plans)

    def drop(self, request: int) -> None:
        if self._unseen and self.planted is not None and self.planted.request == request:
            # Its last round, or a preemption: what was spoilt is gone before anybody could see it.
            self.planted = None
        self.inner.drop(request)

    def audit(self, view: SequenceView, rows: bool = False) -> tuple[AuditEntry, ...]:
        self._unseen = False
        return self.inner.audit(view, rows)


@pytest.fixture(scope="session")
def corrupting() -> Callable[..., Corrupting]:
    """Makes executors that go wrong once."""
    return Corrupting
