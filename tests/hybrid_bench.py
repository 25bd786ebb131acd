"""Driving a hybrid executor by hand: sequences on their own pages, columns and rings."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from tests import hybrids
from txdecode.kernels.hybrid_executor import HybridExecutor
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import HybridWeights, load_weights
from txdecode.state.groups import StateGroup, of_kind
from txdecode.transactions.executor import (
    AuditEntry,
    Border,
    PrefillPlan,
    Proposal,
    Rollback,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
)
from txdecode.transactions.target import GREEDY, Target

FORMS: tuple[Rollback, ...] = ("columns", "replay", "restore")
VOCAB = 160
_PAGES = 3


@functools.cache
def weights_of(family: hybrids.Family = "qwen3_5", dtype: str = "fp32", mtp: bool = True) -> HybridWeights:
    """A tiny model of a family, loaded once. Recurrent layers lie behind attention, so that their states depend on
    the keys of earlier rows."""
    kinds = ["linear_attention", "full_attention"] * 2
    return loaded(hybrids.build(family, mtp=mtp, layer_types=kinds), dtype)


def loaded(tiny: hybrids.TinyHybrid, dtype: str = "fp32") -> HybridWeights:
    """Weights of a model of transformers, by way of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        found = load_weights(resolve(str(hybrids.save(tiny, Path(folder) / "tiny"))), dtype)
    assert isinstance(found, HybridWeights)
    return found


def tokens_of(count: int, seed: int = 1) -> tuple[int, ...]:
    """Random token ids."""
    random = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCAB, (count,), generator=random).tolist())


@attrs.define(eq=False)
class Line:
    """A sequence: ``tokens`` are consumed; ``column`` is its current one."""

    request: int
    pages: tuple[tuple[int, ...], ...]
    column: int
    slot: int
    tokens: tuple[int, ...] = ()
    rounds: int = 0

    def view(self) -> SequenceView:
        return SequenceView(self.request, 0, len(self.tokens), self.pages, (self.column,), (self.slot,))


class Bench:
    """An executor with pools of all that its groups count. The groups' pages never have the same numbers."""

    def __init__(self, weights: HybridWeights, rollback: Rollback = "columns", **arguments: Any) -> None:
        settings: dict[str, Any] = {
            "dtype": "fp32",
            "page_count": 14,
            "batch_max": 3,
            "rows_max": 6,
            "context": 192,
        }
        self.executor = HybridExecutor(weights, rollback=rollback, **(settings | arguments))
        described = self.executor.describe()
        self.rollback = rollback
        self.column_group: StateGroup = of_kind(described.groups, "column")[0]
        self._pages = [list(range(group.capacity)) for group in of_kind(described.groups, "pages")]
        for pool in self._pages[1:]:
            pool.reverse()
        self._columns = list(range(self.column_group.capacity))
        self._slots = list(range(of_kind(described.groups, "ring")[0].capacity))
        self._requests = 0

    def open(self, tokens: Sequence[int] = (), tile: int = 64) -> Line:
        """A sequence that has consumed ``tokens``, in tiles."""
        pages = tuple(tuple(pool.pop() for _ in range(_PAGES)) for pool in self._pages)
        self._requests += 1
        line = Line(self._requests, pages, self._columns.pop(), self._slots.pop())
        for start in range(0, len(tokens), tile):
            self.consume(line, tokens[start : start + tile])
        return line

    def consume(self, line: Line, tokens: Sequence[int]) -> None:
        target = self._columns.pop(0)
        self.executor.prefill([PrefillPlan(line.view(), tuple(tokens), line.pages, (target,))])
        self._columns.append(line.column)
        line.column, line.tokens = target, line.tokens + tuple(tokens)

    def close(self, line: Line) -> None:
        self.executor.drop(line.request)
        for pool, pages in zip(self._pages, line.pages, strict=True):
            pool.extend(pages)
        self._columns.append(line.column)
        self._slots.append(line.slot)

    def plan(
        self,
        line: Line,
        pending: int,
        width: int,
        *,
        target: Target = GREEDY,
        border: int | None = None,
        attempt: int = 0,
    ) -> RoundPlan:
        """A round of ``width`` rows; ``border`` is the row whose state a checkpoint column wants."""
        count = self.column_group.reserved_columns(width)
        columns = tuple(self._columns.pop(0) for _ in range(count))
        borders = () if border is None else (Border(border, (self._columns.pop(0),)),)
        position = len(line.tokens)
        return RoundPlan(
            line.view(),
            line.rounds,
            pending,
            tuple(range(-1, width - 1)),
            line.pages,
            (columns,),
            (position, position + width),
            width,
            target,
            attempt=attempt,
            borders=borders,
        )

    def verify(self, plans: Sequence[RoundPlan], drafts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The logits of one launch, each [rows, vocab]."""
        rounds = [Round(plan, Proposal(tuple(own), "test")) for plan, own in zip(plans, drafts, strict=True)]
        self.executor.verify(rounds)
        return [logits.clone() for logits in self.executor.logits_of_last_launch()]

    def settle(
        self, lines: Sequence[Line], plans: Sequence[RoundPlan], rows: Sequence[tuple[int, ...]]
    ) -> None:
        """Commit ``rows`` of each, its first verified tokens."""
        self.executor.settle(
            [Settlement(plan, tuple(range(len(own)))) for plan, own in zip(plans, rows, strict=True)]
        )
        for line, plan, own in zip(lines, plans, rows, strict=True):
            (columns,) = plan.columns
            kept = columns[len(own) - 1] if self.rollback == "columns" else columns[0]
            self._columns += [line.column, *(column for column in columns if column != kept)]
            line.column, line.tokens, line.rounds = kept, line.tokens + own, line.rounds + 1
            self._free_borders(plan)

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        self.executor.abandon(plans)
        for plan in plans:
            self._columns += plan.columns[0]
            self._free_borders(plan)

    def _free_borders(self, plan: RoundPlan) -> None:
        # The first to be taken again would be a column that a test still wants to read.
        self._columns += [column for border in plan.borders for column in border.columns]

    def step(self, line: Line, rows: Sequence[int], count: int, border: int | None = None) -> RoundPlan:
        """Verify ``rows``, commit the first ``count``."""
        plan = self.plan(line, rows[0], len(rows), border=border)
        self.verify([plan], [rows[1:]])
        self.settle([line], [plan], [tuple(rows[:count])])
        return plan

    def audit(self, line: Line) -> tuple[AuditEntry, ...]:
        return self.executor.audit(line.view(), rows=True)

    def state(self, line: Line) -> torch.Tensor:
        """The recurrent state [linear layers, value_heads, key_dim, value_dim], a copy."""
        return self.column(line.column)

    def column(self, column: int) -> torch.Tensor:
        return self.executor.model.states[:, column].clone()

    def put(self, column: int, state: torch.Tensor | float) -> None:
        """Overwrite a column."""
        with torch.inference_mode():
            self.executor.model.states[:, column] = state

    def drafts(self, line: Line, pending: int, count: int, **plan: Any) -> Proposal:
        """What the MTP layer proposes; nothing else happens."""
        made = self.plan(line, pending, count + 1, **plan)
        proposal = self.executor.draft([made])[0]
        self.abandon([made])
        return proposal

    def fresh(self, tokens: Sequence[int], tile: int = 64) -> tuple[tuple[AuditEntry, ...], torch.Tensor]:
        """Audit and recurrent state of a sequence that only ever prefilled ``tokens``."""
        line = self.open(tokens, tile)
        found = self.audit(line), self.state(line)
        self.close(line)
        return found
