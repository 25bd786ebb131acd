"""Measuring: launches of every width at several contexts and batch sizes, through the executor's own verbs.

A round is verified, accepted and settled with one token, as a round is whose drafts were all wrong: what a rejected
draft costs is part of what a width costs. So a sequence is some tokens longer at the end than at the beginning.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence

import attrs

from txdecode.runtime.sweep.errors import SweepRefused
from txdecode.runtime.sweep.store import VERSION, Row, Sweep, identity
from txdecode.state.groups import of_kind
from txdecode.transactions.executor import (
    Description,
    Executor,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
)

Progress = Callable[[int, int, str], None]
Clock = Callable[[], int]

SPREAD_MOST = 0.1
"""Interquartile range of the plain launches around each pass, as a share of their median, past which a sweep is
flagged."""

LOAD_MOST = 0.5
"""Load average a core, before the sweep begins, past which it is flagged."""

DRAFT_STEPS = 3
"""Drafts asked of the executor's own drafter where it is timed."""


@attrs.define(eq=False)
class _Line:
    """A sequence on its own pages, columns and rings. ``free``: columns of each group to move to."""

    request: int
    pages: tuple[tuple[int, ...], ...]
    columns: tuple[int, ...]
    free: list[list[int]]
    slots: tuple[int, ...]
    length: int = 0
    rounds: int = 0

    def view(self) -> SequenceView:
        return SequenceView(self.request, 0, self.length, self.pages, self.columns, self.slots)


