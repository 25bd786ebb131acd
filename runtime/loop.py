"""The loop's work: take in, prefill, run rounds, publish what was committed, end what is over."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from txdecode.runtime.errors import RequestFailed
from txdecode.runtime.handle import Finish
from txdecode.runtime.intake import Intake
from txdecode.runtime.report import spec_line, warn
from txdecode.runtime.request import Request
from txdecode.runtime.scheduler import Scheduler
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.executor import ExecutorFault
from txdecode.transactions.phase import Signal
from txdecode.transactions.residency import Residency
from txdecode.transactions.transaction import Launch, Transaction

FAULTS_MAX = 3
"""Consecutive faults of the executor in a request's launches after which the request ends with an error."""


class Loop:
    """One turn at a time, on one thread. ``requests`` are the unfinished requests by number."""

    def __init__(
        self, coordinator: Coordinator, residency: Residency, scheduler: Scheduler, intake: Intake
    ) -> None:
        self.requests: dict[int, Request] = {}
        self._coordinator = coordinator
        self._residency = residency
        self._scheduler = scheduler
        self._intake = intake
        self._ledgers = coordinator.store.ledgers
        self._mark = 0
        self._device_mark = 0

    def turn(self, inbox: deque[Request]) -> None:
        """Take in, admit, prefill, and one round for every request that is ready."""
        self.take_in(inbox)
        self._honour_interrupts()
        self._scheduler.admit()
        self._prefill()
        self._decode()

    def take_in(self, inbox: deque[Request]) -> None:
        """Submitted requests become known."""
        while inbox:
            request = inbox.popleft()
            self._residency.submit(request.submitted(time.time_ns() // 1000))
            request.begin()
            self._scheduler.enqueue(request)

    def _honour_interrupts(self) -> None:
        """Interrupts of requests with no open round; those with one are the coordinator's to honour."""
        interrupts = self._coordinator.interrupts
        if not interrupts:
            return
        for number in list(interrupts):
            request = self.requests.get(number)
            launch = self._coordinator.in_flight(number)
            if launch is not None and any(tx.request == number for tx in launch.open):
                continue
            if request is not None and number not in self._ledgers.tokens.sequences:
                # Submitted by another thread a moment ago; the next step takes it in.
                continue
            signal = interrupts.pop(number)
            if request is None:
                continue
            if signal is Signal.CANCEL:
                self._end(request, "cancelled")
            elif request in self._scheduler.running:
                self._scheduler.preempt(request, "asked")

    def _prefill(self) -> None:
        batch = self._scheduler.prefill_batch()
        if not batch:
            return
        before = self._residency.prefill_ns
        requests = [self.requests[chunk.request] for chunk, _ in batch]
        try:
            self._residency.prefill(batch)
        except ExecutorFault as error:
            for request in requests:
                self._count_fault(request, error, evict=True)
            return
        spent = self._residency.prefill_ns - before
        for request in requests:
            request.prefill_ns += spent

    def _decode(self) -> None:
        self._mark = self._coordinator.clock()
        self._device_mark = self._coordinator.device_total
        launches = [*self._coordinator.flights, *self._scheduler.begin_batches()]
        for launch in launches:
            self._drive(launch)
        # What publishing took belongs to the requests that are still there to be told.
        self._charge(launches)

    def _charge(self, launches: Sequence[Launch]) -> None:
        """Add the time since the last charge to the requests of these launches."""
        now, device = self._coordinator.clock(), self._coordinator.device_total
        wall, spent = now - self._mark, device - self._device_mark
        self._mark, self._device_mark = now, device
        for launch in launches:
            for tx in launch.transactions:
                request = self.requests.get(tx.request)
                if request is not None:
                    request.decode_ns += wall
                    request.device_ns += spent

    def _drive(self, launch: Launch) -> None:
        """Advance a launch to its end, or to where its program still runs, and act on every round that ends."""
        before = launch.open
        settled = self._coordinator.device_ns["settle"]
        waited = False
        while not waited:
            polled = launch.ticket is not None
            if self._coordinator.advance(launch):
                break
            waited = polled and launch.ticket is not None
        self._charge([launch])
        if launch.done:
            committed = [tx for tx in before if tx.ended_by is Signal.COMMITTED]
            self._scheduler.planner.observe(
                launch, committed, self._coordinator.device_ns["settle"] - settled
            )
        for tx in before:
            if not tx.open:
                request = self.requests.get(tx.request)
                assert request is not None, f"request {tx.request} ended with an open round"
                self._close_round(request, tx, launch)

    def _close_round(self, request: Request, tx: Transaction, launch: Launch) -> None:
        if tx.ended_by is Signal.COMMITTED:
            self._publish(request, tx)
            return
        request.rollbacks += 1
        self._forget_interrupt(request.id, tx.ended_by)
        if tx.ended_by is Signal.CANCEL:
            self._end(request, "cancelled")
        elif tx.ended_by is Signal.PREEMPT:
            self._scheduler.preempt(request, "asked")
        else:
            error = launch.fault if launch.fault is not None else ExecutorFault("the round was refused")
            self._count_fault(request, error, evict=tx.dirty)

    def _forget_interrupt(self, request: int, honoured: Signal | None) -> None:
        """The interrupt that ended a round is done with; another one that came meanwhile is not."""
        interrupts = self._coordinator.interrupts
        asked = interrupts.pop(request, None)
        if asked is Signal.CANCEL and honoured is not Signal.CANCEL:
            interrupts[request] = Signal.CANCEL
        elif asked is Signal.PREEMPT and honoured is Signal.FAULT:
            interrupts.setdefault(request, Signal.PREEMPT)

    def _publish(self, request: Request, tx: Transaction) -> None:
        assert tx.outcome is not None
        request.observe(tx.outcome.proposal, tx.outcome.accepted)
        piece = request.take(tx.emitted, tx.logprobs)
        request.handle.publish(tx.emitted, piece)
        if tx.clip != "none":
            self._over(request, tx.clip)
        elif tx.dirty:
            warn("device dirty after settle", request=request.id)
            self._scheduler.preempt(request, "dirty")

    def _count_fault(self, request: Request, error: Exception, evict: bool) -> None:
        request.faults += 1
        warn("executor fault", request=request.id, faults=request.faults, error=str(error))
        if request.faults >= FAULTS_MAX:
            reason = f"the executor failed {request.faults} times in a row: {error}"
            self._residency.finish(request.id, "error", reason)
            failure = RequestFailed(request.id, reason)
            failure.__cause__ = error
            self._leave(request, "error")
            request.handle.fail(failure)
        elif evict:
            self._scheduler.preempt(request, "fault")

    def _end(self, request: Request, finish: Finish) -> None:
        """End a request outside a round."""
        self._residency.finish(request.id, finish)
        self._over(request, finish)

    def _over(self, request: Request, finish: Finish) -> None:
        tail = request.stream.flush()
        if tail:
            request.pieces.append(tail)
            request.handle.publish((), tail)
        self._leave(request, finish)
        request.handle.finish(request.result(finish))

    def _leave(self, request: Request, finish: str) -> None:
        drafter = self._intake.drafter
        self._scheduler.remove(request)
        del self.requests[request.id]
        self._coordinator.interrupts.pop(request.id, None)
        request.controller.end(request.id)
        if drafter is not None:
            with suppress(Exception):
                drafter.end(request.id)
        spec_line(request, self._intake.drafter_name, finish)
