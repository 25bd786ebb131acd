"""The hybrid executor: Qwen3-Next and Qwen3.5 on the CPU behind the ``Executor`` protocol.

Rejected rows must leave no trace in four kinds of state. Pages: rows past the committed length are never read.
Conv: raw columns lie in a ring by position, longer than the window by the widest round. Recurrent: see
``kernels.rollback``. The MTP layer's pairs and the tail hidden row: made at settle, from the target's rows alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs
import torch

from txdecode.kernels.attention.cache import PAGE_ROWS, PagedCache, Segment
from txdecode.kernels.capability import (
    DTYPES,
    PREFILL_ROWS_MAX,
    DtypeName,
    MemoryPlanRefused,
    cpu_name,
    free_memory,
    numerics,
)
from txdecode.kernels.deciding import VerbByVerb, by_rows, digest, faults, proposal_of
from txdecode.kernels.drafting import draft
from txdecode.kernels.gdn.recurrent import warm
from txdecode.kernels.hybrid_state import Geometry, geometry, groups
from txdecode.kernels.models.hybrid import HybridModel, memory_plan
from txdecode.kernels.models.mtp import MtpLayer
from txdecode.kernels.models.weights import HybridWeights
from txdecode.kernels.rollback import Form, Taken, form_of
from txdecode.transactions.executor import (
    AuditEntry,
    Capabilities,
    CapabilityMissing,
    Description,
    PrefillPlan,
    Proposal,
    Rollback,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
)


@attrs.frozen(eq=False)
class _Open:
    """A verified round: its rows and the hidden rows [rows, hidden] that they gave."""

    taken: Taken
    hidden: torch.Tensor


class HybridExecutor(VerbByVerb):
    """Decoding of a hybrid model on the CPU; see ``txdecode.transactions.executor.Executor`` for the verbs.

    ``rollback`` is the physical form of recurrent state: ``columns``, ``replay`` or ``restore``. The other
    arguments are those of ``DenseExecutor``. Where the weights have an MTP layer it drafts.

    Raises ``MemoryPlanRefused``, before anything large is allocated. Every verb raises ``ExecutorFault``
    where a kernel fails.
    """

    def __init__(
        self,
        weights: HybridWeights,
        *,
        dtype: DtypeName,
        rollback: Rollback = "columns",
        page_count: int | None = None,
        batch_max: int = 8,
        rows_max: int = 16,
        context: int | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        assert dtype in DTYPES, f"dtype {dtype!r}, expected one of {', '.join(DTYPES)}"
        assert batch_max >= 1, batch_max
        assert rows_max >= 1, rows_max
        assert page_count is None or page_count >= 1, page_count
        assert context is None or context >= 1, context
        if threads is not None:
            torch.set_num_threads(threads)
        config, kind = weights.config, numerics(dtype)
        shape = geometry(config, kind, rollback, batch_max, rows_max, context, page_count)
        plan = memory_plan(config, kind, shape.limits, shape.sizes)
        if sum(plan.values()) > free_memory():
            hint = ", or for rollback='replay', which keeps one state a sequence"
            raise MemoryPlanRefused(plan, free_memory(), hint if rollback == "columns" else "")
        warm()
        self._capacity = shape.capacity
        with torch.inference_mode():
            self._model = HybridModel(weights, kind, shape.limits, shape.sizes)
            self._mtp = MtpLayer(weights, self._model) if config.mtp else None
            # The target's hidden row at the last committed position, by ring slot.
            self._tails = torch.zeros(shape.sizes.slots, config.hidden_size, dtype=kind.dtype)
        self._form: Form = form_of(rollback, self._model, shape)
        self._open: dict[int, _Open] = {}
        self._description = _describe(weights, dtype, rollback, batch_max, rows_max, shape, plan)

    @property
    def model(self) -> HybridModel:
        """The model, for gates and measurements."""
        return self._model

    @property
    def mtp(self) -> MtpLayer | None:
        """The MTP layer, for measurements."""
        return self._mtp

    def describe(self) -> Description:
        """Static facts; the same object each time."""
        return self._description

    # Reading prompts.

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        """Consume prompt tokens: pages, state, conv rows, pairs; no logits are computed."""
        segments = [
            Segment(plan.tokens, plan.view.length, plan.pages[0] if plan.pages else ()) for plan in batch
        ]
        for segment in segments:
            self._check(segment, PREFILL_ROWS_MAX)
        self._check_columns([column for plan in batch for column in plan.columns])
        with faults("prefill"):
            for group in by_rows(segments, PREFILL_ROWS_MAX):
                self._consume([batch[index] for index in group])

    def _consume(self, plans: Sequence[PrefillPlan]) -> None:
        taken = [
            # Where no layer is recurrent nobody looks at the column.
            Taken(plan.view, plan.tokens, plan.pages, (plan.columns[:1] or (0,),))
            for plan in plans
        ]
        made = self._model.forward(
            [item.segment() for item in taken],
            [item.stretch(item.columns[0]) for item in taken],
            logits=False,
        )
        parts = made.hidden.split_with_sizes([len(item.tokens) for item in taken])
        self._absorb([(item, part, len(item.tokens)) for item, part in zip(taken, parts, strict=True)])

    # Rounds.

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        """The MTP layer, one depth after another for all plans. Raises ``CapabilityMissing`` where there is none."""
        if self._mtp is None:
            raise CapabilityMissing("this model has no MTP layer to draft with; use a drafter on the host")
        with faults("draft"):
            return draft(self._mtp, self._tails, plans)

    def verify(self, rounds: Sequence[Round]) -> None:
        """One forward over all rows of all rounds. Logits and hidden rows stay inside until the rounds are over."""
        assert 1 <= len(rounds) <= self._description.batch_max, len(rounds)
        taken = [self._taken(item) for item in rounds]
        self._verified.begin(rounds)
        for item in rounds:
            self._open.pop(item.plan.request, None)
        with faults("verify"):
            stretches = self._form.stretches(taken)
            made = self._model.forward(
                [item.segment() for item in taken], stretches, logits=True, record=self._form.records
            )
        assert made.logits is not None
        self._verified.keep(rounds, made.logits)
        parts = made.hidden.split_with_sizes([len(item.tokens) for item in taken])
        for item, entry, hidden in zip(rounds, taken, parts, strict=True):
            self._open[item.plan.request] = _Open(entry, hidden)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Move recurrent state, pairs and tail to the last row of each path; pages and rings are there already."""
        moves = []
        for item in settlements:
            plan, count = item.plan, len(item.path)
            assert item.path == tuple(range(count)), f"path {item.path} is no chain"
            opened = self._open.pop(plan.request)
            assert 1 <= count <= len(opened.taken.tokens), (item.path, len(opened.taken.tokens))
            moves.append((opened.taken, opened.hidden, count))
            self._verified.over(plan.request)
        with faults("settle"):
            self._form.settle([(taken, count) for taken, _, count in moves])
            self._absorb(moves)

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        """Forget what these rounds left."""
        for plan in plans:
            self._verified.over(plan.request)
            self._open.pop(plan.request, None)

    def drop(self, request: int) -> None:
        """Forget the request; its pages, columns and ring belong to the runtime."""
        self._verified.drop(request)
        self._open.pop(request, None)

    def _absorb(self, moves: Sequence[tuple[Taken, torch.Tensor, int]]) -> None:
        """Pairs for the first ``count`` rows of each, from the target's hidden rows, and the new tails."""
        if self._mtp is None:
            return
        shown, segments = [], []
        for taken, hidden, count in moves:
            slot, length = taken.slot, taken.view.length
            tail = self._tails[slot : slot + 1] if length else torch.zeros_like(hidden[:1])
            shown += [tail, hidden[: count - 1]]
            segments.append(Segment(taken.tokens[:count], length, taken.pages[-1]))
        self._mtp.absorb(segments, torch.cat(shown))
        for taken, hidden, count in moves:
            self._tails[taken.slot] = hidden[count - 1]

    # Audit.

    def audit(self, view: SequenceView, rows: bool = False) -> tuple[AuditEntry, ...]:
        """64-bit digests (blake2b) of keys and values by layer and page, of recurrent state and conv window by
        layer, of pairs by page and of the tail; with ``rows`` one for each row before that of its page or window.

        Physical page, column and slot numbers do not enter.
        """
        if not view.length:
            return ()
        with faults("audit"):
            return tuple(self._audited(view, rows))

    def _audited(self, view: SequenceView, rows: bool) -> Iterator[AuditEntry]:
        model, length = self._model, view.length
        if model.cache is not None:
            for layer in range(len(model.cache.layers)):
                yield from _audit_pages("kv", model.cache, layer, view.pages[0], 0, length, rows)
        if self._mtp is not None:
            yield from _audit_pages("pairs", self._mtp.cache, 0, view.pages[-1], 1, length, rows)
        window = range(max(length - model.config.conv_width + 1, 0), length)
        for layer in range(len(model.states)):
            yield AuditEntry("gdn", layer, 0, digest(model.states[layer, view.columns[0]]))
            ring = model.rings[layer].view(-1, model.ring_rows, model.config.conv_size)[view.slots[0]]
            raw = ring[[position % model.ring_rows for position in window]]
            if rows:
                for position, row in zip(window, raw, strict=True):
                    yield AuditEntry("conv", layer, 0, digest(row), position)
            yield AuditEntry("conv", layer, 0, digest(raw))
        if self._mtp is not None:
            yield AuditEntry("tail", 0, 0, digest(self._tails[view.slots[0]]))

    # Plans.

    def _taken(self, item: Round) -> Taken:
        plan, proposal = item.plan, proposal_of(item)
        assert plan.parents == tuple(range(-1, plan.width - 1)), f"rows {plan.parents} are no chain"
        assert len(proposal.tokens) < plan.width, (len(proposal.tokens), plan.width)
        taken = Taken(plan.view, (plan.pending, *proposal.tokens), plan.pages, plan.columns, plan.borders)
        self._check(taken.segment(), self._description.rows_max)
        self._check_columns([*itertools.chain(*taken.columns), *(b.columns[0] for b in taken.borders)])
        return taken

    def _check_columns(self, columns: Sequence[int]) -> None:
        assert all(0 <= column < self._capacity for column in columns), (columns, self._capacity)

    def _check(self, segment: Segment, rows_max: int) -> None:
        rows, vocab = len(segment.tokens), self._description.vocab_size
        assert 1 <= rows <= rows_max, f"{rows} rows, at most {rows_max}"
        assert segment.end <= self._description.context, (segment.end, self._description.context)
        assert min(segment.tokens) >= 0, segment.tokens
        assert max(segment.tokens) < vocab, (segment.tokens, vocab)


