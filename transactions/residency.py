"""How a sequence comes and goes: submit, admit, prefill, evict, finish. Each is one record."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import attrs

from txdecode.state.reservations import NOTHING, Reservation
from txdecode.transactions.codec import printable
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.events import (
    PrefillCommitted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
)
from txdecode.transactions.executor import ExecutorFault, PrefillPlan
from txdecode.transactions.transaction import extended, view


@attrs.frozen
class Chunk:
    """Consume the next ``count`` known tokens of a resident request."""

    request: int
    count: int


class Residency:
    """Moves sequences in and out of the executor."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.executor = coordinator.executor
        self.store = coordinator.store
        self.prefill_ns = 0
        self._launches = 0

    def submit(self, event: RequestSubmitted) -> None:
        """The request becomes known."""
        self.store.commit([event])
        self.store.begin(event)

    def admit(self, request: int) -> None:
        """The request becomes resident at length 0; raises ``LedgerExhausted`` with nothing taken."""
        state = self.store.ledgers.tokens.sequences[request]
        columns, slots = self.store.pools.admit()
        try:
            self.store.commit([RequestAdmitted(request, state.epoch, columns, slots)])
        except Exception:
            taken = Reservation((), tuple((c,) for c in columns), tuple((s,) for s in slots))
            self.store.pools.give(taken)
            raise

    def reserve(self, chunk: Chunk) -> Reservation:
        """Pages and columns for a chunk; raises ``LedgerExhausted`` with nothing taken."""
        return self.store.pools.reserve(chunk.request, chunk.count, 1)

    def prefill(self, chunks: Sequence[tuple[Chunk, Reservation]]) -> None:
        """Consume chunks of distinct requests in one call.

        Raises ``ExecutorFault`` where the executor fails: the reservations are given back, and the caller
        must evict the requests, since their rings may be overwritten.
        """
        store = self.store
        self._launches += 1
        start = self.coordinator.clock()
        plans = [self._plan(chunk, reservation) for chunk, reservation in chunks]
        try:
            self.executor.prefill(plans)
        except Exception as error:
            self._give_back(chunks)
            if isinstance(error, ExecutorFault | AssertionError):
                raise
            raise ExecutorFault(f"prefill failed: {type(error).__name__}: {error}") from error
        spent = self.coordinator.clock() - start
        self.prefill_ns += spent
        try:
            events = [
                self._event(plan, reservation, spent // 1000)
                for plan, (_, reservation) in zip(plans, chunks, strict=True)
            ]
            deltas, records = store.prepare(events)
            store.log.append(records)
        except Exception:
            self._give_back(chunks)
            raise
        for plan, delta, event, (_, reservation) in zip(plans, deltas, events, chunks, strict=True):
            store.ledgers.apply(delta)
            store.pools.close(
                reservation, Reservation(event.adopted, tuple((column,) for column in event.columns))
            )
            store.pools.give(Reservation((), tuple((column,) for column in plan.view.columns)))

    def _give_back(self, chunks: Sequence[tuple[Chunk, Reservation]]) -> None:
        for _, reservation in chunks:
            self.store.pools.close(reservation, NOTHING)

    def _plan(self, chunk: Chunk, reservation: Reservation) -> PrefillPlan:
        ledgers = self.store.ledgers
        state = ledgers.tokens.sequences[chunk.request]
        assert 1 <= chunk.count <= state.known - 1 - state.consumed, f"chunk of {chunk.count}"
        where = view(ledgers, chunk.request)
        return PrefillPlan(
            where,
            state.ids(state.consumed, state.consumed + chunk.count),
            extended(where.pages, reservation.pages),
            tuple(columns[0] for columns in reservation.columns),
        )

    def _event(self, plan: PrefillPlan, reservation: Reservation, spent_us: int) -> PrefillCommitted:
        where = plan.view
        return PrefillCommitted(
            where.request,
            where.epoch,
            self._launches,
            where.length,
            len(plan.tokens),
            reservation.pages,
            plan.columns,
            (spent_us,),
        )

    def evict(self, request: int, reason: str) -> None:
        """The request gives up its state and keeps its tokens."""
        state = self.store.ledgers.tokens.sequences[request]
        held = self._held(request)
        self.store.commit([RequestPreempted(request, state.epoch + 1, reason, held.pages)])
        self._leave(request, held)

    def finish(self, request: int, reason: str, detail: str = "") -> None:
        """The request ends outside a round."""
        state = self.store.ledgers.tokens.sequences[request]
        held = self._held(request)
        self.store.commit([RequestFinished(request, state.epoch, reason, printable(detail, 500), held.pages)])
        self.coordinator.forget(request)
        self._leave(request, held)

    def _held(self, request: int) -> Reservation:
        coordinator = self.coordinator
        # A flight keeps what its program names until it retires; a round between verbs has only its plan.
        flying = coordinator.in_flight(request) is not None
        assert flying or not coordinator.has_round(request), f"request {request} has an open round"
        return self.store.pools.holdings(request)

    def _leave(self, request: int, held: Reservation) -> None:
        launch = self.coordinator.in_flight(request)
        if launch is None:
            self.store.pools.give(held)
        else:
            # The program in flight still writes to the boundary page.
            launch.retired.append(held)
        # The request is gone from log and ledgers, so a drop that fails can cost the executor some memory, but
        # must not cost the other requests their runtime.
        with contextlib.suppress(Exception):
            self.executor.drop(request)
