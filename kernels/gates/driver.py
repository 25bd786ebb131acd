"""Driving an executor by hand: one fixed stream of tokens, sequences that are prefixes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch

from txdecode.state.groups import of_kind
from txdecode.transactions.executor import (
    AuditEntry,
    CapabilityMissing,
    Executor,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
)


@attrs.define
class Lane:
    """A sequence: the first ``length`` tokens of the stream are consumed; ``pages``, ``columns`` and ``slots`` as in
    ``SequenceView``."""

    request: int
    length: int
    pages: tuple[tuple[int, ...], ...]
    columns: tuple[int, ...]
    slots: tuple[int, ...]

    def view(self) -> SequenceView:
        """What the executor is told of it."""
        return SequenceView(self.request, 0, self.length, self.pages, self.columns, self.slots)


class Driver:
    """Opens lanes and runs rounds on them. Pages, columns and rings come from one pool a group, the lowest first.

    Raises ``CapabilityMissing`` for an executor that is not driven verb by verb, or that doesn't show the
    logits [rows, vocab] of each round of its last ``verify`` through ``logits_of_last_launch()``.
    """

    def __init__(self, executor: Executor) -> None:
        self.description = executor.describe()
        if self.description.capabilities.fused:
            raise CapabilityMissing("gate rows drives executors verb by verb, and this one launches fused")
        show: Any = getattr(executor, "logits_of_last_launch", None)
        if show is None:
            raise CapabilityMissing("gate rows compares logits, and this executor does not show them")
        self._executor = executor
        self._logits: Callable[[], Sequence[torch.Tensor]] = show
        groups = self.description.groups
        self._page_groups = of_kind(groups, "pages")
        self._column_groups = of_kind(groups, "column")
        self._free_pages = [list(range(group.capacity)) for group in self._page_groups]
        self._free_columns = [list(range(group.capacity)) for group in self._column_groups]
        self._free_slots = [list(range(group.capacity)) for group in of_kind(groups, "ring")]
        self._requests = 0
        self.forwards = 0
        rows = [group.capacity * group.granularity for group in self._page_groups]
        # Without pages nothing bounds how many tokens two lanes have.
        self.tokens_max = min(rows, default=2 * self.description.context)
        self._stream = list(_stream(self.tokens_max, self.description.vocab_size))

    def has_room(self, tokens: Sequence[int]) -> bool:
        """Whether lanes of so many tokens each can be open together, beside those that are."""
        return all(
            sum(-(-count // group.granularity) for count in tokens) <= len(free)
            for group, free in zip(self._page_groups, self._free_pages, strict=True)
        )

    def open(self, tokens: int, scattered: bool = False) -> Lane:
        """A lane with room for ``tokens`` tokens: on the lowest free pages in order, or, ``scattered``, on
        every other one from the top down."""
        pages = []
        for group, free in zip(self._page_groups, self._free_pages, strict=True):
            count = -(-tokens // group.granularity)
            order = [*free[::-2], *free[-2::-2]] if scattered else free
            pages.append(_take(free, order[:count], count))
        columns = tuple(_take(free, free[:1], 1)[0] for free in self._free_columns)
        slots = tuple(_take(free, free[:1], 1)[0] for free in self._free_slots)
        self._requests += 1
        return Lane(self._requests, 0, tuple(pages), columns, slots)

    def close(self, lane: Lane) -> None:
        """Give back what the lane has."""
        self._executor.drop(lane.request)
        for free, pages in zip(self._free_pages, lane.pages, strict=True):
            _give(free, pages)
        self._give_columns(lane.columns)
        for free, slot in zip(self._free_slots, lane.slots, strict=True):
            _give(free, (slot,))

    def consume(self, lane: Lane, stop: int, tile: int) -> None:
        """Prefill up to ``stop`` tokens in tiles of at most ``tile`` rows."""
        while lane.length < stop:
            upto = min(lane.length + tile, stop)
            tokens = tuple(self._stream[lane.length : upto])
            targets = tuple(_take(free, free[:1], 1)[0] for free in self._free_columns)
            self._executor.prefill([PrefillPlan(lane.view(), tokens, lane.pages, targets)])
            self.forwards += 1
            self._give_columns(lane.columns)
            lane.columns, lane.length = targets, upto

    def rows(self, lanes: Sequence[Lane], widths: Sequence[int]) -> list[torch.Tensor]:
        """Logits [width, vocab] of one launch with a round for each lane; nothing is consumed."""
        plans, found = self._verify(lanes, widths)
        self._executor.abandon(plans)
        for plan in plans:
            self._give_reserved(plan, ())
        return found

    def advance(self, lanes: Sequence[Lane], widths: Sequence[int]) -> list[torch.Tensor]:
        """The same, and all rows are consumed."""
        plans, found = self._verify(lanes, widths)
        self._executor.settle([Settlement(plan, tuple(range(plan.width))) for plan in plans])
        for lane, plan in zip(lanes, plans, strict=True):
            self._give_columns(lane.columns)
            lane.columns = tuple(reserved[-1] for reserved in plan.columns)
            self._give_reserved(plan, lane.columns)
            lane.length += plan.width
        return found

    def audit(self, lane: Lane) -> tuple[AuditEntry, ...]:
        """Digests of what the lane has consumed."""
        return self._executor.audit(lane.view())

    def _verify(
        self, lanes: Sequence[Lane], widths: Sequence[int]
    ) -> tuple[list[RoundPlan], list[torch.Tensor]]:
        rounds = []
        for lane, width in zip(lanes, widths, strict=True):
            drafts = tuple(self._stream[lane.length + 1 : lane.length + width])
            rounds.append(Round(self._plan(lane, width), Proposal(drafts, "gate")))
        self._executor.verify(rounds)
        self.forwards += 1
        return [item.plan for item in rounds], [logits.clone() for logits in self._logits()]

    def _plan(self, lane: Lane, width: int) -> RoundPlan:
        counts = [group.reserved_columns(width) for group in self._column_groups]
        return RoundPlan(
            view=lane.view(),
            ordinal=0,
            pending=self._stream[lane.length],
            parents=tuple(range(-1, width - 1)),
            pages=lane.pages,
            columns=tuple(
                _take(free, free[:count], count)
                for free, count in zip(self._free_columns, counts, strict=True)
            ),
            rng=(0, width),
            budget=width,
        )

    def _give_columns(self, columns: Sequence[int]) -> None:
        for free, column in zip(self._free_columns, columns, strict=True):
            _give(free, (column,))

    def _give_reserved(self, plan: RoundPlan, kept: Sequence[int]) -> None:
        """Give back the columns of a round, but for the one of each group in ``kept``."""
        for place, (free, reserved) in enumerate(zip(self._free_columns, plan.columns, strict=True)):
            _give(free, [column for column in reserved if not kept or column != kept[place]])


def _take(free: list[int], units: Sequence[int], wanted: int) -> tuple[int, ...]:
    assert len(units) == wanted, f"{wanted} units wanted, {len(free)} free"
    taken = set(units)
    free[:] = [unit for unit in free if unit not in taken]
    return tuple(units)


def _give(free: list[int], units: Iterable[int]) -> None:
    free[:] = sorted([*free, *units])


def _stream(count: int, vocab: int) -> Iterator[int]:
    """Token ids that are spread over the vocabulary and the same everywhere: a linear congruence (the
    multiplier of Knuth's MMIX), its high bits."""
    state = 20_261_129
    for _ in range(count):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        yield (state >> 33) % vocab
