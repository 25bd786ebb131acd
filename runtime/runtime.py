"""The runtime: requests in, committed text out, every commit in the log first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from txdecode.runtime.configuration import Options
from txdecode.runtime.errors import RequestFailed, RuntimeClosed
from txdecode.runtime.handle import Handle
from txdecode.runtime.intake import Intake
from txdecode.runtime.journal import NullJournal, RecordLog
from txdecode.runtime.journal.format import PAYLOAD_MAX
from txdecode.runtime.loop import Loop
from txdecode.runtime.opening import Opened
from txdecode.runtime.policy.planning import Planner
from txdecode.runtime.report import warn
from txdecode.runtime.request import Parameters, Request
from txdecode.runtime.sampling import Sampling
from txdecode.runtime.scheduler import Scheduler
from txdecode.runtime.sweep.store import costs_for
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.binding import check_binding
from txdecode.transactions.codec import Framed
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.events import RequestSubmitted, RuntimeNote
from txdecode.transactions.phase import Signal
from txdecode.transactions.residency import Residency
from txdecode.transactions.store import Store
from txdecode.transactions.target import TokenLogprobs
from txdecode.transactions.transaction import Observer


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
        audit_every: int = 0,
    ) -> None:
        executor = opened.executor
        description = executor.describe()
        self.description = description
        self.options = options if options is not None else Options()
        check_binding(description, self.options.rollback)
        self.text = opened.text
        self.log: RecordLog = log if log is not None else NullJournal()
        self.ledgers = ledgers if ledgers is not None else Ledgers(description.groups)
        self._coordinator = Coordinator(
            executor, Store(self.ledgers, self.log), time.perf_counter_ns, observer, paranoid, audit_every
        )
        self._residency = Residency(self._coordinator)
        self._scheduler = Scheduler(
            self._coordinator,
            self._residency,
            Planner(description, lambda: costs_for(description), self._note_costs),
        )
        self._intake = Intake(opened, self.options, self)
        self._loop = Loop(self._coordinator, self._residency, self._scheduler, self._intake)
        self._requests = self._loop.requests
        self._inbox: deque[Request] = deque()
        self._lock = threading.RLock()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._closed = False
        self._failure: BaseException | None = None

    # Opening.

    @classmethod
    def open(cls, model: Any = "bundled", **options: Any) -> Runtime:
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
        sampling: Sampling | Mapping[str, Any] | None = None,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        draft_len: int | str | None = None,
    ) -> Handle:
        """Take a request: text, token ids, or chat messages (maps with ``role`` and ``content``).

        It ends with ``stop`` at an end-of-sequence token (unless ``ignore_eos``), at one of ``stop_ids`` or of
        the strings in ``stop``; with ``length`` after ``max_tokens`` or at the end of the context. ``draft_len``
        overrides the runtime's for this request. ``sampling`` says how tokens are chosen: a ``Sampling`` or a map of
        its fields; what it leaves open comes from the checkpoint's ``generation_config.json``, and is greedy where
        that says nothing. Raises ``InvalidRequest`` (a ``ValueError``) for what can't be
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

    def resume(
        self, event: RequestSubmitted, parameters: Parameters, logprobs: tuple[TokenLogprobs, ...]
    ) -> None:
        """Take up a request that the ledgers know already, with its parameters and the logprobs of its tokens as
        recorded (recovery)."""
        state = self.ledgers.tokens.sequences[event.request]
        request = self._intake.build(
            event.request, event.prompt, event.budget, frozenset(event.stop_ids), parameters
        )
        emitted = tuple(state.generated)
        self._coordinator.store.begin(event, logprobs)
        if emitted:
            request.handle.publish(emitted, request.restore(emitted, logprobs))
        request.begin()
        self._requests[request.id] = request
        self._scheduler.enqueue(request)

    def evict(self, request: int, reason: str) -> None:
        """Give back what a request that no round holds has in the ledgers (recovery)."""
        self._residency.evict(request, reason)

    def snapshot(self) -> list[Framed]:
        """The record from which everything that was committed can be built again: the log's port for the beginning of
        a new segment. None where it is larger than a record can be: the segments before are then needed too."""
        records = self._coordinator.store.snapshot()
        if any(len(payload) > PAYLOAD_MAX for _, _, _, payload in records):
            warn("snapshot too large for a record", bytes=len(records[0][3]))
            return []
        return records

    def note(self, event: RuntimeNote) -> None:
        """Append a note to the log."""
        self._coordinator.store.note(event)

    def _note_costs(self, data: dict[str, Any]) -> None:
        self.note(RuntimeNote("costs", data))

    def start_at(self, number: int) -> None:
        """Number of the next request."""
        self._intake.start_at(number)
        self._coordinator.store.requests = number

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
        interrupts = self._coordinator.interrupts
        with self._wake:
            # A preemption must not take the place of a cancel.
            if request in self._requests and interrupts.get(request) is not Signal.CANCEL:
                interrupts[request] = signal
            self._wake.notify_all()

    # The loop.

    @property
    def device_ns(self) -> dict[str, int]:
        """Nanoseconds spent in the executor so far, by verb; host drafters count under ``draft``."""
        return {"prefill": self._residency.prefill_ns, **self._coordinator.device_ns}

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
                self._loop.turn(self._inbox)
            except BaseException as error:
                # An interrupt too: it leaves rounds open wherever it struck.
                self._fail(error)
                raise
            return bool(self._requests)

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.step():
            pass

    def _fail(self, error: BaseException) -> None:
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
            with self._wake:
                if self._closed:
                    return
                # From here on nothing more comes in, so nobody waits for what will not be.
                self._closed = True
                requests = list(self._requests.values())
            for request in requests:
                request.handle.fail(RequestFailed(request.id, "the runtime was closed before it finished"))
            try:
                if self._failure is None:
                    self._loop.take_in(self._inbox)
                    self._coordinator.store.note(RuntimeNote("closed", {"unfinished": len(self._requests)}))
            finally:
                self._requests.clear()
                self.log.close()

    def check(self) -> None:
        """Check every invariant of the ledgers and of the reservations, those of programs in flight included;
        raises ``LedgerCorrupt``. Between steps only; for debugging and tests."""
        with self._lock:
            self.ledgers.check()
            flights = self._coordinator.flights
            open_rounds = [tx.reservation for launch in flights for tx in launch.open]
            retained = [held for launch in flights for held in launch.retained]
            retired = [held for launch in flights for held in launch.retired]
            self._coordinator.store.pools.check([*open_rounds, *retained], retired)
