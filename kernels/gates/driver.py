"""Driving an executor by hand: one fixed stream of tokens, sequences that are prefixes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
)


@attrs.define
class Lane:
    """A sequence: the first ``length`` tokens of the stream are consumed, on ``pages``."""

    request: int
    length: int
    pages: tuple[int, ...]

    def view(self) -> SequenceView:
        """What the executor is told of it."""
        return SequenceView(self.request, 0, self.length, (self.pages,), (), ())


class Driver:
    """Opens lanes and runs rounds on them. Pages come from one pool, the lowest first.

    Raises ``CapabilityMissing`` for an executor that has more state than pages, or that doesn't show the
    logits [rows, vocab] of each round of its last ``verify`` through ``logits_of_last_launch()``.
    """

    def __init__(self, executor: Executor) -> None:
        self.description = executor.describe()
        groups = self.description.groups
        pages = of_kind(groups, "pages")
        if len(pages) != 1 or len(groups) != 1:
            raise CapabilityMissing("gate rows drives executors whose state is one group of pages")
        show: Any = getattr(executor, "logits_of_last_launch", None)
        if show is None:
            raise CapabilityMissing("gate rows compares logits, and this executor does not show them")
        self._executor = executor
        self._logits: Callable[[], Sequence[torch.Tensor]] = show
        self._page_rows = pages[0].granularity
        self._free = list(range(pages[0].capacity))
        self._requests = 0
        self.forwards = 0
        self.tokens_max = pages[0].capacity * self._page_rows
        self._stream = list(_stream(self.tokens_max, self.description.vocab_size))

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self._page_rows)

    @property
    def pages_free(self) -> int:
        """Pages that no lane has."""
        return len(self._free)

    def open(self, tokens: int, scattered: bool = False) -> Lane:
        """A lane with room for ``tokens`` tokens: on the lowest free pages in order, or, ``scattered``, on
        every other one from the top down."""
        count = self.pages_for(tokens)
        order = [*self._free[::-2], *self._free[-2::-2]] if scattered else self._free
        pages = tuple(order[:count])
        assert len(pages) == count, f"{count} pages wanted, {len(self._free)} free"
        self._free = sorted(set(self._free) - set(pages))
        self._requests += 1
        return Lane(self._requests, 0, pages)

    def close(self, lane: Lane) -> None:
        """Give the pages back."""
        self._executor.drop(lane.request)
        self._free = sorted([*self._free, *lane.pages])

    def consume(self, lane: Lane, stop: int, tile: int) -> None:
        """Prefill up to ``stop`` tokens in tiles of at most ``tile`` rows."""
        while lane.length < stop:
            upto = min(lane.length + tile, stop)
            tokens = tuple(self._stream[lane.length : upto])
            self._executor.prefill([PrefillPlan(lane.view(), tokens, (lane.pages,), ())])
            self.forwards += 1
            lane.length = upto

    def rows(self, lanes: Sequence[Lane], widths: Sequence[int]) -> list[torch.Tensor]:
        """Logits [width, vocab] of one launch with a round for each lane; nothing is consumed."""
        rounds = []
        for lane, width in zip(lanes, widths, strict=True):
            drafts = tuple(self._stream[lane.length + 1 : lane.length + width])
            rounds.append(Round(self._plan(lane, width), Proposal(drafts, "gate")))
        self._executor.verify(rounds)
        self.forwards += 1
        found = [logits.clone() for logits in self._logits()]
        self._executor.abandon([item.plan for item in rounds])
        return found

    def _plan(self, lane: Lane, width: int) -> RoundPlan:
        return RoundPlan(
            view=lane.view(),
            ordinal=0,
            pending=self._stream[lane.length],
            parents=tuple(range(-1, width - 1)),
            pages=(lane.pages,),
            columns=(),
            rng=(0, width),
            budget=width,
        )

    def audit(self, lane: Lane) -> tuple[AuditEntry, ...]:
        """Digests of what the lane has consumed."""
        return self._executor.audit(lane.view())


def _stream(count: int, vocab: int) -> Iterator[int]:
    """Token ids that are spread over the vocabulary and the same everywhere: a linear congruence (the
    multiplier of Knuth's MMIX), its high bits."""
    state = 20_261_129
    for _ in range(count):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        yield (state >> 33) % vocab
