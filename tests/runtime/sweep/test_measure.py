"""Sweeping the toy: what is measured, in which order, and what is flagged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
import pytest

from txdecode.runtime.sweep.errors import SweepRefused
from txdecode.runtime.sweep.measure import Bench, Wanted, sweep
from txdecode.transactions.executor import Rollback, Round
from txdecode.transactions.toy import ToyExecutor, expected_audit

QUIET = {"load": lambda: 0.0}


class Clocked(ToyExecutor):
    """A toy whose verify takes ``cost(rows)`` milliseconds of a clock of its own; it notes the widths it saw."""

    def __init__(self, cost=lambda rows: 1.0, **options) -> None:
        super().__init__(page_count=400, **options)
        self.now, self.seen, self.cost = 0, [], cost

    def verify(self, rounds: Sequence[Round]) -> None:
        super().verify(rounds)
        widths = {len(entry.proposal.tokens) + 1 for entry in rounds if entry.proposal is not None}
        assert len(widths) == 1
        self.seen.append((len(rounds), widths.pop()))
        self.now += int(1e6 * self.cost(self.seen[-1][0] * self.seen[-1][1]))

    def clock(self) -> int:
        return self.now


def test_every_width_context_and_batch_is_measured() -> None:
    toy = Clocked(lambda rows: 1.0 + rows)
    found = sweep(toy, Wanted(4, (8, 20), (1, 2), 3), clock=toy.clock, **QUIET)
    assert [(row.batch, row.context, row.width) for row in found.rows] == [
        (batch, context, width) for batch in (1, 2) for context in (8, 20) for width in range(1, 5)
    ]
    for row in found.rows:
        assert row.samples == (1.0 + row.batch * row.width,) * 3
        assert (row.median, row.spread) == (1.0 + row.batch * row.width, 0.0)
    assert (found.flags, found.skipped, found.steps) == ((), (), {})


def test_widths_go_up_and_down_by_turns_between_plain_launches() -> None:
    toy = Clocked()
    sweep(toy, Wanted(3, (8,), (1,), 2), clock=toy.clock, **QUIET)
    warm, first, second = [1, 2, 3], [1, 1, 2, 3, 1], [1, 3, 2, 1, 1]
    assert [width for _, width in toy.seen] == warm + first + second


@pytest.mark.parametrize("rollback", ["columns", "replay", "restore"])
def test_rounds_leave_a_state_that_their_tokens_explain(rollback: Rollback) -> None:
    class Noting(ToyExecutor):
        """Notes what every sequence consumed."""

        def prefill(self, batch):
            for plan in batch:
                consumed.setdefault(plan.view.request, []).extend(plan.tokens)
            super().prefill(batch)

        def settle(self, settlements):
            for settlement in settlements:
                assert settlement.path == (0,)
                consumed[settlement.plan.request].append(settlement.plan.pending)
            super().settle(settlements)

    consumed: dict[int, list[int]] = {}
    toy = Noting(rollback=rollback, page_count=100)
    bench = Bench(toy, 2, 60)
    bench.prefill(21)
    for width in (1, 4, 8, 2):
        bench.round(width, lambda: 0)
    assert not set(bench.lines[0].pages[0]) & set(bench.lines[1].pages[0])
    for line in bench.lines:
        assert line.length == len(consumed[line.request]) == 25
        held = [*line.columns, *line.free[0]]
        assert len(set(held)) == len(held), "no column is in two places"
        pages = tuple(own[: -(-line.length // 4)] for own in line.pages)
        view = attrs.evolve(line.view(), pages=pages)
        assert toy.audit(view) == expected_audit(consumed[line.request], toy.page, toy.vocab_size)


def test_a_fused_executor_is_measured_too() -> None:
    found = sweep(ToyExecutor(fused=True, page_count=200), Wanted(3, (8,), (1, 2), 2), **QUIET)
    assert Counter(row.batch for row in found.rows) == {1: 3, 2: 3}


def test_the_executors_own_drafter_is_timed() -> None:
    toy = Clocked(accuracy=6)
    found = sweep(toy, Wanted(2, (8,), (1, 3), 2), clock=toy.clock, **QUIET)
    assert found.steps.keys() == {1, 3}


def test_what_does_not_fit_is_named() -> None:
    found = sweep(ToyExecutor(page_count=30), Wanted(2, (8, 500), (1, 9), 1), **QUIET)
    assert {(row.batch, row.context) for row in found.rows} == {(1, 8)}
    assert len(found.skipped) == 3
    assert any("at most 256" in reason for reason in found.skipped)
    assert any("batch 9" in reason for reason in found.skipped)
    crowded = sweep(ToyExecutor(page_count=16), Wanted(2, (30,), (1, 2), 1), **QUIET)
    assert "does not fit" in crowded.skipped[0]
    with pytest.raises(SweepRefused, match="nothing to measure"):
        sweep(ToyExecutor(), Wanted(2, (5000,), (1,), 1), **QUIET)


def test_widths_past_the_executors_are_left_out() -> None:
    found = sweep(ToyExecutor(rows_max=3, page_count=200), Wanted(16, (8,), (1,), 1), **QUIET)
    assert [row.width for row in found.rows] == [1, 2, 3]


def test_a_busy_machine_is_flagged() -> None:
    toy = Clocked()
    found = sweep(toy, Wanted(2, (8,), (1,), 1), clock=toy.clock, load=lambda: 1000.0)
    assert found.flags[0].startswith("load average 1000.0 on ")


def test_plain_launches_that_differ_are_flagged() -> None:
    toy = Clocked()
    toy.cost = lambda rows: 1.0 + len(toy.seen) % 7
    found = sweep(toy, Wanted(2, (8,), (1,), 6), clock=toy.clock, **QUIET)
    assert any("plain launches differ" in flag for flag in found.flags)