def _audit_pages(
    group: str, cache: PagedCache, layer: int, pages: Sequence[int], first: int, length: int, rows: bool
) -> Iterator[AuditEntry]:
    """Committed rows ``first`` .. ``length - 1`` of one layer, page by page."""
    for ordinal in range(-(-length // PAGE_ROWS)):
        start = ordinal * PAGE_ROWS
        skipped = max(first - start, 0)
        data = cache.page_rows(layer, pages[ordinal], min(length - start, PAGE_ROWS))[skipped:]
        if rows:
            for row in range(data.shape[0]):
                yield AuditEntry(group, layer, ordinal, digest(data[row]), start + skipped + row)
        yield AuditEntry(group, layer, ordinal, digest(data))


def _describe(
    weights: HybridWeights,
    dtype: DtypeName,
    rollback: Rollback,
    batch_max: int,
    rows_max: int,
    shape: Geometry,
    plan: dict[str, int],
) -> Description:
    config, kind = weights.config, numerics(dtype)
    kept = groups(config, kind, rollback, shape)
    recurrent = bool(config.linear_layers)
    return Description(
        name=f"hybrid-cpu/{config.architecture}",
        vocab_size=config.vocab_size,
        context=shape.limits.context,
        rows_max=rows_max,
        prefill_rows_max=PREFILL_ROWS_MAX,
        batch_max=batch_max,
        groups=kept,
        capabilities=Capabilities(
            row_invariant=True,
            drafts=config.mtp,
            sampling=True,
            tolerance=f"hybrid {dtype}: sums in another order",
            rollback=rollback if recurrent else "",
            commits=("pages", "ring", *((rollback,) if recurrent else ())),
        ),
        memory=plan,
        fingerprint={
            "torch": str(torch.__version__),
            "dtype": dtype,
            "weights": weights.digest,
            "threads": str(torch.get_num_threads()),
            "cpu": cpu_name(),
            "numerics": f"{kind.name}/gdn-1",
            "mtp": str(config.mtp).lower(),
        },
    )
