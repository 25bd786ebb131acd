"""The dense executor: a Llama-family model on the CPU behind the ``Executor`` protocol.

Its state is one group of pages. A round leaves rows beyond the committed length in its pages; they are
never read, so settling and abandoning touch no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from txdecode.kernels.attention.cache import PAGE_ROWS, Segment
from txdecode.kernels.capability import (
    DTYPES,
    PREFILL_ROWS_MAX,
    DtypeName,
    MemoryPlanRefused,
    Numerics,
    cpu_name,
    free_memory,
    numerics,
)
from txdecode.kernels.deciding import VerbByVerb, by_rows, digest, faults, proposal_of
from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.dense import NATIVE, DenseModel, Limits, build, fits_vectors, memory_plan
from txdecode.kernels.models.weights import DenseWeights
from txdecode.state.groups import StateGroup
from txdecode.transactions.executor import (
    AuditEntry,
    Capabilities,
    CapabilityMissing,
    Description,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
)

# Sequences are expected to stay below this when nobody says how many pages to keep.
_TOKENS_EXPECTED = 2048
_GROUP = "kv"


class DenseExecutor(VerbByVerb):
    """Decoding of a dense model on the CPU; see ``txdecode.transactions.executor.Executor`` for the verbs.

    ``dtype`` is that of weights, activations, keys and values. ``page_count`` pages of 64 tokens; by default
    enough for ``batch_max`` sequences of 2,048 tokens (or ``context`` if less), fewer where memory is short.
    ``rows_max`` is the widest round, ``context`` the longest sequence in tokens, by default the model's.
    ``threads`` sets torch's thread count for the whole process; ``None`` leaves it.

    Raises ``MemoryPlanRefused``, before anything large is allocated. Every verb raises ``ExecutorFault``
    where a kernel fails.
    """

    def __init__(
        self,
        weights: DenseWeights,
        *,
        dtype: DtypeName,
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
        config = weights.config
        context = config.context if context is None else min(context, config.context)
        self._vocab_size = config.vocab_size
        self._numerics = numerics(dtype)
        limits, plan = _plan(config, self._numerics, context, page_count, batch_max, rows_max)
        with torch.inference_mode():
            self._model = build(weights, self._numerics, limits)
        group = StateGroup(
            _GROUP,
            "pages",
            PAGE_ROWS,
            config.layer_count,
            2 * config.layer_count * config.kv_size * self._numerics.dtype.itemsize,
            capacity=limits.page_count,
        )
        self._description = Description(
            name=f"dense-cpu/{config.architecture}",
            vocab_size=config.vocab_size,
            context=context,
            rows_max=rows_max,
            prefill_rows_max=PREFILL_ROWS_MAX,
            batch_max=batch_max,
            groups=(group,),
            capabilities=Capabilities(
                row_invariant=True, sampling=True, tolerance=f"dense {dtype}: sums in another order"
            ),
            memory=plan,
            fingerprint={
                "torch": str(torch.__version__),
                "dtype": dtype,
                "weights": weights.digest,
                "threads": str(torch.get_num_threads()),
                "cpu": cpu_name(),
                "numerics": NATIVE if fits_vectors(config, self._numerics) else self._numerics.name,
            },
        )

    @property
    def model(self) -> DenseModel:
        """The model, for gates and measurements."""
        return self._model

    def describe(self) -> Description:
        """Static facts; the same object each time."""
        return self._description

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        """Write keys and values of prompt tokens; no logits are computed."""
        segments = [Segment(plan.tokens, plan.view.length, plan.pages[0]) for plan in batch]
        for segment in segments:
            self._check(segment, PREFILL_ROWS_MAX)
        with faults("prefill"):
            for group in by_rows(segments, PREFILL_ROWS_MAX):
                self._model.forward([segments[index] for index in group], logits=False)

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        """No drafters here: raises ``CapabilityMissing``."""
        raise CapabilityMissing("this executor has no drafters of its own; use a drafter on the host")

    def verify(self, rounds: Sequence[Round]) -> None:
        """One forward over all rows of all rounds. Logits stay inside until the rounds are over."""
        assert 1 <= len(rounds) <= self._description.batch_max, len(rounds)
        segments = [self._segment(item) for item in rounds]
        self._verified.begin(rounds)
        with faults("verify"):
            logits = self._model.forward(segments, logits=True)
        assert logits is not None
        self._verified.keep(rounds, logits, self._model.choices(logits.shape[0]))

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """The first rows of the round are in their pages already; the rest is never read."""
        for item in settlements:
            assert item.path == tuple(range(len(item.path))), f"path {item.path} is no chain"
            assert 1 <= len(item.path) <= item.plan.width, (item.path, item.plan.width)
            self._verified.over(item.plan.request)

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        """Forget the logits of these rounds."""
        for plan in plans:
            self._verified.over(plan.request)

    def drop(self, request: int) -> None:
        """Forget the request; its pages belong to the runtime."""
        self._verified.drop(request)

    def audit(self, view: SequenceView, rows: bool = False) -> tuple[AuditEntry, ...]:
        """A 64-bit digest (blake2b) of keys and values for each layer and page ordinal, committed rows only; with
        ``rows`` one for each row before that of its page.

        Physical page numbers do not enter.
        """
        entries: list[AuditEntry] = []
        with faults("audit"):
            for layer in range(self._description.groups[0].layers):
                for ordinal in range(-(-view.length // PAGE_ROWS)):
                    start = ordinal * PAGE_ROWS
                    count = min(view.length - start, PAGE_ROWS)
                    data = self._model.cache.page_rows(layer, view.pages[0][ordinal], count)
                    if rows:
                        entries.extend(
                            AuditEntry(_GROUP, layer, ordinal, digest(data[row]), start + row)
                            for row in range(count)
                        )
                    entries.append(AuditEntry(_GROUP, layer, ordinal, digest(data)))
        return tuple(entries)

    def _segment(self, item: Round) -> Segment:
        plan, proposal = item.plan, proposal_of(item)
        assert plan.parents == tuple(range(-1, plan.width - 1)), f"rows {plan.parents} are no chain"
        assert len(proposal.tokens) < plan.width, (len(proposal.tokens), plan.width)
        segment = Segment((plan.pending, *proposal.tokens), plan.view.length, plan.pages[0])
        self._check(segment, self._description.rows_max)
        return segment

    def _check(self, segment: Segment, rows_max: int) -> None:
        rows, vocab = len(segment.tokens), self._vocab_size
        assert 1 <= rows <= rows_max, f"{rows} rows, at most {rows_max}"
        assert segment.end <= self._description.context, (segment.end, self._description.context)
        assert min(segment.tokens) >= 0, segment.tokens
        assert max(segment.tokens) < vocab, (segment.tokens, vocab)


def _plan(
    config: DenseConfig,
    kind: Numerics,
    context: int,
    page_count: int | None,
    batch_max: int,
    rows_max: int,
) -> tuple[Limits, dict[str, int]]:
    """Sizes and the memory plan. Raises ``MemoryPlanRefused``."""
    rows = max(PREFILL_ROWS_MAX, batch_max * rows_max)
    free = free_memory()
    if page_count is None:
        one, two = (memory_plan(config, kind, Limits(context, rows, rows_max, count)) for count in (1, 2))
        page_bytes = sum(two.values()) - sum(one.values())
        affordable = max((free - sum(one.values())) // 2 // page_bytes, 1)
        page_count = min(batch_max * -(-min(context, _TOKENS_EXPECTED) // PAGE_ROWS), affordable)
    limits = Limits(context, rows, rows_max, page_count)
    plan = memory_plan(config, kind, limits)
    if sum(plan.values()) > free:
        raise MemoryPlanRefused(plan, free)
    return limits, plan
