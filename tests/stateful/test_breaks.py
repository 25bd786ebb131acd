"""Deliberate faults, and the scenario and the check that catch each of them.

Every scenario passes as it is; with one break in place it fails with a typed error that names the ledger, the
state group or the promise.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from txdecode.runtime.request import Parameters
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.testing import (
    PromiseBroken,
    Setting,
    check_executor,
    programs,
    toy_harness,
)
from txdecode.runtime.testing.checks import DEVICE, FOLD, KEPT, LOGPROBS, ORDER_APPLY, TEXT
from txdecode.state.changes import Advance, Close, Evict
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.pages import PagesLedger
from txdecode.state.reservations import NOTHING, Pools
from txdecode.state.tokens import TokensLedger
from txdecode.transactions import coordinator as coordinator_module
from txdecode.transactions import judge as judge_module
from txdecode.transactions import record as record_module
from txdecode.transactions import store as store_module
from txdecode.transactions import toy as toy_module
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.events import RequestFinished, RequestPreempted
from txdecode.transactions.phase import Phase
from txdecode.transactions.residency import Residency
from txdecode.transactions.store import Store
from txdecode.transactions.transaction import Transaction, history

Patch = pytest.MonkeyPatch
Play = Callable[..., None]

VERBS = {"accuracy": 6}
HOSTED = {"accuracy": 0}
FUSED = {"accuracy": 6, "fused": True, "delays": (3,)}
EXECUTOR = Setting(draft="executor", draft_len=5)
SCRIPTED = Setting(draft="scripted", draft_len=5)

Scenario = tuple[programs.Program, dict[str, object], Setting]

DECODE: Scenario = (programs.decode, VERBS, EXECUTOR)
PLAIN: Scenario = (programs.decode, HOSTED, Setting())
COPYING: Scenario = (programs.decode, HOSTED, SCRIPTED)
ROLL_BACK: Scenario = (programs.roll_back, VERBS, EXECUTOR)
PREEMPT: Scenario = (programs.preempt, VERBS, EXECUTOR)
SETTLE: Scenario = (programs.fail_to_settle, VERBS, EXECUTOR)
STOP: Scenario = (programs.stop_on_the_last_token, VERBS, EXECUTOR)
LEAVE: Scenario = (programs.leave_a_flight, FUSED, EXECUTOR)
STALE: Scenario = (programs.preempt_a_flight, FUSED, EXECUTOR)
SAMPLE: Scenario = (programs.sample, HOSTED, SCRIPTED)
SAMPLE_CRASH: Scenario = (programs.sample_and_crash, HOSTED, SCRIPTED)
AT_ONCE: Scenario = (programs.cancel_before_the_first_step, VERBS, EXECUTOR)


# Breaks of the core and of the runtime.


def recurrent_not_rolled_back(patch: Patch) -> None:
    kept = record_module._kept

    def last_column(ledgers, tx: Transaction, count: int):  # type: ignore[no-untyped-def]
        assert tx.outcome is not None
        row = len(tx.outcome.proposal.tokens)
        return kept(ledgers, tx, count)[0], tuple(columns[row] for columns in tx.plan.columns)

    patch.setattr(record_module, "_kept", last_column)


def rejected_page_kept(patch: Patch) -> None:
    kept = record_module._kept
    patch.setattr(
        record_module,
        "_kept",
        lambda ledgers, tx, count: (tx.reservation.pages, kept(ledgers, tx, count)[1]),
    )


def pending_counted_twice(patch: Patch) -> None:
    change = store_module.change

    def twice(event):  # type: ignore[no-untyped-def]
        made = change(event)
        return attrs.evolve(made, consumed=made.consumed + 1) if isinstance(made, Advance) else made

    patch.setattr(store_module, "change", twice)


def applied_before_append(patch: Patch) -> None:
    prepare = Store.prepare

    def eager(self: Store, events):  # type: ignore[no-untyped-def]
        deltas, records = prepare(self, events)
        for delta in deltas:
            self.ledgers.apply(delta)
        return deltas, records

    patch.setattr(Store, "prepare", eager)


def appended_and_not_applied(patch: Patch) -> None:
    commit = Store.commit

    def forgetful(self: Store, events):  # type: ignore[no-untyped-def]
        if isinstance(events[0], RequestFinished):
            self.log.append(self.prepare(events)[1])
        else:
            commit(self, events)

    patch.setattr(Store, "commit", forgetful)


def one_row_too_many(patch: Patch) -> None:
    path = Transaction.path.fget
    assert path is not None

    def longer(tx: Transaction) -> tuple[int, ...]:
        rows = path(tx)
        assert tx.outcome is not None
        return (*rows, len(rows)) if len(rows) <= len(tx.outcome.proposal.tokens) else rows

    patch.setattr(Transaction, "path", property(longer))


def one_draft_too_many(patch: Patch) -> None:
    greedy = toy_module.greedy

    def generous(drafts, targets):  # type: ignore[no-untyped-def]
        path, token = greedy(drafts, targets)
        return ((*path, len(path)), targets[len(path)]) if len(path) <= len(drafts) else (path, token)

    patch.setattr(toy_module, "greedy", generous)


def rng_advanced_by_width(patch: Patch) -> None:
    event = coordinator_module.round_committed

    def wide(ledgers, launch, tx, now):  # type: ignore[no-untyped-def]
        made = event(ledgers, launch, tx, now)
        before = ledgers.rng.streams[tx.request].positions
        rng = tuple(position + made.width for position in before)
        return type(made)(*(rng if name == "rng" else getattr(made, name) for name in made.__struct_fields__))

    patch.setattr(coordinator_module, "round_committed", wide)


def draws_of_the_row_before(patch: Patch) -> None:
    judge = toy_module.judge

    def early(logits, target, history, drafts, position, proposals=None):  # type: ignore[no-untyped-def]
        return judge(logits, target, history, drafts, position - bool(drafts), proposals)

    patch.setattr(toy_module, "judge", early)


def draws_counted_by_rounds(patch: Patch) -> None:
    """Offsets that depend on how the text was cut into rounds, as in most engines."""
    judge = toy_module.ToyExecutor._judge

    def counted(self, plan, proposal):  # type: ignore[no-untyped-def]
        return judge(self, attrs.evolve(plan, rng=(plan.ordinal, plan.rng[1])), proposal)

    patch.setattr(toy_module.ToyExecutor, "_judge", counted)


def penalties_blind_to_drafts(patch: Patch) -> None:
    adjusted = judge_module.adjusted
    patch.setattr(judge_module, "adjusted", lambda row, target, past, drafts: adjusted(row, target, past, ()))


def penalties_miss_the_pending_token(patch: Patch) -> None:
    def late(ledgers, request, target):  # type: ignore[no-untyped-def]
        made = history(ledgers, request, target)
        if made is None:
            return None
        pending = ledgers.tokens.sequences[request].pending
        counts = {token: count - (token == pending) for token, count in made.counts.items()}
        return attrs.evolve(made, counts={token: count for token, count in counts.items() if count})

    patch.setattr(coordinator_module, "history", late)


def another_seed_after_a_crash(patch: Patch) -> None:
    from_event = Parameters.from_event

    def reseeded(event):  # type: ignore[no-untyped-def]
        made = from_event(event)
        return attrs.evolve(made, sampling=attrs.evolve(made.sampling, seed=made.sampling.seed ^ 1))

    patch.setattr(Parameters, "from_event", reseeded)


def logprobs_lost_in_a_crash(patch: Patch) -> None:
    resume = Runtime.resume
    patch.setattr(Runtime, "resume", lambda self, event, parameters, _: resume(self, event, parameters, ()))


def rollback_leaks(patch: Patch) -> None:
    undo = Coordinator._undo

    def leaky(self: Coordinator, *arguments):  # type: ignore[no-untyped-def]
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self.store.pools, "close", lambda reservation, kept: None)
            undo(self, *arguments)

    patch.setattr(Coordinator, "_undo", leaky)


def page_not_released(patch: Patch) -> None:
    apply = PagesLedger.apply

    def forgetful(self: PagesLedger, change):  # type: ignore[no-untyped-def]
        table = self.tables.get(change.request)
        apply(self, change)
        ends = isinstance(change, Close) or (isinstance(change, Advance) and change.close)
        if ends and table is not None and table[0]:
            self.references[0][table[0][0]] += 1

    patch.setattr(PagesLedger, "apply", forgetful)


def stale_result_accepted(patch: Patch) -> None:
    def credulous(self: Coordinator, launch):  # type: ignore[no-untyped-def]
        outcomes = self.executor.collect(launch.ticket)
        if outcomes is None:
            return
        self._retire(launch)
        for tx in launch.flown:
            tx.ended_by, tx.phase = None, Phase.ACCEPT
        self._decide(list(zip(launch.flown, outcomes, strict=True)))

    patch.setattr(Coordinator, "_collect", credulous)


def length_beats_stop(patch: Patch) -> None:
    clip = coordinator_module.clip

    def wrong(candidates, rules):  # type: ignore[no-untyped-def]
        count, reason = clip(candidates, rules)
        return count, "length" if count == rules.budget else reason

    patch.setattr(coordinator_module, "clip", wrong)


def dirty_device_kept(patch: Patch) -> None:
    settle = Coordinator._settle

    def blind(self: Coordinator, rounds):  # type: ignore[no-untyped-def]
        settle(self, rounds)
        for tx in rounds:
            tx.dirty = False

    patch.setattr(Coordinator, "_settle", blind)


def finished_not_dropped(patch: Patch) -> None:
    settle = Coordinator._settle

    def forgetful(self: Coordinator, rounds):  # type: ignore[no-untyped-def]
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self.executor, "drop", lambda request: None)
            settle(self, rounds)

    patch.setattr(Coordinator, "_settle", forgetful)


def preemption_loses_pending(patch: Patch) -> None:
    apply = TokensLedger.apply

    def lossy(self: TokensLedger, change, increment):  # type: ignore[no-untyped-def]
        apply(self, change, increment)
        if isinstance(change, Evict):
            self.sequences[change.request].generated.pop()

    patch.setattr(TokensLedger, "apply", lossy)


def epoch_not_raised(patch: Patch) -> None:
    def evict(self: Residency, request: int, reason: str) -> None:
        state = self.store.ledgers.tokens.sequences[request]
        held = self.store.pools.holdings(request)
        self.store.commit([RequestPreempted(request, state.epoch, reason, held.pages)])
        self._leave(request, held)

    patch.setattr(Residency, "evict", evict)


def flown_pages_handed_out(patch: Patch) -> None:
    def leave(self: Residency, request: int, held):  # type: ignore[no-untyped-def]
        self.store.pools.give(held)
        self.executor.drop(request)

    patch.setattr(Residency, "_leave", leave)


def reserved_pages_of_flights_handed_out(patch: Patch) -> None:
    undo = Coordinator._undo

    def early(self: Coordinator, launch, tx, *rest):  # type: ignore[no-untyped-def]
        undo(self, launch, tx, *rest)
        if tx.reservation in launch.retained:
            launch.retained.remove(tx.reservation)
            self.store.pools.close(tx.reservation, NOTHING)

    patch.setattr(Coordinator, "_undo", early)


def admission_keeps_its_units(patch: Patch) -> None:
    patch.setattr(Pools, "give", lambda self, freed: None)


Break = Callable[[Patch], None]

BREAKS: dict[str, tuple[Break, Scenario, type[Exception], str]] = {
    "forget the recurrent rollback": (
        recurrent_not_rolled_back,
        COPYING,
        PromiseBroken,
        f"{DEVICE}.*group 'gdn'",
    ),
    "keep a rejected page": (rejected_page_kept, DECODE, LedgerCorrupt, "ledger 'pages'.*pages: expected"),
    "count the pending token twice": (pending_counted_twice, PLAIN, LedgerCorrupt, "ledger 'tokens'"),
    "apply before append": (applied_before_append, DECODE, PromiseBroken, ORDER_APPLY),
    "append and never apply": (appended_and_not_applied, AT_ONCE, PromiseBroken, f"{FOLD}.*'tokens'"),
    "settle a+2 rows": (one_row_too_many, DECODE, PromiseBroken, f"{DEVICE}.*group 'gdn'"),
    "commit a+2 tokens": (one_draft_too_many, DECODE, PromiseBroken, TEXT),
    "rng advanced by W": (rng_advanced_by_width, DECODE, LedgerCorrupt, "ledger 'rng'.*role 'target'"),
    "draws of the row before": (draws_of_the_row_before, SAMPLE, PromiseBroken, TEXT),
    "draws counted by rounds": (draws_counted_by_rounds, SAMPLE, PromiseBroken, TEXT),
    "penalties blind to drafts": (penalties_blind_to_drafts, SAMPLE, PromiseBroken, TEXT),
    "penalties miss the pending token": (penalties_miss_the_pending_token, SAMPLE, PromiseBroken, TEXT),
    "another seed after a crash": (
        another_seed_after_a_crash,
        SAMPLE_CRASH,
        AssertionError,
        "seed .* in the ledger",
    ),
    "logprobs lost in a crash": (logprobs_lost_in_a_crash, SAMPLE_CRASH, PromiseBroken, LOGPROBS),
    "rollback leaks": (rollback_leaks, ROLL_BACK, LedgerCorrupt, "ledger 'reservations', open"),
    "finish keeps a page": (page_not_released, DECODE, LedgerCorrupt, "ledger 'pages'.*references"),
    "stale result accepted": (stale_result_accepted, STALE, LedgerCorrupt, "ledger 'tokens'.*epoch"),
    "length beats stop": (length_beats_stop, STOP, PromiseBroken, f"{TEXT}.*length after.*stop after"),
    "dirty device kept": (dirty_device_kept, SETTLE, PromiseBroken, DEVICE),
    "finished request not dropped": (finished_not_dropped, SETTLE, PromiseBroken, KEPT),
    "preemption loses the pending token": (
        preemption_loses_pending,
        PREEMPT,
        LedgerCorrupt,
        "ledger 'tokens'.*(counts|digest)",
    ),
    "preemption keeps the epoch": (epoch_not_raised, PREEMPT, LedgerCorrupt, "ledger 'tokens'.*epoch"),
    "pages of a flight handed out": (flown_pages_handed_out, LEAVE, PromiseBroken, DEVICE),
    "reserved pages of a flight handed out": (
        reserved_pages_of_flights_handed_out,
        LEAVE,
        PromiseBroken,
        DEVICE,
    ),
    "units never come back": (
        admission_keeps_its_units,
        DECODE,
        LedgerCorrupt,
        "ledger 'reservations'.*'gdn'",
    ),
}

SCENARIOS = {id(scenario): scenario for _, scenario, _, _ in BREAKS.values()}.values()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario[0].__name__)
def test_scenario_passes_unbroken(scenario: Scenario, play: Play) -> None:
    play(*scenario)


@pytest.mark.parametrize("name", BREAKS)
def test_break_is_caught(name: str, play: Play, monkeypatch: Patch) -> None:
    broken, scenario, error, message = BREAKS[name]
    broken(monkeypatch)
    with pytest.raises(error, match=message):
        play(*scenario)


@pytest.mark.parametrize("name", ["rollback leaks", "dirty device kept"])
def test_the_machine_finds_it_by_itself(name: str, monkeypatch: Patch) -> None:
    broken, _, error, message = BREAKS[name]
    broken(monkeypatch)
    with pytest.raises(error, match=message):
        check_executor(toy_harness(accuracy=6), examples=200, steps=30, seed=1, shrink=False)
