"""The only place that orders side effects.

    reserve ─ draft ─ verify ─ accept, clip ─┐
                                             ├─ delta ─ APPEND ─ settle ─ apply ─ publish
    (rollback gives back what was reserved)  ┘        point of no return

Nothing is visible before its record is appended. Up to the append a round can end without a trace but a
``RoundRolledBack`` note; after it the log is right whatever the device does, and a device that fails to
settle is *dirty*: its requests are rebuilt from their tokens.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence

from txdecode.state.errors import LedgerCorrupt
from txdecode.state.reservations import NOTHING, Reservation
from txdecode.state.rng import LAWS
from txdecode.transactions.audit import audit
from txdecode.transactions.clip import clip
from txdecode.transactions.codec import printable
from txdecode.transactions.contract import check_count, check_logprobs, check_outcome
from txdecode.transactions.drafting import draft
from txdecode.transactions.events import RoundRolledBack, RuntimeNote
from txdecode.transactions.executor import Executor, Outcome, Round, RoundPlan, Settlement
from txdecode.transactions.phase import Phase, Signal
from txdecode.transactions.record import round_committed
from txdecode.transactions.store import Store
from txdecode.transactions.transaction import Ask, Launch, Observer, Transaction, extended, history, view

Clock = Callable[[], int]
"""Monotonic nanoseconds."""


class Coordinator:
    """Runs rounds over one executor and one store.

    ``interrupts`` holds cancels and preemptions by request: they are honoured at the next border between
    phases. ``paranoid`` compares the device's audit after every rollback with the one before the round.
    ``audit_every``: after so many rounds of a request a record has the digests of its device state, 0 for never;
    in ``paranoid`` mode one for each row too, and all are computed again from the tokens and compared.
    ``device_ns`` accumulates the time spent in the executor, by verb.
    """

    def __init__(
        self,
        executor: Executor,
        store: Store,
        clock: Clock,
        observe: Observer | None = None,
        paranoid: bool = False,
        audit_every: int = 0,
    ) -> None:
        self.executor = executor
        self.description = executor.describe()
        self.store = store
        self.clock = clock
        self.observe = observe
        self.paranoid = paranoid
        self.audit_every = audit_every
        self.interrupts: dict[int, Signal] = {}
        self.flights: list[Launch] = []
        self._under_way: set[tuple[int, int]] = set()
        self.device_ns = dict.fromkeys(("draft", "verify", "accept", "settle"), 0)
        self._opened = clock()
        self._launches = 0

    @property
    def device_total(self) -> int:
        """Nanoseconds spent in the executor's verbs of a round so far."""
        spent = self.device_ns
        return spent["draft"] + spent["verify"] + spent["accept"] + spent["settle"]

    # Begin.

    def begin(self, ask: Ask) -> Transaction:
        """Freeze the plan of a round and reserve all that it may touch; Idle → Draft.

        Raises ``LedgerExhausted`` naming the group, with nothing reserved.
        """
        ledgers = self.store.ledgers
        state = ledgers.tokens.sequences[ask.request]
        assert state.resident, f"request {ask.request} is not resident"
        assert state.ready, f"request {ask.request} is not ready for a round"
        width = ask.drafts + 1
        assert 1 <= width <= self.description.rows_max, f"width {width}"
        assert width <= ask.rules.budget, f"{ask.drafts} drafts for a budget of {ask.rules.budget}"
        where = view(ledgers, ask.request)
        # Two rounds of one sequence write to the same rows: so would a program of this epoch that is still
        # out there, though its round is over.
        assert not self.has_round(ask.request), f"request {ask.request} has an open round"
        assert not self._flying(ask.request, where.epoch), f"a program still holds request {ask.request}"
        self._check_target(ask)
        before = self.executor.audit(where) if self.paranoid else None
        reservation = self.store.pools.reserve(ask.request, width, width)
        plan = RoundPlan(
            where,
            state.rounds,
            state.pending,
            tuple(range(-1, ask.drafts)),
            extended(where.pages, reservation.pages),
            reservation.columns,
            (state.known, state.known + width),
            ask.rules.budget,
            ask.target,
            history(ledgers, ask.request, ask.target),
            self.store.attempt(ask.request, where.epoch),
        )
        tx = Transaction(ask, plan, reservation, before=before)
        self._under_way.add((ask.request, where.epoch))
        tx.signal(Signal.BEGIN, self.observe)
        return tx

    def _check_target(self, ask: Ask) -> None:
        """What the round draws from is what the ledger says, hence the log."""
        stream, target = self.store.ledgers.rng.streams[ask.request], ask.target
        assert LAWS[stream.law] == target.law, f"law {target.law}, {LAWS[stream.law]} in the ledger"
        assert stream.seed == target.seed, f"seed {target.seed}, {stream.seed} in the ledger"
        sampling = self.description.capabilities.sampling
        assert sampling or target.plain, f"'{self.description.name}' chooses greedily only"

    def forget(self, request: int) -> None:
        """The request is over."""
        self.store.end(request)

    def open(self, transactions: Sequence[Transaction]) -> Launch:
        """Gather begun rounds into one launch."""
        self._launches += 1
        return Launch(self._launches, list(transactions))

    # The phases.

    def advance(self, launch: Launch) -> bool:
        """Do the work of the launch's current phase; true once the launch is done.

        A fused launch that still runs leaves everything as it is. A fault rolls every open round back and is
        kept in ``launch.fault``. A log that refuses the append raises its own error, after the rollback.
        """
        self._honour_interrupts(launch)
        rounds = launch.open
        if launch.ticket is not None:
            self._guarded(launch, self._collect)
        elif rounds:
            phase = rounds[0].phase
            if phase is Phase.COMMIT:
                self._commit(launch, rounds)
            elif phase is Phase.DRAFT:
                self._guarded(launch, self._draft)
            elif phase is Phase.VERIFY:
                self._guarded(launch, self._verify)
            else:
                self._guarded(launch, self._accept)
        return launch.done

    def _guarded(self, launch: Launch, work: Callable[[Launch], None]) -> None:
        try:
            work(launch)
        except AssertionError:
            self._fail(launch, "programmer error")
            raise
        except Exception as error:
            launch.fault = error
            self._fail(launch, f"{type(error).__name__}: {error}")

    def _fail(self, launch: Launch, detail: str) -> None:
        self._retire(launch)
        self._rollback_all(launch, [(tx, Signal.FAULT) for tx in launch.open], detail)

    def _honour_interrupts(self, launch: Launch) -> None:
        if not self.interrupts:
            return
        asked = [
            (tx, self.interrupts[tx.request])
            for tx in launch.open
            if tx.request in self.interrupts and tx.phase is not Phase.COMMIT
        ]
        self._rollback_all(launch, asked, "asked")

    def _draft(self, launch: Launch) -> None:
        start = self.clock()
        rounds = launch.open
        draft(self.executor, rounds)
        end = self.clock()
        self.device_ns["draft"] += end - start
        launch.times = ((end - start) // 1000, 0, 0)
        if self.description.capabilities.fused:
            launch.ticket = self.executor.launch(launch.number, _rounds(rounds))
            launch.flown = rounds
            self.flights.append(launch)
            self.device_ns["verify"] += self.clock() - end
        for tx in rounds:
            tx.signal(Signal.DRAFTED, self.observe)

    def _verify(self, launch: Launch) -> None:
        start = self.clock()
        rounds = launch.open
        self.executor.verify(_rounds(rounds))
        spent = self.clock() - start
        self.device_ns["verify"] += spent
        launch.times = (launch.times[0], spent // 1000, 0)
        for tx in rounds:
            tx.signal(Signal.VERIFIED, self.observe)

    def _accept(self, launch: Launch) -> None:
        start = self.clock()
        rounds = launch.open
        outcomes = self.executor.accept(_rounds(rounds))
        spent = self.clock() - start
        self.device_ns["accept"] += spent
        launch.times = (launch.times[0], launch.times[1], spent // 1000)
        check_count("outcomes", len(outcomes), len(rounds))
        self._decide(list(zip(rounds, outcomes, strict=True)))

    def _collect(self, launch: Launch) -> None:
        assert launch.ticket is not None
        start = self.clock()
        outcomes = self.executor.collect(launch.ticket)
        self.device_ns["verify"] += self.clock() - start
        if outcomes is None:
            return
        self._retire(launch)
        check_count("outcomes", len(outcomes), len(launch.flown))
        current = []
        for tx, outcome in zip(launch.flown, outcomes, strict=True):
            epoch = self._epoch(tx.request)
            if not tx.open or epoch != tx.plan.view.epoch:
                data = {"request": tx.request, "epoch": tx.plan.view.epoch, "current": epoch}
                self.store.note(RuntimeNote("stale result dropped", data))
                if tx.open:
                    # No audit: the request left, so what its view names may be anything by now.
                    self._undo(launch, tx, Signal.CANCEL, "stale epoch")
                continue
            tx.signal(Signal.VERIFIED, self.observe)
            current.append((tx, outcome))
        self._decide(current)

    def _epoch(self, request: int) -> int:
        state = self.store.ledgers.tokens.sequences.get(request)
        return -1 if state is None else state.epoch

    def _decide(self, decided: Sequence[tuple[Transaction, Outcome]]) -> None:
        """Clip every round before any of them moves on: past Accept a fault can't roll back any more."""
        for tx, outcome in decided:
            check_outcome(tx.request, outcome, tx.proposal, tx.ask.drafts, self.description.vocab_size)
            check_logprobs(tx.request, outcome, tx.plan.target, self.description.vocab_size)
            tx.outcome = outcome
            tx.proposal = outcome.proposal
            candidates = (*outcome.proposal.tokens[: outcome.accepted], outcome.next_token)
            count, tx.clip = clip(candidates, tx.ask.rules)
            tx.emitted = candidates[:count]
        for tx, _ in decided:
            tx.signal(Signal.ACCEPTED, self.observe)

    # Commit and rollback.

    def _commit(self, launch: Launch, rounds: list[Transaction]) -> None:
        store = self.store
        now = (self.clock() - self._opened) // 1000
        try:
            events = [round_committed(store.ledgers, launch, tx, now) for tx in rounds]
            deltas, records = store.prepare(events)
            store.log.append(records)
        except Exception:
            self._rollback_all(launch, [(tx, Signal.REFUSED) for tx in rounds], "the log refused the record")
            raise
        self._settle(rounds)
        for tx, event, delta in zip(rounds, events, deltas, strict=True):
            held = store.pools.holdings(tx.request)
            store.ledgers.apply(delta)
            if tx.clip == "none":
                kept = Reservation(event.adopted, tuple((column,) for column in event.columns))
                store.pools.close(tx.reservation, kept)
                store.pools.give(Reservation((), held.columns))
                if tx.logprobs:
                    store.unfinished[tx.request][1].extend(tx.logprobs)
            else:
                store.pools.close(tx.reservation, NOTHING)
                store.pools.give(held)
                self.forget(tx.request)
            tx.signal(Signal.COMMITTED, self.observe)
            self._end(tx, Signal.COMMITTED)
            store.ended(tx.request, tx.plan.view.epoch)
        if self.audit_every:
            for tx in rounds:
                if tx.clip == "none" and not tx.dirty and not (tx.plan.ordinal + 1) % self.audit_every:
                    audit(self.executor, store, tx.request, recompute=self.paranoid)

    def _settle(self, rounds: list[Transaction]) -> None:
        start = self.clock()
        try:
            self.executor.settle([Settlement(tx.plan, tx.path) for tx in rounds])
        except Exception:
            # The record is in the log, so the log is right; the caller rebuilds the device from it.
            for tx in rounds:
                tx.dirty = True
        for tx in rounds:
            if tx.clip != "none":
                # Over whatever the device says, and nobody will ask for this request again.
                with contextlib.suppress(Exception):
                    self.executor.drop(tx.request)
        self.device_ns["settle"] += self.clock() - start

    def rollback(self, launch: Launch, tx: Transaction, signal: Signal, detail: str) -> None:
        """End an open round without effect. While a fused program still holds its pages they stay taken."""
        self._rollback_all(launch, [(tx, signal)], detail)

    def _rollback_all(
        self, launch: Launch, ending: Sequence[tuple[Transaction, Signal]], detail: str
    ) -> None:
        """All of them end before the first audit, so that a bad audit leaves none of them open."""
        for tx, signal in ending:
            self._undo(launch, tx, signal, detail)
        if launch.ticket is None:
            for tx, _ in ending:
                if tx.before is not None:
                    self._compare_audit(tx, tx.before)

    def _undo(self, launch: Launch, tx: Transaction, signal: Signal, detail: str) -> None:
        phase = tx.phase
        tx.signal(signal, self.observe)
        try:
            self.executor.abandon([tx.plan])
        except Exception:
            tx.dirty = True
        if launch.ticket is not None:
            launch.retained.append(tx.reservation)
        else:
            self.store.pools.close(tx.reservation, NOTHING)
        tx.signal(Signal.ROLLED_BACK, self.observe)
        self._end(tx, signal)
        if signal is not Signal.REFUSED:
            self._note_rollback(launch, tx, phase, signal, detail)
            self.store.ended(tx.request, tx.plan.view.epoch)

    def _end(self, tx: Transaction, signal: Signal) -> None:
        tx.ended_by = signal
        self._under_way.discard((tx.request, tx.plan.view.epoch))

    def _note_rollback(
        self, launch: Launch, tx: Transaction, phase: Phase, signal: Signal, detail: str
    ) -> None:
        where = tx.plan.view
        note = RoundRolledBack(
            where.request, where.epoch, tx.plan.ordinal, launch.number, phase, signal, printable(detail, 200)
        )
        # A log that refuses this note refuses every later record too, so the next commit will raise;
        # raising here would leave the other rounds of the launch open.
        with contextlib.suppress(Exception):
            self.store.note(note)

    def _compare_audit(self, tx: Transaction, before: Iterable[object]) -> None:
        after = self.executor.audit(tx.plan.view)
        for old, new in itertools.zip_longest(before, after):
            if old != new:
                raise LedgerCorrupt("device", f"request {tx.request} after rollback", old, new)

    def _retire(self, launch: Launch) -> None:
        """The program is over: what it held is free."""
        if launch.ticket is None:
            return
        launch.ticket = None
        self.flights.remove(launch)
        for reservation in launch.retained:
            self.store.pools.close(reservation, NOTHING)
        for freed in launch.retired:
            self.store.pools.give(freed)
        launch.retained.clear()
        launch.retired.clear()

    def has_round(self, request: int) -> bool:
        """Whether a round of the request's current epoch is open."""
        return (request, self._epoch(request)) in self._under_way

    def in_flight(self, request: int) -> Launch | None:
        """The launch whose program still holds pages of ``request``, if any: the latest, since an earlier one
        is of an earlier epoch."""
        for launch in reversed(self.flights):
            if any(tx.request == request for tx in launch.flown):
                return launch
        return None

    def _flying(self, request: int, epoch: int) -> bool:
        flight = self.in_flight(request)
        return flight is not None and any(
            tx.request == request and tx.plan.view.epoch == epoch for tx in flight.flown
        )


def _rounds(transactions: Sequence[Transaction]) -> list[Round]:
    return [Round(tx.plan, tx.proposal) for tx in transactions]
