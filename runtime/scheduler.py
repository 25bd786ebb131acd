"""Who runs: requests by age, admission as pages allow, and room made by preempting the youngest.

Age is the request number, which a preemption does not change; so the oldest request always gets on, and every
other one after it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

from txdecode.runtime.policy.planning import Planner
from txdecode.runtime.report import info
from txdecode.runtime.request import Request
from txdecode.state.errors import LedgerExhausted
from txdecode.state.reservations import Reservation
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.residency import Chunk, Residency
from txdecode.transactions.transaction import Ask, Launch, Transaction

T = TypeVar("T")
_BY_AGE = attrgetter("id")


class Scheduler:
    """Waiting and running requests, both oldest first."""

    def __init__(self, coordinator: Coordinator, residency: Residency, planner: Planner) -> None:
        self.coordinator = coordinator
        self.residency = residency
        self.planner = planner
        self.ledgers = coordinator.store.ledgers
        self.pools = coordinator.store.pools
        self.description = coordinator.description
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def enqueue(self, request: Request) -> None:
        """A known request waits for its turn."""
        bisect.insort(self.waiting, request, key=_BY_AGE)

    def remove(self, request: Request) -> None:
        """A request is over."""
        (self.running if request in self.running else self.waiting).remove(request)

    # Admission.

    def admit(self) -> None:
        """Move waiting requests in, oldest first, while there is room for their known tokens and a page for
        each running request besides: one that would soon be preempted again had better wait."""
        while self.waiting and len(self.running) < self.description.batch_max:
            request = self.waiting[0]
            if not self._has_room(request):
                return
            try:
                self.residency.admit(request.id)
            except LedgerExhausted:
                return
            self.waiting.pop(0)
            bisect.insort(self.running, request, key=_BY_AGE)

    def _has_room(self, request: Request) -> bool:
        known = self.ledgers.tokens.sequences[request.id].known
        headroom = len(self.running)
        unfilled = [self.ledgers.tokens.sequences[other.id] for other in self.running]
        for g, pool in enumerate(self.pools.pages):
            # Pages that running requests still need for tokens they already know.
            owed = sum(
                self.ledgers.pages.needed(g, state.known) - self.ledgers.pages.needed(g, state.consumed)
                for state in unfilled
            )
            if self.ledgers.pages.needed(g, known) + owed + headroom > len(pool):
                return not self.running and self.ledgers.pages.needed(g, known) <= len(pool)
        for pool in self.pools.columns:
            # One to hold the state, and one for every running request and this one to move it to.
            if len(pool) < 2 + headroom:
                return not self.running and len(pool) >= 2
        return True

    # Room.

    def _with_room(self, request: Request, reserve: Callable[[], T]) -> T | None:
        """``reserve()``, preempting the youngest until it fits.

        ``None`` where the request itself had to go, or must wait for a program in flight to give back what it
        holds. Requests are served oldest first, so a victim has begun nothing yet.
        """
        while True:
            try:
                return reserve()
            except LedgerExhausted as error:
                if self.coordinator.flights:
                    return None
                victim = self.running[-1]
                assert victim.id >= request.id
                if victim is request and victim is self.running[0]:
                    raise AssertionError(f"the only running request does not fit: {error}") from error
                self.preempt(victim, "pages")
                if victim is request:
                    return None

    def preempt(self, request: Request, reason: str) -> None:
        """Roll back, give up the state, wait again."""
        self.residency.evict(request.id, reason)
        self.running.remove(request)
        self.enqueue(request)
        request.preemptions += 1
        info("preempted", request=request.id, reason=reason)

    # Prefill.

    def prefill_batch(self) -> list[tuple[Chunk, Reservation]]:
        """The next chunks, oldest first, at most ``prefill_rows_max`` rows together. A request whose launches
        failed before goes alone, so that it takes no other down with it."""
        rows = self.description.prefill_rows_max
        batch: list[tuple[Chunk, Reservation]] = []
        for request in list(self.running):
            if request not in self.running:
                continue
            state = self.ledgers.tokens.sequences[request.id]
            count = min(rows, state.known - 1 - state.consumed)
            if count <= 0 or self.coordinator.in_flight(request.id) or (request.faults and batch):
                continue
            chunk = Chunk(request.id, count)
            reservation = self._with_room(request, lambda chunk=chunk: self.residency.reserve(chunk))  # type: ignore[misc]
            if reservation is None:
                break
            batch.append((chunk, reservation))
            rows -= count
            if rows <= 0 or request.faults:
                break
        return batch

    # Rounds.

    def begin_batches(self) -> list[Launch]:
        """Begin a round for every request that is ready: one launch for all, and one of its own for each
        request whose launches failed before."""
        self._plan()
        together: list[Transaction] = []
        alone: list[Transaction] = []
        for request in list(self.running):
            if request not in self.running or self.coordinator.in_flight(request.id):
                continue
            if not self.ledgers.tokens.sequences[request.id].ready:
                continue
            tx = self._with_room(request, lambda request=request: self._begin(request))  # type: ignore[misc]
            if tx is None:
                # Younger requests must not take what this one waits for.
                break
            (alone if request.faults else together).append(tx)
        return [self.coordinator.open(txs) for txs in (together, *([tx] for tx in alone)) if txs]

    def _plan(self) -> None:
        """Decide what the requests that are ready will ask for: those of a launch together."""
        ready = [
            request
            for request in self.running
            if self.ledgers.tokens.sequences[request.id].ready and not self.coordinator.in_flight(request.id)
        ]
        together = [request for request in ready if not request.faults]
        for group in (together, *([request] for request in ready if request.faults)):
            if any(request.drafts for request in group):
                self.planner.plan([self._bounds(request) for request in group])

    def _bounds(self, request: Request) -> tuple[Request, int, int]:
        """With the most drafts of the next round, and the context."""
        state = self.ledgers.tokens.sequences[request.id]
        # The first round after the prompt has width one: it is the last prompt row.
        if not state.generated:
            return request, 0, state.consumed
        most = min(request.budget - len(state.generated), self.description.rows_max) - 1
        return request, most, state.consumed

    def _begin(self, request: Request) -> Transaction:
        state = self.ledgers.tokens.sequences[request.id]
        left = request.budget - len(state.generated)
        drafts = 0
        if request.planned is not None:
            drafts = request.planned.drafts
        elif state.generated and request.drafts:
            drafts = min(request.controller.next(request.id), left - 1, self.description.rows_max - 1)
        while True:
            try:
                return self.coordinator.begin(self._ask(request, drafts, left))
            except LedgerExhausted:
                # Shorter drafts come before somebody else's work.
                if not drafts:
                    raise
                drafts -= 1

    def _ask(self, request: Request, drafts: int, left: int) -> Ask:
        rules, target = request.rules(left), request.target_now()
        decided = None if request.decision is None else request.decided
        planned = request.planned
        if planned is not None and not planned.depth:
            return Ask(request.id, drafts, rules, request.cut, target, decision=decided)
        if planned is not None:
            extend = None if request.drafter is None else request.extend_cut
            return Ask(request.id, drafts, rules, None, target, extend, planned.depth, decided)
        if not request.learned:
            # Without a drafter of the host the executor is asked only where it was chosen: it may have one too.
            return Ask(request.id, drafts, rules, request.propose, target, decision=decided)
        composed = request.drafter is not None
        return Ask(
            request.id,
            drafts,
            rules,
            request.replace if composed else None,
            target,
            request.extend if composed else None,
            request.draft_depth,
            decided,
        )
