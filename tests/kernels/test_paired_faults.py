"""What a drafter that fails costs: no request, no text, no audit, and no log that can't be executed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.kernels import pairs
from tests.kernels.test_paired_executor import PROMPT, run, text
from txdecode.kernels.paired import DRAFT_FAULTS_MAX, STATE_FAULTS_MAX, Faults
from txdecode.kernels.paired_executor import PairedExecutor
from txdecode.runtime import Runtime
from txdecode.runtime.execution import ExecutionDivergence, bisect, execute
from txdecode.runtime.journal import iterate
from txdecode.transactions.audit import as_recorded
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RuntimeNote, StateAudited
from txdecode.transactions.executor import AuditEntry, Executor, ExecutorFault, PrefillPlan, SequenceView
from txdecode.transactions.rebuild import GHOST
from txdecode.transactions.toy import ToyExecutor

PLACES = ((0,), (0,), (0,)), (1,)
"""Pages and column of a prefill."""


def failing(verb: str, after: int = 0, times: int = 10**6, paged: bool = True) -> Callable[..., Executor]:
    """Drafters whose ``verb`` fails ``times`` times after ``after`` calls. ``tried`` counts all of its calls."""

    class Failing(pairs.Paged if paged else pairs.Weaker):  # type: ignore[misc]
        tried = 0

        def _fail(self, name: str) -> None:
            if name == verb:
                self.tried += 1
                if after < self.tried <= after + times:
                    raise RuntimeError("the drafter broke")

        def prefill(self, batch: Any) -> None:
            self._fail("prefill")
            super().prefill(batch)

        def verify(self, rounds: Any) -> None:
            self._fail("verify")
            super().verify(rounds)

        def accept(self, rounds: Any) -> Any:
            self._fail("accept")
            return super().accept(rounds)

        def settle(self, settlements: Any) -> None:
            self._fail("settle")
            super().settle(settlements)

        def abandon(self, plans: Any) -> None:
            self._fail("abandon")
            super().abandon(plans)

    return Failing


@pytest.mark.parametrize("paged", [False, True], ids=["all kinds of state", "pages alone"])
@pytest.mark.parametrize("verb", ["prefill", "verify", "accept", "settle"])
@pytest.mark.parametrize(("after", "times"), [(0, 1), (2, 1), (5, 2), (0, 10**6), (4, 10**6)])
def test_a_failing_drafter_costs_no_request(
    verb: str, after: int, times: int, paged: bool, tmp_path: Path
) -> None:
    log = tmp_path / "run.txlog"
    executor = pairs.pair(drafter=failing(verb, after, times, paged))
    _, results = run(executor, draft_len=4, log=log)
    assert {result.finish for result in results} == {"length"}
    if times == 1:
        assert any(result.stats.drafted for result in results)
    # Without an error it is executed again by a pair that is well, whatever this one gave up.
    again = execute(log, healthy(paged))
    assert again.numerics == "exact"
    assert again.counts.audits > 0
    assert bisect(log, healthy(paged)).found is None


def healthy(paged: bool) -> PairedExecutor:
    return pairs.pair(drafter=pairs.Paged if paged else pairs.Weaker)


@pytest.mark.parametrize("paged", [False, True], ids=["all kinds of state", "pages alone"])
@pytest.mark.parametrize("after", range(8))
def test_a_recomputed_audit_gives_no_drafter_up(after: int, paged: bool, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"

    class Failing(failing("prefill", after=0, times=0, paged=paged)):  # type: ignore[misc]
        """It fails for ghosts alone, from the given one on."""

        ghosts = 0

        def prefill(self, batch: Any) -> None:
            if batch[0].view.request == GHOST:
                self.ghosts += 1
                if self.ghosts > after:
                    raise RuntimeError("the drafter broke")
            super().prefill(batch)

    executor = pairs.pair(drafter=Failing)
    _, results = run(executor, audit_every=1, log=log)
    assert executor.drafter.ghosts > after + STATE_FAULTS_MAX  # type: ignore[attr-defined]
    assert not any(result.stats.preemptions for result in results)
    assert all(result.stats.drafted for result in results)
    events = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    notes = [event for event in events if isinstance(event, RuntimeNote) and event.kind == "audit failed"]
    assert notes
    assert {event.data["error"] for event in notes} == {
        "ExecutorFault: the draft model failed: the drafter broke"
    }
    audits = [event for event in events if isinstance(event, StateAudited)]
    assert all(any(entry[0] == "draft.kv" for entry in event.entries) for event in audits)


@pytest.mark.parametrize("paged", [False, True], ids=["all kinds of state", "pages alone"])
@pytest.mark.parametrize("after", [2, 3, 5, 8])
def test_paranoia_outlives_a_drafter_that_is_given_up(after: int, paged: bool) -> None:
    executor = pairs.pair(drafter=failing("prefill", after=after, paged=paged))
    _, results = run(executor, audit_every=1)
    assert {result.finish for result in results} == {"length"}


@pytest.mark.parametrize("paged", [False, True], ids=["all kinds of state", "pages alone"])
@pytest.mark.parametrize("verb", ["prefill", "verify", "settle"])
def test_a_request_that_it_cannot_follow_is_decoded_without_it(verb: str, paged: bool) -> None:
    # Rounds of other requests, which it does follow, must not hide that this one fails again and again.
    class Poisoned(pairs.Paged if paged else pairs.Weaker):  # type: ignore[misc]
        def prefill(self, batch: Any) -> None:
            if verb == "prefill" and any(plan.view.request == 1 for plan in batch):
                raise RuntimeError("the drafter broke")
            super().prefill(batch)

        def verify(self, rounds: Any) -> None:
            if verb == "verify" and any(item.plan.request == 1 for item in rounds):
                raise RuntimeError("the drafter broke")
            super().verify(rounds)

        def settle(self, settlements: Any) -> None:
            if verb == "settle" and any(item.plan.request == 1 for item in settlements):
                raise RuntimeError("the drafter broke")
            super().settle(settlements)

    executor = pairs.pair(drafter=Poisoned)
    _, results = run(executor, audit_every=1)
    assert {result.finish for result in results} == {"length"}
    assert max(result.stats.preemptions for result in results) < STATE_FAULTS_MAX
    assert not pairs.kept_by_pair(executor)


def test_faults_of_a_request_end_with_its_own_round() -> None:
    faults = Faults()

    def fail() -> None:
        raise RuntimeError("x")

    for number in range(4):
        with pytest.raises(ExecutorFault, match="the draft model failed: x"):
            faults.fed([number, 9], fail)
        assert faults.fed([number], lambda: None)
        faults.followed([number, 9])
    assert not faults.states
    with pytest.raises(ExecutorFault):
        faults.fed([9], fail)
    faults.followed([1])
    assert not faults.fed([9], fail)
    assert (faults.off, faults.stale, faults.states) == (True, {9}, {})


@pytest.mark.parametrize("lacks", ["draft.kv", "kv", "drafter and kv"])
def test_an_audit_that_lacks_anything_else_is_wrong(lacks: str, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"

    class Forgetful(PairedExecutor):
        def audit(self, view: SequenceView, rows: bool = False) -> Any:
            made = super().audit(view, rows)
            if lacks == "drafter and kv":
                return tuple(e for e in made if e.group != "kv" and not e.group.startswith("draft."))
            return tuple(entry for entry in made if entry.group != lacks)

    well = pairs.pair()
    run(Forgetful(well.target, well.drafter), log=log)
    with pytest.raises(ExecutionDivergence, match="diverges in audit"):
        execute(log, pairs.pair())
    assert bisect(log, pairs.pair()).found is not None


def test_only_a_pair_may_leave_a_draft_model_out() -> None:
    entries = (AuditEntry("kv", 0, 0, 1), AuditEntry("draft.kv", 0, 0, 2), AuditEntry("draft.tail", 0, 0, 3))
    pair = pairs.pair().describe().groups
    assert as_recorded(pair, False, entries) == entries[:1]
    assert as_recorded(pair, True, entries) == entries
    alone = [attrs.evolve(group, owner="target") for group in pair]
    assert as_recorded(alone, False, entries) == entries


def test_a_drafters_own_state_in_the_target_is_never_left_out(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"

    class Forgetful(ToyExecutor):
        def audit(self, view: SequenceView, rows: bool = False) -> Any:
            return tuple(entry for entry in super().audit(view, rows) if entry.group != "pairs")

    run(Forgetful(vocab_size=48, accuracy=6), log=log, draft="mtp")
    with pytest.raises(ExecutionDivergence, match="diverges in audit"):
        execute(log, ToyExecutor(vocab_size=48, accuracy=6))


@pytest.mark.parametrize("paged", [False, True])
def test_after_three_failures_it_is_not_asked(paged: bool) -> None:
    executor = pairs.pair(drafter=failing("accept", paged=paged))
    with Runtime.open(executor, draft="model", draft_len=4) as runtime:
        handle = runtime.submit(PROMPT, max_tokens=60)
        runtime.run()
    assert handle.result().ids == text(None, 60)
    assert handle.result().stats.drafted == 0
    assert executor.drafter.tried == DRAFT_FAULTS_MAX == 3  # type: ignore[attr-defined]
    assert not pairs.kept_by_pair(executor)


def test_one_request_that_it_fails_on_takes_no_other_down() -> None:
    class Poisoned(pairs.Paged):
        def accept(self, rounds: Any) -> Any:
            if any(item.plan.request == 1 for item in rounds):
                raise RuntimeError("the drafter broke")
            return super().accept(rounds)

    _, results = run(pairs.pair(drafter=Poisoned))
    assert results[1].stats.drafted == 0
    assert min(results[0].stats.accepted, results[2].stats.accepted) > 5


def test_a_drafter_that_cannot_follow_is_given_up() -> None:
    executor = pairs.pair(drafter=failing("prefill", after=3))
    run(executor)
    # Neither asked nor fed again, though the requests went on.
    assert executor.drafter.tried == 3 + STATE_FAULTS_MAX  # type: ignore[attr-defined]
    assert not pairs.kept_by_pair(executor)
    executor.prefill([PrefillPlan(SequenceView(7, 0, 0, ((), (), ()), (0,), (0,)), (1, 2), *PLACES)])
    view = SequenceView(7, 0, 2, ((0,), (0,), (0,)), (1,), (0,))
    # What it does not hold is not audited.
    assert {entry.group for entry in executor.audit(view)} == {"kv", "pairs", "gdn", "conv", "ngram", "tail"}
    assert executor.kept == {7}
    executor.drop(7)
    assert not executor.kept


def test_a_programmers_error_is_none_of_its_faults() -> None:
    class Wrong(pairs.Paged):
        def accept(self, rounds: Any) -> Any:
            raise AssertionError("a bug")

    with Runtime.open(pairs.pair(drafter=Wrong), draft="model", draft_len=3) as runtime:
        runtime.submit(PROMPT, max_tokens=9)
        with pytest.raises(AssertionError, match="a bug"):
            runtime.run()