class Bench:
    """``batch`` sequences of an executor with room for ``tokens`` tokens each. Raises ``SweepRefused`` where they do
    not fit."""

    def __init__(self, executor: Executor, batch: int, tokens: int, first: int = 0) -> None:
        self.executor = executor
        self.description = executor.describe()
        self._random = random.Random(0)
        groups = self.description.groups
        self._column_groups = of_kind(groups, "column")
        rows_max = self.description.rows_max
        self.lines: list[_Line] = []
        pages = [list(range(group.capacity)) for group in of_kind(groups, "pages")]
        columns = [list(range(group.capacity)) for group in self._column_groups]
        slots = [list(range(group.capacity)) for group in of_kind(groups, "ring")]
        if batch > self.description.batch_max:
            raise SweepRefused(f"batch {batch}: the executor takes at most {self.description.batch_max}")
        if tokens > self.description.context:
            raise SweepRefused(f"context {tokens}: the executor takes at most {self.description.context}")
        for number in range(batch):
            try:
                own_pages = tuple(
                    tuple(pool.pop(0) for _ in range(-(-tokens // group.granularity)))
                    for group, pool in zip(of_kind(groups, "pages"), pages, strict=True)
                )
                own_columns = tuple(pool.pop() for pool in columns)
                free = [
                    [pool.pop() for _ in range(group.reserved_columns(rows_max))]
                    for group, pool in zip(self._column_groups, columns, strict=True)
                ]
                own_slots = tuple(pool.pop() for pool in slots)
            except IndexError:
                raise SweepRefused(
                    f"batch {batch} at {tokens} tokens does not fit the executor's pools"
                ) from None
            self.lines.append(_Line(first + number, own_pages, own_columns, free, own_slots))

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(self.description.vocab_size) for _ in range(count))

    def prefill(self, tokens: int) -> None:
        """Consume so many tokens in every sequence."""
        most = self.description.prefill_rows_max
        for line in self.lines:
            while line.length < tokens:
                count = min(most, tokens - line.length)
                target = tuple(pool.pop(0) for pool in line.free)
                self.executor.prefill([PrefillPlan(line.view(), self._tokens(count), line.pages, target)])
                for pool, column in zip(line.free, line.columns, strict=True):
                    pool.append(column)
                line.columns, line.length = target, line.length + count

    def _plan(self, line: _Line, width: int) -> RoundPlan:
        columns = tuple(
            tuple(pool[: group.reserved_columns(width)])
            for group, pool in zip(self._column_groups, line.free, strict=True)
        )
        return RoundPlan(
            line.view(),
            line.rounds,
            self._tokens(1)[0],
            tuple(range(-1, width - 1)),
            line.pages,
            columns,
            (line.length + 1, line.length + 1 + width),
            width,
        )

    def round(self, width: int, clock: Clock) -> float:
        """One launch of rounds of so many rows, in milliseconds."""
        plans = [self._plan(line, width) for line in self.lines]
        rounds = [Round(plan, Proposal(self._tokens(width - 1), "sweep")) for plan in plans]
        fused = self.description.capabilities.fused
        start = clock()
        if fused:
            ticket = self.executor.launch(self.lines[0].rounds, rounds)
            while self.executor.collect(ticket) is None:
                pass
        else:
            self.executor.verify(rounds)
            self.executor.accept(rounds)
        self.executor.settle([Settlement(plan, (0,)) for plan in plans])
        spent = (clock() - start) / 1e6
        for line, plan in zip(self.lines, plans, strict=True):
            kept = tuple(own[0] for own in plan.columns)
            for pool, old, new in zip(line.free, line.columns, kept, strict=True):
                pool.remove(new)
                pool.append(old)
            line.columns, line.length, line.rounds = kept, line.length + 1, line.rounds + 1
        return spent

    def draft(self, steps: int, clock: Clock) -> float:
        """What the executor's own drafter takes for one of ``steps`` drafts each, in milliseconds."""
        plans = [self._plan(line, steps + 1) for line in self.lines]
        start = clock()
        self.executor.draft(plans)
        spent = (clock() - start) / 1e6
        self.executor.abandon(plans)
        return spent / steps

    def close(self) -> None:
        """Nothing is held any more."""
        for line in self.lines:
            self.executor.drop(line.request)


@attrs.frozen
class Wanted:
    """What to measure: widths 1 to ``width_most``, ``repeats`` passes over them."""

    width_most: int
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int

    def rounds(self) -> int:
        """Launches at one context and batch: each width once to warm up, then the passes with a plain launch before
        and after each."""
        return self.width_most + self.repeats * (self.width_most + 2)


def sweep(
    executor: Executor,
    wanted: Wanted,
    *,
    progress: Progress = lambda done, total, what: None,
    clock: Clock = time.perf_counter_ns,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
) -> Sweep:
    """Measure. Widths that the executor does not have are left out; contexts and batches that do not fit are named in
    ``skipped``. Raises ``SweepRefused`` where nothing fits, ``ExecutorFault`` where the executor fails."""
    description = executor.describe()
    wanted = attrs.evolve(wanted, width_most=min(wanted.width_most, description.rows_max))
    flags = _load_flags(load())
    rows: list[Row] = []
    steps: dict[int, float] = {}
    skipped: list[str] = []
    places = [(batch, context) for batch in wanted.batches for context in wanted.contexts]
    first = 0
    for done, (batch, context) in enumerate(places):
        progress(done, len(places), f"{batch} x {context}")
        margin = wanted.rounds() + wanted.width_most + 1
        try:
            bench = Bench(executor, batch, context + margin, first)
        except SweepRefused as error:
            skipped.append(str(error))
            continue
        first += batch
        found, plain = _measure(bench, wanted, context, clock)
        rows += [Row(batch, context, width, tuple(samples)) for width, samples in found.items()]
        flags += _spread_flags(plain, batch, context)
        if batch not in steps and _drafts(description):
            count = min(DRAFT_STEPS, description.rows_max - 1)
            bench.draft(count, clock)
            steps[batch] = statistics.median(bench.draft(count, clock) for _ in range(wanted.repeats))
        bench.close()
    progress(len(places), len(places), "")
    if not rows:
        raise SweepRefused(
            f"nothing to measure: {'; '.join(skipped)}; lower --contexts or --batches, or give the model "
            f"more room"
        )
    return Sweep(
        VERSION,
        description.name,
        identity(description),
        tuple(rows),
        steps,
        tuple(flags),
        tuple(skipped),
    )


def _drafts(description: Description) -> bool:
    return description.capabilities.drafts and not description.capabilities.fused and description.rows_max > 1


def _measure(
    bench: Bench, wanted: Wanted, context: int, clock: Clock
) -> tuple[dict[int, list[float]], list[float]]:
    """Samples by width, and those of the plain launches before and after each pass."""
    bench.prefill(context)
    widths = list(range(1, wanted.width_most + 1))
    for width in widths:
        bench.round(width, clock)
    found: dict[int, list[float]] = {width: [] for width in widths}
    plain = []
    for repeat in range(wanted.repeats):
        plain.append(bench.round(1, clock))
        # Up and down by turns, so that a drift of the machine hits all widths alike.
        for width in widths if repeat % 2 == 0 else reversed(widths):
            found[width].append(bench.round(width, clock))
        plain.append(bench.round(1, clock))
    return found, plain


def _load_flags(load: float) -> list[str]:
    cores = os.cpu_count() or 1
    if load <= LOAD_MOST * cores:
        return []
    return [f"load average {load:.1f} on {cores} cores before the sweep began"]


def _spread_flags(plain: Sequence[float], batch: int, context: int) -> list[str]:
    spread = Row(batch, context, 1, tuple(plain)).spread / statistics.median(plain)
    if spread <= SPREAD_MOST:
        return []
    return [f"batch {batch}, context {context}: plain launches differ by {100 * spread:.0f} %"]
