"""The runtime: requests in, committed text out, every commit in the log first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from txdecode.runtime.configuration import Options
from txdecode.runtime.errors import RequestFailed, RuntimeClosed
from txdecode.runtime.handle import Finish, Handle
from txdecode.runtime.intake import Intake
from txdecode.runtime.journal import NullJournal, RecordLog
from txdecode.runtime.opening import Opened
from txdecode.runtime.report import spec_line, warn
from txdecode.runtime.request import Parameters, Request
from txdecode.runtime.sampling import Sampling
from txdecode.runtime.scheduler import Scheduler
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.events import RequestSubmitted, RuntimeNote
from txdecode.transactions.executor import CapabilityMissing, ExecutorFault
from txdecode.transactions.phase import Signal
from txdecode.transactions.residency import Residency
from txdecode.transactions.store import Store
from txdecode.transactions.transaction import Launch, Observer, Transaction

FAULTS_MAX = 3
"""Consecutive faults of the executor in a request's launches after which the request ends with an error."""

GREEDY = Sampling()


class Runtime:
    """Decodes requests together, in speculative rounds that are transactions.

    Drive it by hand (``step``, ``run``, or by iterating a handle) or on a thread (``serve``). ``submit`` and
    ``Handle.cancel`` may be called from any thread. Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        opened: Opened,
        log: RecordLog | None = None,
        options: Options | None = None,
        *,
        ledgers: Ledgers | None = None,
        observer: Observer | None = None,
        paranoid: bool = False,
    ) -> None:
        executor = opened.executor
        description = executor.describe()
        if description.capabilities.advance != "on_settle":
            raise CapabilityMissing(
                f"executor '{description.name}' advances its state on the device; this version drives executors "
                f"that advance on settle"
            )
        self.description = description
        self.options = options if options is not None else Options()
        self.text = opened.text
        self.log: RecordLog = log if log is not None else NullJournal()
        self.ledgers = ledgers if ledgers is not None else Ledgers(description.groups)
        self._coordinator = Coordinator(
            executor, Store(self.ledgers, self.log), time.perf_counter_ns, observer, paranoid
        )
        self._residency = Residency(self._coordinator)
        self._scheduler = Scheduler(self._coordinator, self._residency)
        self._intake = Intake(opened, self.options, self)
        self._requests: dict[int, Request] = {}
        self._inbox: deque[Request] = deque()
        self._lock = threading.RLock()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._closed = False
        self._failure: Exception | None = None
        self._mark = 0
        self._device_mark = 0

    # Opening.

    @classmethod
    def open(cls, model: Any = "smollm2", **options: Any) -> Runtime:
        """Open a model and, with ``log``, an event log; see ``txdecode.runtime.opening.open_runtime`` for all
        options and errors."""
        from txdecode.runtime.opening import open_runtime

        return open_runtime(model, **options)

    @classmethod
    def recover(cls, log: str | Path, model: Any = None, **options: Any) -> Runtime:
        """Go on with the unfinished requests of a log; see ``txdecode.runtime.recovery.recover_runtime``."""
        from txdecode.runtime.recovery import recover_runtime

        return recover_runtime(log, model, **options)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Requests.

    def submit(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = 256,
        sampling: Sampling = GREEDY,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        draft_len: int | str | None = None,
    ) -> Handle:
        """Take a request: text, token ids, or chat messages (maps with ``role`` and ``content``).

        It ends with ``stop`` at an end-of-sequence token (unless ``ignore_eos``), at one of ``stop_ids`` or of
        the strings in ``stop``; with ``length`` after ``max_tokens`` or at the end of the context. ``draft_len``
        overrides the runtime's for this request. Raises ``InvalidRequest`` (a ``ValueError``) for what can't be
        taken, ``TextUnavailable`` for text without a tokenizer, ``RuntimeClosed`` after close or failure.
        """
        self._check_open()
        request = self._intake.make(prompt, max_tokens, sampling, stop, stop_ids, ignore_eos, draft_len)
        with self._wake:
            self._check_open()
            self._inbox.append(request)
            self._requests[request.id] = request
            self._wake.notify_all()
        return request.handle

    def resume(self, event: RequestSubmitted, parameters: Parameters) -> None:
        """Take up a request that the ledgers know already, with its parameters as recorded (recovery)."""
        state = self.ledgers.tokens.sequences[event.request]
        request = self._intake.build(
            event.request, event.prompt, event.budget, frozenset(event.stop_ids), parameters
        )
        emitted = tuple(state.generated)
        if emitted:
            request.handle.publish(emitted, request.restore(emitted))
        request.begin()
        self._requests[request.id] = request
        self._scheduler.enqueue(request)

    def evict(self, request: int, reason: str) -> None:
        """Give back what a request that no round holds has in the ledgers (recovery)."""
        self._residency.evict(request, reason)

    def note(self, event: RuntimeNote) -> None:
        """Append a note to the log."""
        self._coordinator.store.note(event)

    def start_at(self, number: int) -> None:
        """Number of the next request."""
        self._intake.start_at(number)

    @property
    def handles(self) -> dict[int, Handle]:
        """Handles of unfinished requests by number."""
        return {number: request.handle for number, request in dict(self._requests).items()}

    def cancel(self, request: int) -> None:
        """End a request at the next border between phases."""
        self._interrupt(request, Signal.CANCEL)

    def preempt(self, handle: Handle) -> None:
        """Make a request give up its state at the next border between phases and compute it again; its text
        stays the same. For operators and tests."""
        self._interrupt(handle.request, Signal.PREEMPT)

    def _interrupt(self, request: int, signal: Signal) -> None:
        if request not in self._requests:
            return
        interrupts = self._coordinator.interrupts
        if interrupts.get(request) is not Signal.CANCEL:
            interrupts[request] = signal
        with self._wake:
            self._wake.notify_all()

    # The loop.

    @property
    def serving(self) -> bool:
        """Whether a thread runs the loop."""
        return self._thread is not None

    def step(self) -> bool:
        """One turn of the loop: take in, admit, prefill, and one round for every request that is ready.

        Returns whether work is left. Raises the journal's error where an append failed: by then every open
        round is rolled back and every request has ended with ``RequestFailed``.
        """
        with self._lock:
            self._check_open()
            try:
                self._take_in()
                self._honour_interrupts()
                self._scheduler.admit()
                self._prefill()
                self._decode()
            except Exception as error:
                self._fail(error)
                raise
            return bool(self._requests)

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.step():
            pass

    def _take_in(self) -> None:
        while self._inbox:
            request = self._inbox.popleft()
            self._residency.submit(request.submitted(time.time_ns() // 1000))
            request.begin()
            self._scheduler.enqueue(request)

    def _honour_interrupts(self) -> None:
        """Interrupts of requests with no open round; those with one are the coordinator's to honour."""
        interrupts = self._coordinator.interrupts
        if not interrupts:
            return
        for number in list(interrupts):
            request = self._requests.get(number)
            launch = self._coordinator.in_flight(number)
            if launch is not None and any(tx.request == number for tx in launch.open):
                continue
            if request is not None and number not in self.ledgers.tokens.sequences:
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
        requests = [self._requests[chunk.request] for chunk, _ in batch]
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
                request = self._requests.get(tx.request)
                if request is not None:
                    request.decode_ns += wall
                    request.device_ns += spent

    def _drive(self, launch: Launch) -> None:
        """Advance a launch to its end, or to where its program still runs, and act on every round that ends."""
        before = launch.open
        waited = False
        while not waited:
            polled = launch.ticket is not None
            if self._coordinator.advance(launch):
                break
            waited = polled and launch.ticket is not None
        self._charge([launch])
        for tx in before:
            if not tx.open:
                request = self._requests.get(tx.request)
                assert request is not None, f"request {tx.request} ended with an open round"
                self._close_round(request, tx, launch)

    def _close_round(self, request: Request, tx: Transaction, launch: Launch) -> None:
        if tx.ended_by is Signal.COMMITTED:
            self._publish(request, tx)
            return
        request.rollbacks += 1
        self._coordinator.interrupts.pop(request.id, None)
        if tx.ended_by is Signal.CANCEL:
            self._end(request, "cancelled")
        elif tx.ended_by is Signal.PREEMPT:
            self._scheduler.preempt(request, "asked")
        else:
            error = launch.fault if launch.fault is not None else ExecutorFault("the round was refused")
            self._count_fault(request, error, evict=tx.dirty)

    def _publish(self, request: Request, tx: Transaction) -> None:
        assert tx.outcome is not None
        request.observe(len(tx.outcome.proposal.tokens), tx.outcome.accepted)
        piece = request.take(tx.emitted)
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

    # Ends.

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
        del self._requests[request.id]
        self._coordinator.interrupts.pop(request.id, None)
        request.controller.end(request.id)
        if drafter is not None:
            with suppress(Exception):
                drafter.end(request.id)
        spec_line(request, drafter.name if drafter is not None else self._intake.drafter_name, finish)

    def _fail(self, error: Exception) -> None:
        """The runtime can't go on: every request ends with a typed error, nothing more becomes visible."""
        self._failure = error
        with self._wake:
            requests = list(self._requests.values())
            self._requests.clear()
            self._inbox.clear()
            self._wake.notify_all()
        for request in requests:
            failure = RequestFailed(request.id, f"the runtime stopped: {error}")
            failure.__cause__ = error
            request.handle.fail(failure)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise RuntimeClosed(
                f"the runtime stopped after an error: {self._failure}; open a new one, or recover from the log"
            ) from self._failure
        if self._closed:
            raise RuntimeClosed("the runtime is closed; open a new one")

    # Serving and closing.

    def serve(self) -> None:
        """Run the loop on a thread until ``close``. Idempotent."""
        with self._wake:
            self._check_open()
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._serve, name="txdecode-serve", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._wake:
                while not (self._requests or self._stopping):
                    self._wake.wait()
                if self._stopping:
                    return
            try:
                self.step()
            except Exception as error:
                warn("serving stopped", error=str(error))
                return

    def close(self) -> None:
        """Stop serving, flush and close the log. Unfinished requests stay in the log and can be recovered;
        their handles raise ``RequestFailed``. Idempotent."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for request in list(self._requests.values()):
                request.handle.fail(RequestFailed(request.id, "the runtime was closed before it finished"))
            try:
                if self._failure is None:
                    self._take_in()
                    self._coordinator.store.note(RuntimeNote("closed", {"unfinished": len(self._requests)}))
            finally:
                self._requests.clear()
                self.log.close()

    def check(self) -> None:
        """Check every invariant of the ledgers and, between steps, of the reservations; raises
        ``LedgerCorrupt``. For idle moments, debugging and tests."""
        with self._lock:
            self.ledgers.check()
            if not self._coordinator.flights:
                self._coordinator.store.pools.check()
